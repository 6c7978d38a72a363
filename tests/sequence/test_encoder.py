"""The sequence encoder: golden values of every attention, padding, pooling, pairs."""

import pytest
import torch
from torch import nn

from flare.sequence.attention import ATTENTIONS
from flare.sequence.encoder import SequenceEncoder
from flare.utils.errors import ConfigError
from tests.models import golden

IDS = (7 * torch.arange(24) % 11)[None]


def filled(attention, *, labels=3, length=24, mlp_ratio=2, **options):
    sizes = {"channels": 32, "blocks": 2, "heads": 4} | ({} if attention == "flare" else {"mlp_ratio": mlp_ratio})
    model = golden.fill(SequenceEncoder(11, labels, length, attention=attention, **sizes, **options))
    if attention == "performer":
        model.float()
        for block in model.blocks:
            omega = block.attention.omega
            rows = golden.pseudo_random(omega.numel()).view_as(omega)
            omega.copy_(nn.functional.normalize(rows, dim=-1))
    return model


@pytest.mark.parametrize(
    ("attention", "options", "values", "tolerance"),
    [
        ("vanilla", {}, (-0.83507470, 0.27435081, -0.33153592), 1e-7),
        ("flare", {"latents": 8}, (0.65823891, -1.29667327, -1.16470886), 1e-7),
        ("linformer", {"projected": 6}, (-0.58007090, -0.07197268, -2.86683388), 1e-7),
        ("linear", {}, (0.09135197, 0.31181723, -2.06046637), 1e-7),
        ("linear", {"kernel": "identity"}, (-0.61475959, 0.55755388, -0.04497983), 1e-7),
        ("norm", {"mlp_ratio": 4}, (-0.81997409, 0.22412272, -1.00246957), 1e-7),
        ("performer", {"features": 16, "kind": "simple"}, (-0.8377418, 0.3941112, -0.6178786), 1e-6),
        ("flare", {"latents": 8, "documents": 2, "length": 12, "labels": 1}, (0.44138668,), 1e-7),
    ],
)
def test_golden_values(attention, options, values, tolerance):
    got = filled(attention, **options)(IDS)[0].double().detach()
    torch.testing.assert_close(got, torch.tensor(values, dtype=torch.float64), rtol=0, atol=tolerance)


SMALL = {"channels": 16, "blocks": 2, "heads": 4}
OPTIONS = {"flare": {"latents": 8}, "linformer": {"projected": 6}, "performer": {"features": 32}}


def small(attention, **options):
    torch.manual_seed(1)
    model = SequenceEncoder(11, 3, 40, attention=attention, **{**SMALL, **OPTIONS.get(attention, {}), **options})
    for p in model.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    return model.double().eval()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize(("position", "pool"), [("learned", "mean"), ("sinusoidal", "max"), ("rotary", "cls")])
def test_padding_changes_nothing(attention, position, pool):
    model = small(attention, position=position, pool=pool)
    lengths = (5, 30, 1)
    ids = torch.randint(0, 11, (3, 30))
    mask = torch.arange(30) < torch.tensor(lengths)[:, None]
    together = model(ids, mask)
    for y, row, count in zip(together, ids, lengths, strict=True):
        torch.testing.assert_close(y, model(row[None, :count])[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(model(ids.masked_fill(~mask, 3), mask), together, rtol=0, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_pair_is_two_documents_through_one_encoder(attention):
    model = small(attention, documents=2)
    ids = torch.randint(0, 11, (2, 24))
    mask = torch.ones(2, 24, dtype=torch.bool)
    mask[0, 20:] = False
    pooled = [model.encode(ids[:, part], mask[:, part]) for part in (slice(12), slice(12, 24))]
    torch.testing.assert_close(model(ids, mask), model.head(torch.cat(pooled, dim=-1)))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_dropout_is_only_for_training(attention):
    has_weights = attention in ("vanilla", "linformer", "flare")
    model, ids = small(attention, dropout=0.2, attention_dropout=0.2 * has_weights), torch.randint(0, 11, (2, 24))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


@pytest.mark.parametrize("place", ["embedding", "projection", "ffn", "head", "attention"])
def test_every_place_has_a_dropout_of_its_own(place):
    model, ids = small("vanilla", **{f"{place}_dropout": 0.3}).train(), torch.randint(0, 11, (2, 24))
    assert not torch.equal(model(ids), model(ids))
    shares = [part.p for part in model.modules() if isinstance(part, nn.Dropout)]
    assert shares.count(0.3) == {"embedding": 1, "projection": 2, "ffn": 2, "head": 1, "attention": 0}[place]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_the_output_has_the_precision_of_the_weights(attention, dtype, position):
    model, ids = small(attention, position=position).to(dtype), torch.randint(0, 11, (2, 24))
    y = model(ids, torch.arange(24) < torch.tensor([[24], [9]]))
    assert y.dtype == dtype
    assert y.isfinite().all()


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_forward_and_backward_on_the_meta_device(attention):
    model = small(attention).train().to("meta")
    y = model(torch.empty(2, 24, dtype=torch.long, device="meta"))
    y.sum().backward()
    assert (y.shape, y.is_meta) == ((2, 3), True)


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_document_of_padding_alone_does_not_affect_others(attention, pool):
    model, ids = small(attention, pool=pool), torch.randint(0, 11, (2, 24))
    mask = torch.tensor([[True], [False]]).expand(2, 24)
    y = model(ids, mask)
    torch.testing.assert_close(y[0], model(ids[:1])[0], rtol=0, atol=1e-9)
    y.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"attention": "linfromer"}, "linformer"),
        ({"position": "absolute"}, "position='absolute'"),
        ({"pool": "sum"}, "pool='sum'"),
        ({"head": "big"}, "head='big'"),
        ({"norm": "batch"}, "norm='batch'"),
        ({"documents": 3}, "documents=3"),
        ({"heads": 7}, "heads=7"),
        ({"attention": "linear", "kernel": "relu"}, "kernel='relu'"),
        ({"attention": "performer", "kind": "best"}, "kind='best'"),
        ({"channels": 12, "position": "rotary"}, "head width 3"),
        ({"mlp_ratio": 2}, "mlp_ratio"),
        ({"attention": "linear", "ffn_depth": 2}, "ffn_depth"),
        ({"attention": "linear", "attention_dropout": 0.1}, "attention_dropout"),
        ({"attention": "performer", "kind": "simple", "redraw_every": 5}, "redraw_every=5"),
        ({"attention": "linformer", "projected": 0}, "projected=0"),
        ({"blocks": 0}, "blocks=0"),
    ],
)
def test_impossible_settings_are_refused(options, fact):
    with pytest.raises(ConfigError, match=fact):
        SequenceEncoder(11, 3, 24, **{**SMALL, **options})


def test_sequences_that_are_too_long_or_no_pairs_are_refused():
    with pytest.raises(ConfigError, match="24 tokens, not 25"):
        SequenceEncoder(11, 3, 24, **SMALL)(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(ConfigError, match=r"\[B, 2 N\]"):
        SequenceEncoder(11, 3, 24, documents=2, **SMALL)(torch.zeros(1, 25, dtype=torch.long))
