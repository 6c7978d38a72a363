"""What each attention is: its formula, its cost, its limits."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import elu, scaled_dot_product_attention

from flare.errors import ConfigError
from flare.sequence.attention import LinearAttention, LinformerAttention
from flare.sequence.performer import PerformerAttention, orthogonal_rows
from flare.sequence.positions import Rotation, SinusoidalPositions


def parts(tokens=50, width=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(2, 4, tokens, width, generator=generator).double() for _ in range(3))


def test_linear_attention_is_its_quadratic_formula():
    q, k, v = parts()
    attention = LinearAttention(32, 4, length=50, normalise=False)
    weights = (elu(q) + 1) @ (elu(k) + 1).transpose(-1, -2)
    want = weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v
    torch.testing.assert_close(attention.attend(q, k, v, None), want)


def test_linear_attention_keeps_no_pair_of_tokens():
    attention, kept = LinearAttention(32, 4, length=4000), []
    x = torch.randn(1, 4000, 32, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        attention(x)
    assert max(kept) <= 4000 * 3 * 32


def test_linformer_refuses_sequences_longer_than_built_for():
    attention = LinformerAttention(32, 4, length=20, projected=5)
    attention(torch.randn(1, 20, 32))
    with pytest.raises(ConfigError, match="at most 20 tokens, not 21"):
        attention(torch.randn(1, 21, 32))


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
        for _ in range(30):
            attention = PerformerAttention(32, 4, length=50, features=features).eval()
            tries.append((attention.attend(q, k, v, None) - want).square().mean())
        errors[features] = torch.stack(tries).mean().sqrt().item()
    ratio = errors[64] / errors[1024]
    assert 3.0 < ratio < 5.5, "16 times the features: 4 times the accuracy"
    assert errors[1024] < 0.05 * want.square().mean().sqrt()


def test_orthogonal_features_beat_independent_ones_and_unit_ones_are_biased():
    torch.manual_seed(0)
    q, k, v = (t * 0.35 for t in parts())
    want = scaled_dot_product_attention(q, k, v)

    def error(kind, features, change=None):
        tries = []
        for _ in range(30):
            attention = PerformerAttention(32, 4, length=50, features=features, kind=kind).eval()
            if change:
                attention.omega.copy_(change(attention.omega))
            tries.append((attention.attend(q, k, v, None) - want).square().mean())
        return torch.stack(tries).mean().sqrt().item()

    assert error("orthogonal", 256) < error("orthogonal", 256, torch.randn_like)
    assert error("simple", 4096) > 2 * error("orthogonal", 4096), "more features do not mend a bias"


def test_performer_draws_anew_while_training_and_keeps_its_features_with_its_weights():
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
        k[0, :, 20:] = 0.0  # as short as these, keys would outshine those that count
    y = PerformerAttention(32, 4, length=50, features=64).eval().attend(q, k, v, mask)
    assert torch.isfinite(y).all()


def test_two_forwards_before_a_backward_see_the_same_features():
    attention = PerformerAttention(32, 4, length=50, features=16, redraw_every=1)
    x = torch.randn(1, 10, 32)
    first = attention(x)
    attention.redraw(1)
    assert not torch.equal(attention(x), first)
    first.sum().backward()
    assert attention.qkv.weight.grad.isfinite().all()


def test_rotation_is_one_and_scores_depend_on_distance_alone():
    rotate = Rotation(100, 8)
    q, k = torch.randn(2, 8).double()
    places = torch.randn(1, 1, 100, 8).double()
    torch.testing.assert_close(rotate(places).norm(dim=-1), places.norm(dim=-1))
    turned_q, turned_k = (rotate(x.expand(1, 1, 100, 8))[0, 0] for x in (q, k))
    torch.testing.assert_close(turned_q[10] @ turned_k[3], turned_q[90] @ turned_k[83], rtol=0, atol=1e-6)
    torch.testing.assert_close(turned_q[0], q)


def test_sinusoid_starts_at_one_over_the_root_of_the_channels():
    positions = SinusoidalPositions(50, 16)
    waves = positions(50)
    assert waves.shape == (50, 16)
    torch.testing.assert_close(waves[0], torch.tensor([0.0, 1.0] * 8) / 4)
    torch.testing.assert_close(waves[3, 0], torch.tensor(3.0).sin() / 4)
