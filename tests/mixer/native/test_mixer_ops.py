"""The C++ mixer equals the reference within float32 rounding for all sizes, scores, masks and strides."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flare.mixer import decode, encode, mix, native, sdpa
from flare.mixer.native import mixer_ops
from tests.exact import OUTPUT, assert_exact, error, noise

pytestmark = pytest.mark.kernels


def tensors(B=2, H=3, M=5, N=37, D=8, spread=1.0):
    return [spread * noise((H, M, D), 1), spread * noise((B, H, N, D), 2), noise((B, H, N, D), 3)]


def results(function, inputs, dtype=torch.float32, **how):
    """Return the output and the gradients of all inputs."""
    inputs = [t.detach().to(dtype).requires_grad_() for t in inputs]
    out = function(*inputs, **how)
    return [out.detach(), *torch.autograd.grad(out, inputs, noise(out.shape, 4, dtype))]


def check(function, inputs, **how):
    want = results(function, inputs, torch.float64, backend="reference", **how)
    got, *eager = (results(function, inputs, backend=b, **how) for b in ("native", "sdpa", "reference"))
    # Size of the terms in the gradients of queries and keys: scale * key * (value · gradient).
    size = max(1.0, *(t.abs().mean().item() for t in inputs[:2])) * max(1.0, how.get("scale") or 1.0)
    size *= inputs[0].shape[-1] ** 0.5
    assert_exact(got, want, *eager, floors=[0.1, 0.1 * size, 0.1 * size, 0.1], slack=10.0)
    return got


@pytest.fixture
def threads():
    """Function that sets the number of threads for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


shapes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 140), st.integers(1, 200), st.integers(1, 20))


