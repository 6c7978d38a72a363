"""Padding never leaks: its content changes no bit of a logit or gradient, in any precision."""

from contextlib import nullcontext

import pytest
import torch

from flare.sequence.encoder import SequenceEncoder

KINDS = {
    "vanilla": {"attention": "vanilla"},
    "linear": {"attention": "linear"},
    "identity": {"attention": "linear", "kernel": "identity"},
    "linformer": {"attention": "linformer", "projected": 6},
    "norm": {"attention": "norm"},
    "performer": {"attention": "performer", "features": 16},
    "simple": {"attention": "performer", "features": 16, "kind": "simple"},
    "flare": {"attention": "flare", "latents": 8},
    "qk-norm": {"attention": "flare", "latents": 8, "qk_norm": True},
    "turned latents": {"attention": "flare", "latents": 8, "position": "rotary", "rotate_latents": True},
    "dropped vanilla": {"attention": "vanilla", "attention_dropout": 0.2},
    "dropped linformer": {"attention": "linformer", "projected": 6, "attention_dropout": 0.2},
    "dropped flare": {"attention": "flare", "latents": 8, "attention_dropout": 0.2},
}
VOCABULARY, LENGTH = 200, 40


def random_model(seed, **options):
    """A model with large random weights; with its initial ones the output hardly depends on the tokens."""
    torch.manual_seed(seed)
    model = SequenceEncoder(VOCABULARY, 3, LENGTH, channels=32, heads=4, blocks=2, **options)
    for p in model.parameters():
        p.data.add_(0.5 * torch.randn_like(p))
    return model


def padded_batch(seed, documents=1):
    """Ids padded with 0, the same with anything in place of padding, and the mask."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([30, 40, 25, 1, 17, 40, 8, 33])[:, None]
    mask = (torch.arange(LENGTH) < lengths).reshape(-1, documents * LENGTH)
    ids, other = (torch.randint(1, VOCABULARY, mask.shape, generator=generator) for _ in range(2))
    return ids.masked_fill(~mask, 0), torch.where(mask, ids, other), mask


def logits_and_gradients(model, ids, mask, half):
    model.zero_grad()
    torch.manual_seed(5)  # of dropout
    with torch.autocast("cpu", torch.float16) if half else nullcontext():
        logits = model(ids, mask)
    logits.float().square().sum().backward()
    table = model.embedding.weight.grad
    assert table[0].abs().max() == 0, "the pad learns nothing"
    return torch.cat([logits.detach().float().flatten(), *(p.grad.flatten() for p in model.parameters())])


@pytest.mark.parametrize(("documents", "half"), [(1, False), (2, False), (1, True)])
@pytest.mark.parametrize("kind", KINDS)
def test_scrambled_padding_changes_no_bit(kind, documents, half):
    """In float16 outputs at padding may overflow: the quotients of the identity kernel do."""
    model = random_model(0, documents=documents, **KINDS[kind])
    ids, scrambled, mask = padded_batch(0 if half else 1, documents)
    plain = logits_and_gradients(model, ids, mask, half)
    assert plain.isfinite().all()
    assert torch.equal(logits_and_gradients(model, scrambled, mask, half), plain)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.startswith("dropped")])
def test_infinite_values_at_padding_do_not_leak(kind):
    attention = random_model(0, **KINDS[kind]).blocks[0].attention
    x, mask = torch.randn(2, LENGTH, 32), torch.arange(LENGTH) < torch.tensor([[25], [40]])
    filled = x.masked_fill(~mask[..., None], torch.inf)
    assert torch.equal(attention(filled, mask)[mask], attention(x, mask)[mask])
