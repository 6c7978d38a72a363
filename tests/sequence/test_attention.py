"""Every attention equals its formula and keeps its cost; position encodings have their symmetries."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import elu, scaled_dot_product_attention

from flare.sequence.attention import KernelAttention, PerformerAttention, Rotation, orthogonal_rows
from flare.sequence.encoder import SequenceEncoder


def parts(tokens=50, width=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(2, 4, tokens, width, generator=generator).double() for _ in range(3))


def test_linear_attention_is_its_quadratic_formula():
    q, k, v = parts()
    attention = KernelAttention(32, 4, length=50, normalize=False)
    weights = (elu(q) + 1) @ (elu(k) + 1).transpose(-1, -2)
    want = weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v
    torch.testing.assert_close(attention.attend(q, k, v, None), want)


def test_linear_attention_keeps_no_pair_of_tokens():
    attention, kept = KernelAttention(32, 4, length=4000), []
    x = torch.randn(1, 4000, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        attention(x)
    assert max(kept) <= 4000 * 3 * 32


def test_orthogonal_rows_are_orthogonal_and_as_long_as_gaussian_ones():
    torch.manual_seed(0)
    rows = orthogonal_rows(2000, 8)
    block = torch.nn.functional.normalize(rows[:8], dim=-1)
    torch.testing.assert_close(block @ block.t(), torch.eye(8), rtol=0, atol=1e-5)
    assert rows.square().sum(-1).mean() == pytest.approx(8, rel=0.05)
    assert orthogonal_rows(5, 8).shape == (5, 8)


def test_performers_error_falls_as_one_over_the_root_of_its_features():
    torch.manual_seed(0)
    q, k, v = (t * 0.35 for t in parts())
    want = scaled_dot_product_attention(q, k, v)
    errors = {}
    for features in (64, 1024):
        tries = []
        for _ in range(12):
            attention = PerformerAttention(32, 4, length=50, features=features).eval()
            tries.append((attention.attend(q, k, v, None) - want).square().mean())
        errors[features] = torch.stack(tries).mean().sqrt().item()
    ratio = errors[64] / errors[1024]
    assert 3.0 < ratio < 5.5, "16 times the features: 4 times the accuracy"
    assert errors[1024] < 0.05 * want.square().mean().sqrt()


def test_performer_redraws_while_training_and_saves_its_features_with_its_weights():
    attention = PerformerAttention(32, 4, length=50, features=16, redraw_every=3)
    x, drawn = torch.randn(1, 10, 32), [attention.omega.clone()]
    for step in range(1, 7):
        attention(x)
        attention.redraw(step)
        drawn.append(attention.omega.clone())
    changed = [not torch.equal(a, b) for a, b in pairwise(drawn)]
    assert changed == [False, False, True, False, False, True]
    other = PerformerAttention(32, 4, length=50, features=16)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other.eval()(x), attention.eval()(x))


@pytest.mark.parametrize("padded", [False, True])
def test_performer_at_large_scores_is_finite(padded):
    q, k, v = (30 * t for t in parts())
    mask = torch.arange(50) < torch.tensor([[20], [50]]) if padded else None
    if padded:
        k[0, :, 20:] = 0.0  # as in a forward pass, where keys are zero at padding
    y = PerformerAttention(32, 4, length=50, features=64).eval().attend(q, k, v, mask)
    assert torch.isfinite(y).all()


def test_rotation_keeps_norms_and_scores_depend_only_on_distance():
    rotate = Rotation(100, 8)
    q, k = torch.randn(2, 8).double()
    x = torch.randn(1, 1, 100, 8).double()
    torch.testing.assert_close(rotate(x).norm(dim=-1), x.norm(dim=-1))
    rotated_q, rotated_k = (rotate(t.expand(1, 1, 100, 8))[0, 0] for t in (q, k))
    torch.testing.assert_close(rotated_q[10] @ rotated_k[3], rotated_q[90] @ rotated_k[83], rtol=0, atol=1e-6)
    torch.testing.assert_close(rotated_q[0], q)


def test_scores_of_rotated_latents_depend_only_on_the_distance_to_the_token():
    rotation = Rotation(60, 8)
    q, k = torch.randn(8), torch.randn(8)
    rotated = rotation.spread(q.expand(2, 6, 8)), rotation(k.expand(1, 2, 60, 8))
    scores = (rotated[0] @ rotated[1][0].transpose(-1, -2))[0]
    places = [5, 15, 25, 35, 45, 55]
    for m, place in enumerate(places):
        for n in range(40):
            if 0 <= n - place + places[0] < 60:
                torch.testing.assert_close(scores[m, n], scores[0, n - place + places[0]], rtol=1e-4, atol=1e-5)
    assert scores[0].std() > 0.1


def test_new_features_depend_only_on_seed_and_step():
    def drawn(seed, step, noise):
        sizes = {"channels": 16, "heads": 2, "blocks": 2, "features": 8}
        model = SequenceEncoder(9, 3, 20, attention="performer", redraw_every=2, **sizes)
        torch.randn(noise)
        model.redraw(step, seed)
        return torch.stack([block.attention.omega for block in model.blocks])

    assert torch.equal(drawn(1, 4, 3), drawn(1, 4, 50))
    assert not torch.equal(drawn(1, 4, 3), drawn(1, 6, 3))
    assert not torch.equal(drawn(1, 4, 3), drawn(2, 4, 3))
    assert not torch.equal(*drawn(1, 4, 3)), "every block has its own"