@settings(max_examples=25)
@given(
    shape=shapes, scale=st.floats(0.01, 3), spread=st.floats(0.05, 2.5), kept=st.floats(0, 1), count=st.integers(1, 3)
)
@example(shape=(1, 1, 1, 1, 1), scale=1.0, spread=1.0, kept=1.0, count=1)
@example(shape=(2, 2, 64, 64, 4), scale=1.0, spread=1.0, kept=1.0, count=2)
@example(shape=(2, 2, 65, 65, 8), scale=1.0, spread=5.0, kept=0.5, count=2)
@example(shape=(3, 1, 16, 130, 16), scale=1.0, spread=1.0, kept=0.0, count=7)
def test_any_shape_scale_mask_and_number_of_threads(shape, scale, spread, kept, count):
    B, H, M, N, D = shape
    q, k, v = tensors(B, H, M, N, D, spread)
    mask = torch.rand(B, N, generator=torch.Generator().manual_seed(5)) < kept
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        for function, third in ((mix, v), (encode, v), (decode, noise((B, H, M, D), 6))):
            check(function, [q, k, third], scale=scale, mask=mask)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "sizes",
    [
        {"N": 1},
        {"M": 1},
        {"N": 1, "M": 1, "D": 1},
        {"N": 63},
        {"N": 64},
        {"N": 65},
        {"M": 63, "D": 4},
        {"M": 4096, "N": 70, "B": 1},
        {"D": 64, "N": 100},
        {"D": 67, "M": 33, "N": 100},
        {"B": 9, "N": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_corners(sizes, spread):
    check(mix, tensors(**sizes, spread=spread))


@pytest.mark.parametrize("sizes", [(8, 64, 972, 8), (16, 256, 700, 4)], ids=str)
@pytest.mark.parametrize("function", [mix, encode, decode])
def test_strict_tolerance_at_the_sizes_of_the_paper(function, sizes):
    H, M, N, D = sizes
    inputs = tensors(2, H, M, N, D)
    inputs[2] = noise((2, H, M, D), 6) if function is decode else inputs[2]
    want = results(function, inputs, torch.float64, backend="reference")
    assert_exact(results(function, inputs, backend="native"), want)


@pytest.mark.parametrize("spread", [2.0, 5.0, 20.0, 60.0, 1e4])
def test_scores_far_beyond_the_bound(spread):
    q, k, v = tensors(N=300, M=37, spread=spread)
    got = check(mix, [q, k, v])
    assert all(torch.isfinite(t).all() for t in got)
    assert torch.ops.flare.encode(q, k, v, None, 1.0)[2].max() > 40, "the scores were bounded"


def test_sample_without_real_points_is_zero_and_has_no_gradient():
    mask = torch.ones(2, 37, dtype=torch.bool)
    mask[1] = False
    y, dq, dk, dv = check(mix, tensors(), mask=mask)
    assert torch.all(y[1] == 0)
    assert torch.all(dk[1] == 0)
    assert torch.all(dv[1] == 0)
    assert torch.isfinite(dq).all()


@pytest.mark.parametrize("spread", [1.0, 6.0])
def test_values_at_padding_do_not_matter_even_nan(spread):
    q, k, v = tensors(B=1, N=100, spread=spread)
    mask = torch.arange(100)[None] < 70
    clean = results(mix, [q, k, v], backend="native", mask=mask)
    for filling in (torch.nan, torch.inf, 1e30):
        k[:, :, 70:] = v[:, :, 70:] = filling
        for a, b in zip(results(mix, [q, k, v], backend="native", mask=mask), clean, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("function", [mix, encode, decode])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_nan_and_inf_propagate(function, which, bad):
    inputs = tensors(N=100)
    inputs[2] = noise((2, 3, 5, 8), 6) if function is decode else inputs[2]
    inputs[which].view(-1)[7] = bad
    got, want = (results(function, inputs, backend=b) for b in ("native", "reference"))
    for a, b in zip(got, want, strict=True):
        assert torch.all(torch.isfinite(a) <= torch.isfinite(b)), "finite where the reference is not"


def views(x_BHND):
    """Yield the same values with other strides."""
    B, H, N, D = x_BHND.shape
    yield x_BHND.transpose(1, 2).contiguous().transpose(1, 2)
    yield x_BHND.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    wide = torch.full((B, H, N + 3, D + 5), torch.nan)
    wide[:, :, 2:-1, 3:-2] = x_BHND
    yield wide[:, :, 2:-1, 3:-2]
    yield x_BHND[:1].expand(B, H, N, D)


def test_strides_do_not_change_the_result():
    q, k, v = tensors(B=2, N=100)
    k[1], v[1] = k[0], v[0]
    want = results(mix, [q, k, v], backend="native")
    assert len({tuple(x.stride()) for x in views(k)}) == 4
    for kk, vv in zip(views(k), reversed(list(views(v))), strict=True):
        inputs = [q, kk.requires_grad_(), vv.requires_grad_()]
        out = mix(*inputs, backend="native")
        dk, dv = torch.autograd.grad(out, inputs[1:], noise(out.shape, 4))
        for a, b in zip([out, dk, dv], [want[0], want[2], want[3]], strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_kernels_use_the_number_of_threads_of_torch(threads, monkeypatch):
    threads_used = []
    monkeypatch.setattr(mixer_ops, "call", lambda name, sizes, *rest: threads_used.append(sizes[0]))
    for count in (1, 2):
        threads(count)
        mix(*tensors(), backend="native")
    assert threads_used == [1, 1, 2, 2]


@pytest.mark.parametrize("sizes", [{"N": 0}, {"B": 0}, {"B": 0, "N": 0}], ids=str)
def test_empty_batches_and_samples(sizes):
    q, k, v = tensors(**sizes)
    for function, inputs in ((mix, [q, k, v]), (encode, [q, k, v]), (decode, [q, k, noise((len(k), 3, 5, 8), 6)])):
        out, *gradients = results(function, inputs, backend="native")
        assert out.shape == (inputs[2].shape if function is not encode else (len(k), 3, 5, 8)) or function is decode
        assert all(torch.all(t == 0) for t in (out, *gradients))


@pytest.mark.parametrize("size", [1e20, 1e30])
def test_large_values_do_not_overflow(size):
    q, k, v = tensors(N=100)
    for function, inputs in ((mix, [q, k, size * v]), (decode, [q, k, size * noise((2, 3, 5, 8), 6)])):
        got, want = (function(*inputs, backend=b) for b in ("native", "reference"))
        assert error(got / size, want.double() / size) < OUTPUT


def test_concurrent_python_threads():
    qkv = tensors(N=3000)
    want = results(mix, qkv, backend="native")
    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: results(mix, qkv, backend="native"), range(12)):
            assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_forward_mode_derivatives_go_to_sdpa():
    q, k, v = tensors()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(v, torch.ones_like(v))
        y = mix(q, k, dual, backend="reference")
        want = torch.autograd.forward_ad.unpack_dual(y).tangent
        assert not native.supports(q, k, dual)
    torch.testing.assert_close(want, torch.ones_like(want))  # rows of the mixing matrix sum to one


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_precisions_go_to_sdpa(dtype):
    q, k, v = (t.to(dtype) for t in tensors())
    assert torch.equal(mix(q, k, v, backend="native"), sdpa.decode(q, k, sdpa.encode(q, k, v)))


def test_wrong_sizes_are_refused():
    q, k, v = tensors()
    mask = torch.ones(2, 36, dtype=torch.bool)
    for wrong in ((q[:2], k, v, None), (q, k, v[:, :, :9], None), (q, k, v, mask), (q[..., :4], k, v, None)):
        with pytest.raises(ValueError, match="is \\["):
            torch.ops.flare.mix(*wrong, 1.0)
    with pytest.raises(ValueError, match="z is"):
        torch.ops.flare.decode(q, k, noise((2, 3, 4, 8), 6), None, 1.0)
    with pytest.raises(TypeError, match=r"torch\.float64"):
        torch.ops.flare.mix(q.double(), k.double(), v.double(), None, 1.0)


def test_operators_pass_opcheck():
    q, k, v = (t.requires_grad_() for t in tensors(H=2, N=70))
    mask = torch.arange(70).expand(2, -1) < 60
    z = noise((2, 2, 5, 8), 6).requires_grad_()
    torch.library.opcheck(torch.ops.flare.mix.default, (q, k, v, mask, 0.7))
    torch.library.opcheck(torch.ops.flare.encode.default, (q, k, v, mask, 0.7))
    torch.library.opcheck(torch.ops.flare.decode.default, (q, k, z, mask, 0.7))


def test_second_derivatives_are_refused():
    qkv = [t.requires_grad_() for t in tensors()]
    (slope,) = torch.autograd.grad(mix(*qkv, backend="native").sum(), qkv[1], create_graph=True)
    with pytest.raises(NotImplementedError):
        slope.square().sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's, for sdpa under vmap
def test_transforms_of_torch_func_go_to_sdpa():
    q, k, v = tensors()
    got = torch.func.grad(lambda k: mix(q, k, v, backend="native").square().sum())(k)
    want = torch.func.grad(lambda k: mix(q, k, v, backend="sdpa").square().sum())(k)
    assert torch.equal(got, want)
    each = torch.func.vmap(lambda k, v: mix(q, k[None], v[None], backend="native")[0])(k, v)
    assert error(each, mix(q, k, v, backend="sdpa").double()) < OUTPUT


def test_autocast_goes_to_sdpa():
    q, k, v = tensors()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mix(q, k, v, backend="native").dtype == mix(q, k, v, backend="sdpa").dtype == torch.bfloat16
    assert not native.supports(q.double())


@pytest.mark.slow
def test_rounding_does_not_accumulate_over_a_million_points():
    qkv = tensors(B=1, H=2, M=8, N=1_000_000, D=4)
    assert_exact(results(mix, qkv, backend="native"), results(mix, qkv, torch.float64, backend="reference"))


@pytest.mark.parametrize("order", ["small first", "large first", "large between"])
def test_running_sum_is_rescaled_when_scores_grow(order):
    """Tiles with bounded and unbounded scores in one running sum."""
    q, k, v = tensors(B=1, N=256)
    factor = torch.ones(256)
    factor[{"small first": slice(128, 256), "large first": slice(0, 64), "large between": slice(64, 192)}[order]] = 40.0
    check(mix, [q, k * factor[None, None, :, None], v])
