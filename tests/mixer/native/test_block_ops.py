"""The fused residual MLP and FLARE block equal their modules, with all gradients."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

from flare.mixer.native import block_ops
from flare.models.flare import FLAREBlock, ResMLP
from tests.exact import assert_exact, noise
from tests.layers import check, lively, results, weights_of, with_backend

pytestmark = pytest.mark.kernels


# ---- residual MLP ---------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    widths=st.tuples(*[st.integers(1, 40)] * 3),
    square=st.booleans(),
    depth=st.integers(-1, 5),
    skips=st.tuples(st.booleans(), st.booleans()),
    activation=st.sampled_from(["gelu", "silu"]),
    rows=st.integers(1, 150),
)
def test_any_residual_mlp(widths, square, depth, skips, activation, rows):
    a, b, c = widths if not square else [widths[0]] * 3
    mlp = ResMLP(a, b, c, depth, skip_in=skips[0], skip_out=skips[1], activation=activation)
    check(lively(mlp), noise((rows, a), 1), slack=10.0)


@pytest.mark.parametrize("shape", [(5,), (0, 5), (7, 5), (2, 3, 5), (2, 3, 4, 5)])
def test_residual_mlp_with_any_number_of_dimensions(shape):
    mlp = lively(ResMLP(5, 8, 3, 2))
    x = noise(shape, 1)
    assert mlp(x).shape == (*shape[:-1], 3)
    torch.testing.assert_close(mlp(x), with_backend(mlp, "sdpa")(x), rtol=1e-5, atol=1e-5)


def test_residual_mlp_with_strided_input():
    mlp = lively(ResMLP(6, 8, 3, 2))
    x = noise((9, 10, 7), 1)
    for view in (x[:, :, 1:], x[::2, 1::3, :6], x.transpose(0, 1)[..., :6], noise((6, 9, 10), 2).permute(1, 2, 0)):
        assert not view.is_contiguous()
        for a, b in zip(results(mlp, view), results(mlp, view.contiguous()), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_silu_does_not_overflow():
    mlp, x = ResMLP(1, 1, 1, 0, activation="silu"), torch.tensor([[-1e25], [3e19], [1e30]])
    for a, b in zip(results(mlp, x), results(with_backend(mlp, "sdpa"), x), strict=True):
        torch.testing.assert_close(a, b)


def test_nan_stays_in_its_row():
    mlp, x = lively(ResMLP(4, 8, 4, 2)), noise((100, 4), 1)
    x[37, 2] = torch.nan
    y = mlp(x)
    assert torch.isnan(y[37]).all()
    assert torch.isfinite(y[torch.arange(100) != 37]).all()


# ---- block ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    heads=st.integers(1, 5),
    width=st.integers(1, 12),
    latents=st.integers(1, 70),
    depths=st.tuples(st.integers(-1, 5), st.integers(-1, 5)),
    norm=st.sampled_from(["layer", "rms"]),
    activation=st.sampled_from(["gelu", "silu"]),
    scale=st.sampled_from([1.0, None, 0.3]),
    shared=st.booleans(),
    batch=st.integers(1, 3),
    points=st.integers(1, 140),
    kept=st.sampled_from([None, 0.0, 0.5, 1.0]),
)
def test_any_block(heads, width, latents, depths, norm, activation, scale, shared, batch, points, kept):
    assume(heads * width > 1)  # the gradient of a norm over one channel is rounding error only
    options = {"kv_depth": depths[0], "ffn_depth": depths[1], "norm": norm, "activation": activation}
    block = FLAREBlock(heads * width, heads, latents, scale=scale, shared_latents=shared, **options)
    generator = torch.Generator().manual_seed(3)
    mask = None if kept is None else torch.rand(batch, points, generator=generator) < kept
    x = noise((batch, points, heads * width), 1)
    # A norm over two or three channels may divide by almost zero, which amplifies rounding.
    check(lively(block), x, mask, slack=20.0, floors=sizes_of_terms(block, x))


def sizes_of_terms(block, x):
    """Return the size of the terms of each gradient; with one point those of the scores cancel up to rounding."""
    normed = block.mixer_norm(x)
    size = max(1.0, (block.mixer.key(normed).abs().mean() * block.mixer.value(normed).abs().mean()).item())
    of_scores = ("mixer.latents", "mixer.key")
    return [1.0, 1.0, *(size if name.startswith(of_scores) else 1.0 for name, _ in block.named_parameters())]


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("heads", [8, 16])
def test_block_with_the_sizes_of_the_paper(spread, heads):
    block = lively(FLAREBlock(64, heads, 130))
    block.mixer.latents.data.mul_(spread)
    mask = torch.arange(200).expand(2, -1) < torch.tensor([[200], [77]])
    check(block, noise((2, 200, 64), 1), mask, slack=0.0 if spread <= 1 else 3.0)


def test_block_with_strided_input():
    block = lively(FLAREBlock(16, 4, 8))
    wide = noise((3, 70, 2, 20), 1)
    for x in (wide[:, :, 1, 2:18], wide[:, ::2, 0, :16], noise((16, 70, 3), 2).permute(2, 1, 0)):
        for a, b in zip(results(block, x), results(block, x.contiguous()), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_frozen_weights_and_input():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 70, 16), 1)
    want = results(block, x)
    block.mixer.key.requires_grad_(False)
    y = block(x)  # x requires no gradient
    y.backward(noise(y.shape, 4))
    assert all(p.grad is None for p in block.mixer.key.parameters())
    for weight, gradient in zip(block.parameters(), want[2:], strict=True):
        if weight.requires_grad:
            torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=0)


def test_training_keeps_about_a_kilobyte_per_point():
    block, x = FLAREBlock(64, 8, 64), noise((1, 6400, 64), 1).requires_grad_()
    weights = {p.data_ptr() for p in block.parameters()}
    kept = {}
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.setdefault(t.data_ptr(), t), lambda t: t):
        block(x)
    per_point = sum(t.nbytes for at, t in kept.items() if at not in weights) / 6400
    assert 1024 < per_point < 1.1 * 1024


def test_inference_keeps_nothing(calls):
    block, x = FLAREBlock(16, 4, 8), noise((1, 70, 16), 1)
    with torch.no_grad():
        _, *kept = torch.ops.flare.block(
            x, block.mixer.latents, weights_of(block), None, 1.0, 1e-5, [3, 3, 0, 0], False
        )
    assert [t.numel() for t in kept] == [0] * 8
    assert calls == ["flare_block"]


@pytest.mark.slow
def test_rounding_does_not_accumulate_over_a_million_points():
    block = lively(FLAREBlock(16, 2, 16))
    x = noise((1, 1_000_000, 16), 1)
    want = results(with_backend(block, "sdpa").double(), x.double())
    assert_exact(results(block, x), want)


# ---- kept activations -----------------------------------------------------------------------------------------------


def assert_kept_or_not_the_same_bits(module, x, mask=None):
    """Compare outputs and all gradients with activations kept and recomputed."""
    kept = results(module, x, mask)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_ops, "MOST_ACTIVATIONS", 0)
        again = results(module, x, mask)
    assert all(torch.equal(a, b) for a, b in zip(kept, again, strict=True))


def activations_of(module, x):
    """Return the shapes of the activations that a forward keeps."""
    before = set(block_ops._lent)
    y = module(x)
    assert y.requires_grad
    return [reference().shape for number, (reference, _) in block_ops._lent.items() if number not in before]


@settings(max_examples=15)
@given(
    heads=st.integers(1, 5),
    width=st.integers(1, 12),
    depths=st.tuples(st.integers(-1, 4), st.integers(-1, 4)),
    norm=st.sampled_from(["layer", "rms"]),
    activation=st.sampled_from(["gelu", "silu"]),
    batch=st.integers(1, 3),
    points=st.integers(1, 140),
    real=st.sampled_from([None, 0.0, 0.5, 1.0]),
)
def test_block_with_kept_activations_is_bit_exact(heads, width, depths, norm, activation, batch, points, real):
    options = {"kv_depth": depths[0], "ffn_depth": depths[1], "norm": norm, "activation": activation}
    block = FLAREBlock(heads * width, heads, 9, **options)
    x, generator = noise((batch, points, heads * width), 1), torch.Generator().manual_seed(3)
    mask = None if real is None else torch.rand(batch, points, generator=generator) < real
    assert len(activations_of(block, x)) == 1
    assert_kept_or_not_the_same_bits(lively(block), x, mask)


@settings(max_examples=15)
@given(
    widths=st.tuples(*[st.integers(1, 40)] * 3),
    square=st.booleans(),
    depth=st.integers(-1, 4),
    activation=st.sampled_from(["gelu", "silu"]),
    rows=st.integers(1, 150),
)
def test_residual_mlp_with_kept_activations_is_bit_exact(widths, square, depth, activation, rows):
    a, b, c = widths if not square else [widths[0]] * 3
    assert_kept_or_not_the_same_bits(lively(ResMLP(a, b, c, depth, activation=activation)), noise((rows, a), 1))


def test_activations_are_kept_up_to_a_limit():
    block, mlp = FLAREBlock(64, 8, 8), ResMLP(64, 64, 64, 3)
    tiles_that_fit = block_ops.MOST_ACTIVATIONS // (4 * 13 * 64 * 64)  # three MLPs of four layers, and one
    assert activations_of(block, noise((2, 972, 64), 1)) == [(32, 13 * 64, 64)]
    assert activations_of(block, noise((1, 64 * tiles_that_fit, 64), 1)) == [(tiles_that_fit, 13 * 64, 64)]
    assert activations_of(block, noise((1, 64 * tiles_that_fit + 1, 64), 1)) == []
    rows = 64 * (block_ops.MOST_ACTIVATIONS // (4 * 4 * 64 * 64))
    assert activations_of(mlp, noise((rows, 64), 1)) == [(rows // 64, 4 * 64, 64)]
    assert activations_of(mlp, noise((rows + 1, 64), 1)) == []
    with torch.no_grad():
        before = len(block_ops._lent)
        block(noise((2, 972, 64), 1))
    assert len(block_ops._lent) == before


def test_activation_buffers_are_reused_but_not_shared():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 70, 16), 1)
    want = results(block, x)[2:]
    before = len(block_ops._spare) + len(block_ops._lent)
    first, second = block(x), block(2 * x)  # both keep activations for a backward
    in_use = [memory.ctypes.data for _, memory in block_ops._lent.values()]
    assert len(set(in_use)) == len(in_use) >= 2
    for y, reference in ((second, None), (first, want)):
        got = torch.autograd.grad(y, list(block.parameters()), noise(y.shape, 4))
        assert reference is None or all(torch.equal(a, b) for a, b in zip(got, reference, strict=True))
    del first, second, y
    count = len(block_ops._spare) + len(block_ops._lent)
    for _ in range(3):
        results(block, x)
    assert count == len(block_ops._spare) + len(block_ops._lent) <= before + 2


def test_compiled_blocks_obey_the_limit(monkeypatch):
    block = lively(FLAREBlock(16, 4, 8, kv_depth=0, ffn_depth=0))
    monkeypatch.setattr(block_ops, "MOST_ACTIVATIONS", 4 * 4 * 16 * 64)  # one tile
    torch._dynamo.reset()
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    for points in (50, 130):
        x = noise((1, points, 16), points)
        for a, b in zip(results(compiled, x), results(block, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


# ---- operators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep", "limit"), [(False, 0), (True, block_ops.MOST_ACTIVATIONS)])
def test_operators_pass_opcheck(keep, limit, monkeypatch):
    monkeypatch.setattr(block_ops, "MOST_ACTIVATIONS", limit)
    block, x = lively(FLAREBlock(16, 4, 8)), noise((2, 70, 16), 1)
    if keep:
        x.requires_grad_()
    else:
        block.requires_grad_(False)
    mask = torch.arange(70).expand(2, -1) < 60
    arguments = (x, block.mixer.latents, weights_of(block), mask, 1.0, 1e-5, [3, 3, 0, 0], keep)
    torch.library.opcheck(torch.ops.flare.block.default, arguments)
    shape = [16, 16, 16, 3, 1, 1, 0]
    torch.library.opcheck(torch.ops.flare.resmlp.default, (x, list(block.ffn.parameters()), shape, keep))


def test_wrong_sizes_are_refused():
    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1)
    weights = weights_of(block)
    q, how = block.mixer.latents, (1.0, 1e-5, [3, 3, 0, 0], False)
    for error, fact, wrong in (
        (ValueError, "weights are", (x, q, weights[:-1], None)),
        (ValueError, r"x is \[1, 50, 12\]", (x[..., :12], q, weights, None)),
        (ValueError, r"mask is \[1, 49\]", (x, q, weights, torch.ones(1, 49, dtype=torch.bool))),
        (TypeError, r"torch\.float64", (x.double(), q, weights, None)),
        (TypeError, r"mask is torch\.float32", (x, q, weights, torch.ones(1, 50))),
    ):
        with pytest.raises(error, match=fact):
            torch.ops.flare.block(*wrong, *how)
    mlp, shape = [*block.ffn.parameters()], [16, 16, 16, 3, 1, 1, 0]
    for fact, wrong in (
        ("weights are", (x, mlp[:-1], shape)),
        (r"x is \[1, 50, 12\]", (x[..., :12], mlp, shape)),
        ("skip_in=1", (noise((4, 3), 1), mlp, [3, 8, 5, 1, 1, 0, 0])),
    ):
        with pytest.raises(ValueError, match=fact):
            torch.ops.flare.resmlp(*wrong, False)
    for fact, kept, dy in ((r"dy is \[1, 49, 16\]", (1, 64, 64), x[:, 1:]), (r"kept is \[0\]", (0,), x)):
        with pytest.raises(ValueError, match=fact):
            torch.ops.flare.resmlp_backward(x, mlp, noise(kept, 1), dy, shape, True)
    out = torch.ops.flare.block(x.requires_grad_(), q, weights, None, 1.0, 1e-5, [3, 3, 0, 0], True)[0]
    assert torch.isfinite(out).all()
    with pytest.raises(ValueError, match="keep=True"):
        torch.ops.flare.block(x, q, weights, None, *how)
    with pytest.raises(ValueError, match="keep=True"):
        torch.ops.flare.resmlp(x, mlp, shape, False)


def test_second_derivatives_are_refused():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1).requires_grad_()
    (slope,) = torch.autograd.grad(block(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError):
        slope.square().sum().backward()


def test_undefined_gradient_is_none():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return None

    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1).requires_grad_()
    Nothing.apply(block(x)).sum().backward()
    assert all(p.grad is None for p in block.parameters())


def test_activation_checkpointing_is_bit_exact():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 70, 16), 1)

    def twice(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    gradients = []
    for function in (twice, lambda x: block(block(x))):
        x = x.detach().requires_grad_()
        y = function(x)
        gradients.append(torch.autograd.grad(y, [x, *block.parameters()], noise(y.shape, 4)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_lazily_negated_input():
    mlp = lively(ResMLP(1, 8, 3, 1))
    x = torch.complex(noise((9, 1), 1), noise((9, 1), 2)).conj().imag
    assert x.is_neg()
    for a, b in zip(results(mlp, x), results(mlp, x.clone()), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(mlp(x), mlp(x.resolve_neg()), rtol=0, atol=0)
