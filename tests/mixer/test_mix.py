"""Every backend equals the reference: outputs, gradients, masks, scales, dtypes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flare import mixer
from flare.mixer import decode, encode, mix
from flare.mixer.chunked import encode_partial
from flare.utils.errors import ConfigError

BACKENDS = ["reference", "sdpa", "native"]
FAST = ["sdpa", "native"]


def tensors(B=2, H=3, M=5, N=37, D=8, dtype=torch.float64, spread=1.0):
    g = torch.Generator().manual_seed(1)
    shapes = [(H, M, D), (B, H, N, D), (B, H, N, D)]
    return [(spread * torch.randn(s, generator=g, dtype=torch.float64)).to(dtype).requires_grad_() for s in shapes]


def padding(B, N):
    """Return a mask with a different number of real points in every sample."""
    return torch.arange(N) < torch.linspace(N // 3, N, B).long()[:, None]


def output_and_gradients(qkv, **how):
    y = mix(*qkv, **how)
    weights = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view_as(y)
    return [y, *torch.autograd.grad((y * weights).sum(), qkv)]


@settings(max_examples=15)
@given(sizes=st.tuples(*[st.integers(1, 9)] * 5), scale=st.floats(0.01, 4), real=st.none() | st.integers(0, 9))
def test_backends_equal_the_reference_with_gradients_at_any_shape_and_scale(sizes, scale, real):
    B, H, M, N, D = sizes
    qkv = tensors(B, H, M, N, D, spread=2.0)
    mask = None if real is None else (torch.arange(N) < real).expand(B, N)
    want = output_and_gradients(qkv, scale=scale, mask=mask, backend="reference")
    for backend in FAST:
        for a, b in zip(output_and_gradients(qkv, scale=scale, mask=mask, backend=backend), want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_reference_is_the_formula_of_the_paper():
    q, k, v = tensors(B=1, H=1)
    s = 0.7 * q[0] @ k[0, 0].T
    w = torch.softmax(s.T, dim=1) @ torch.softmax(s, dim=1)
    torch.testing.assert_close(mix(q, k, v, scale=0.7, backend="reference")[0, 0], w @ v[0, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(backend, masked):
    qkv = tensors(B=2, H=2, M=3, N=6, D=4)
    mask = padding(2, 6) if masked else None
    assert torch.autograd.gradcheck(lambda *t: mix(*t, mask=mask, backend=backend), qkv, fast_mode=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_does_not_change_real_points(backend):
    q, k, v = (t.detach() for t in tensors(B=1))
    padded = [torch.cat([t, 7 * torch.randn(1, 3, 11, 8, dtype=t.dtype)], dim=2) for t in (k, v)]
    mask = torch.arange(48)[None] < 37
    y = mix(q, *padded, mask=mask, backend=backend)
    torch.testing.assert_close(y[:, :, :37], mix(q, k, v, backend=backend), rtol=0, atol=1e-12)
    assert torch.all(y[:, :, 37:] == 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sample_without_real_points_is_zero_and_has_no_gradient(backend):
    qkv = tensors()
    mask = torch.ones(2, 37, dtype=torch.bool)
    mask[1] = False
    y, *gradients = output_and_gradients(qkv, mask=mask, backend=backend)
    assert torch.all(y[1] == 0)
    assert all(torch.isfinite(g).all() for g in gradients)
    assert torch.all(gradients[2][1] == 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_permuting_points_permutes_the_output(backend):
    q, k, v = tensors()
    order = torch.randperm(37)
    y = mix(q, k[:, :, order], v[:, :, order], backend=backend)
    torch.testing.assert_close(y, mix(q, k, v, backend=backend)[:, :, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_values_stay_constant(backend):
    q, k, v = tensors()
    y = mix(q, k, torch.ones_like(v), backend=backend)
    torch.testing.assert_close(y, torch.ones_like(y), rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 3e-2)])
def test_lower_precision(backend, dtype, tolerance):
    exact = tensors()
    y = mix(*[t.to(dtype) for t in exact], mask=padding(2, 37), backend=backend)
    assert y.dtype == dtype
    want = mix(*exact, mask=padding(2, 37), backend="reference")
    torch.testing.assert_close(y.double(), want, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "mask", [torch.ones(2, 37), torch.ones(2, 37, dtype=torch.long), torch.ones(37, dtype=torch.bool)]
)
def test_mask_of_wrong_type_or_shape_is_refused(mask):
    with pytest.raises(ConfigError, match="mask"):
        mix(*tensors(), mask=mask)


def test_wrong_shapes_are_named():
    q, k, v = tensors()
    with pytest.raises(ConfigError, match=r"q \[3, 5, 4\]"):
        mix(q[..., :4], k, v)
    for function in (mix, encode):
        for wrong in (v[:, :, :30], v[:1], v[0]):
            with pytest.raises(ConfigError, match="v is"):
                function(q, k, wrong)
    with pytest.raises(ConfigError, match=r"z is \[2, 3, 4, 8\]"):
        decode(q, k, encode(q, k, v)[:, :, :4])


def test_unknown_backend_names_the_nearest():
    with pytest.raises(ConfigError, match="'sdpa'"):
        mix(*tensors(), backend="spda")
    with pytest.raises(ConfigError, match="None"):
        mix(*tensors(), backend=None)


def test_registered_backend_is_used_by_layers_and_chunks(monkeypatch):
    monkeypatch.setattr(mixer.BACKENDS, "_entries", dict(mixer.BACKENDS._entries))

    @mixer.BACKENDS.register("doubled")
    class Doubled:
        @staticmethod
        def encode(q, k, v, *, scale, mask):
            return 2 * encode(q, k, v, scale=scale, mask=mask, backend="reference")

        decode = staticmethod(mixer.reference.decode)

    q, k, v = tensors()
    torch.testing.assert_close(mix(q, k, v, backend="doubled"), 2 * mix(q, k, v, backend="reference"))
    part = encode_partial(q, k, v, backend="doubled")
    torch.testing.assert_close(part.z_BHMD, 2 * encode(q, k, v, backend="reference"))
