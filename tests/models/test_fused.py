"""The fused residual MLP and FLARE block are their modules: same numbers, same gradients, same weights."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from flare.errors import ConfigError
from flare.mixer.native import block_ops, library
from flare.models import build_model
from flare.models.flare import FLAREBlock, ResMLP
from tests.exact import assert_exact, noise

pytestmark = pytest.mark.kernels


def lively(module, seed=0):
    """Weights and biases of order one, so that every path matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        width = 2.0 if weight.ndim == 1 else weight.shape[-1] ** 0.5
        weight.data = torch.randn(weight.shape, generator=generator) / width
        if name.endswith("norm.weight"):
            weight.data += 1.0
    return module


def with_backend(module, backend):
    module = copy.deepcopy(module)
    for part in module.modules():
        if hasattr(part, "backend"):
            part.backend = backend
    return module


def results(module, x, mask=None):
    """Output and the gradients of the input and of all weights."""
    x = x.detach().clone().requires_grad_()
    y = module(x) if mask is None else module(x, mask)
    weights = list(module.parameters())
    return [y.detach(), *torch.autograd.grad(y, [x, *weights], noise(y.shape, 4, y.dtype))]


def check(module, x, mask=None, slack=3.0):
    want = results(with_backend(module, "reference").double(), x.double(), mask)
    got, *eager = (results(with_backend(module, b), x, mask) for b in ("native", "sdpa", "reference"))
    assert_exact(got, want, *eager, floors=1.0, slack=slack)
    return got


@pytest.fixture
def calls(monkeypatch):
    """Names of the kernels that ran."""
    names = []
    call = block_ops.call
    monkeypatch.setattr(block_ops, "call", lambda name, *rest: (names.append(name), call(name, *rest))[1])
    return names


# ---- residual MLP ---------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
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
def test_residual_mlp_of_any_number_of_dimensions(shape):
    mlp = lively(ResMLP(5, 8, 3, 2))
    x = noise(shape, 1)
    assert mlp(x).shape == (*shape[:-1], 3)
    torch.testing.assert_close(mlp(x), with_backend(mlp, "sdpa")(x), rtol=1e-5, atol=1e-5)


def test_residual_mlp_of_strided_input():
    mlp = lively(ResMLP(6, 8, 3, 2))
    x = noise((9, 10, 7), 1)
    for view in (x[:, :, 1:], x[::2, 1::3, :6], x.transpose(0, 1)[..., :6], noise((6, 9, 10), 2).permute(1, 2, 0)):
        assert not view.is_contiguous()
        for a, b in zip(results(mlp, view), results(mlp, view.contiguous()), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_large_activations_neither_overflow_nor_vanish():
    mlp = lively(ResMLP(4, 4, 4, 1))
    got = check(mlp, 1e4 * noise((50, 4), 1))
    assert all(torch.isfinite(t).all() for t in got)


def test_nan_in_one_row_stays_in_it():
    mlp, x = lively(ResMLP(4, 8, 4, 2)), noise((100, 4), 1)
    x[37, 2] = torch.nan
    y = mlp(x)
    assert torch.isnan(y[37]).all()
    assert torch.isfinite(y[torch.arange(100) != 37]).all()


# ---- block ----------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
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
    block = FLAREBlock(
        heads * width,
        heads,
        latents,
        kv_depth=depths[0],
        ffn_depth=depths[1],
        norm=norm,
        activation=activation,
        scale=scale,
        shared_latents=shared,
    )
    generator = torch.Generator().manual_seed(3)
    mask = None if kept is None else torch.rand(batch, points, generator=generator) < kept
    # A norm over two or three channels may divide by almost nothing; rounding is then a matter of luck.
    check(lively(block), noise((batch, points, heads * width), 1), mask, slack=20.0)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("heads", [8, 16])
def test_block_of_the_papers_sizes(spread, heads):
    """Without any slack while scores are of order one or ten, as they are in the paper's models."""
    block = lively(FLAREBlock(64, heads, 130))
    block.mixer.latents.data.mul_(spread)
    mask = torch.arange(200).expand(2, -1) < torch.tensor([[200], [77]])
    check(block, noise((2, 200, 64), 1), mask, slack=0.0 if spread <= 1 else 3.0)


def test_block_of_strided_input():
    block = lively(FLAREBlock(16, 4, 8))
    wide = noise((3, 70, 2, 20), 1)
    for x in (wide[:, :, 1, 2:18], wide[:, ::2, 0, :16], noise((16, 70, 3), 2).permute(2, 1, 0)):
        for a, b in zip(results(block, x), results(block, x.contiguous()), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_frozen_weights_and_frozen_input():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 70, 16), 1)
    want = results(block, x)
    block.mixer.key.requires_grad_(False)
    y = block(x)  # the input needs no gradient
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
    assert [t.numel() for t in kept] == [0] * 7
    assert calls == ["flare_block"]


def weights_of(block):
    mixer = block.mixer
    parts = block.mixer_norm, mixer.key, mixer.value, mixer.out, block.ffn_norm, block.ffn
    return [weight for part in parts for weight in part.parameters()]


# ---- model ----------------------------------------------------------------------------------------------------------

SMALL = {"channels": 16, "blocks": 2, "heads": 4, "latents": 8, "kv_depth": 1, "ffn_depth": 1, "io_depth": 1}


@pytest.mark.parametrize(
    "options", [{}, {"norm": "rms"}, {"qk_norm": True}, {"latent_blocks": 1}, {"shared_latents": True}]
)
def test_model_with_every_variant(options):
    model = lively(build_model("flare", 3, 2, **SMALL, **options))
    check(model, noise((2, 90, 3), 1), torch.arange(90).expand(2, -1) < torch.tensor([[90], [40]]))


def test_weights_are_the_same_for_every_backend():
    models = {b: build_model("flare", 3, 2, **SMALL, backend=b) for b in ("auto", "native", "sdpa", "reference")}
    x = noise((1, 50, 3), 1)
    outputs = []
    for model in models.values():
        model.load_state_dict(models["native"].state_dict())
        outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1])
    for y in outputs:
        torch.testing.assert_close(y, outputs[0], rtol=1e-5, atol=1e-6)


def test_the_whole_model_runs_in_kernels(calls):
    build_model("flare", 3, 2, **SMALL)(noise((1, 50, 3), 1))
    assert calls == ["flare_resmlp", "flare_block", "flare_block", "flare_resmlp"]


@pytest.mark.parametrize("backend", ["sdpa", "reference"])
def test_other_backends_call_no_kernel(backend, calls):
    build_model("flare", 3, 2, **SMALL, backend=backend)(noise((1, 50, 3), 1))
    assert calls == []


@pytest.mark.parametrize(
    "where", ["mixer", "mixer.key", "mixer.key.layers.0", "ffn.activation", "mixer_norm", "mixer.out"]
)
def test_hooks_are_called(where):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    want, heard = block(x), []
    handle = block.get_submodule(where).register_forward_hook(lambda *_: heard.append(1))
    torch.testing.assert_close(block(x), want, rtol=1e-5, atol=1e-5)
    assert heard
    handle.remove()
    assert torch.equal(block(x), want)


def test_a_module_that_was_replaced_is_used():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    twice = Doubled(16, 16)
    twice.load_state_dict(block.mixer.out.state_dict())
    block.mixer.out = twice
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)

    block = lively(FLAREBlock(16, 4, 8))
    nn.utils.parametrizations.weight_norm(block.ffn.layers[1])
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        lambda b: setattr(b.ffn, "activation", nn.Identity()),
        lambda b: setattr(b.mixer.value, "activation", nn.SiLU()),
        lambda b: setattr(b.mixer.key, "activation", nn.GELU()),
        lambda b: setattr(b.mixer, "key", ResMLP(16, 16, 16, 3, skip_in=False)),
        lambda b: setattr(b.mixer, "value", ResMLP(16, 16, 16, 1)),
        lambda b: setattr(b.mixer, "key_norm", nn.GELU()),
        lambda b: setattr(b, "mixer_norm", nn.Identity()),
        lambda b: setattr(b, "ffn_norm", nn.LayerNorm(16, bias=False)),
        lambda b: setattr(b.ffn_norm, "eps", 0.1),
        lambda b: setattr(b.mixer, "out", nn.Linear(16, 16, bias=False)),
        lambda b: setattr(b, "ffn", lively(ResMLP(16, 32, 16, 3))),
        lambda b: setattr(b, "ffn", nn.Sequential(nn.Linear(16, 16), nn.Tanh())),
        lambda b: setattr(b, "ffn_norm", nn.RMSNorm(16, eps=1e-5)),
        lambda b: setattr(b, "ffn_norm", nn.LayerNorm((50, 16))),
        lambda b: [setattr(b, name, nn.RMSNorm(16)) for name in ("mixer_norm", "ffn_norm")],
        lambda b: b.ffn.layers.__setitem__(1, nn.Identity()),
        lambda b: setattr(b.mixer, "forward", lambda x, mask: 2 * x),
        lambda b: setattr(b.ffn, "forward", torch.tanh),
        lambda b: setattr(b.mixer, "backend", "reference"),
    ],
)
def test_a_block_that_was_changed_by_hand_is_what_it_was_changed_to(change):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    change(block)
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)


def test_sizes_that_do_not_fit_are_refused_before_memory_is_read():
    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1)
    weights = weights_of(block)
    q, how = block.mixer.latents, (1.0, 1e-5, [3, 3, 0, 0], False)
    with pytest.raises(ValueError, match=r"weights are .* they should be"):
        torch.ops.flare.block(x, q, weights[:-1], None, *how)
    with pytest.raises(ValueError, match=r"x is \[1, 50, 12\]; it should be \[1, 50, 16\]"):
        torch.ops.flare.block(x[..., :12], q, weights, None, *how)
    with pytest.raises(ValueError, match=r"mask is \[1, 49\]"):
        torch.ops.flare.block(x, q, weights, torch.ones(1, 49, dtype=torch.bool), *how)
    with pytest.raises(TypeError, match=r"float32 on the CPU, not torch\.float64"):
        torch.ops.flare.block(x.double(), q, weights, None, *how)
    with pytest.raises(ValueError, match="weights are"):
        torch.ops.flare.resmlp(x, [*block.ffn.parameters()][:-1], [16, 16, 16, 3, 1, 1, 0])
    out = torch.ops.flare.block(x.requires_grad_(), q, weights, None, 1.0, 1e-5, [3, 3, 0, 0], True)[0]
    assert torch.isfinite(out).all()
    with pytest.raises(ValueError, match="keep=False keeps nothing for a backward"):
        torch.ops.flare.block(x, q, weights, None, *how)


def test_hooks_for_all_modules_are_called():
    block, x, heard = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(type(module)))
    try:
        block(x)
    finally:
        handle.remove()
    assert heard.count(nn.Linear) == 16


def test_asked_for_by_name_where_there_are_no_kernels(monkeypatch):
    monkeypatch.setattr(library, "_loaded", library.Unavailable("no C++ compiler found"))
    mlp, x = ResMLP(4, 4, 4, 1), noise((5, 4), 1)
    assert torch.isfinite(mlp(x)).all()
    with pytest.raises(ConfigError, match="backend='native': no C"):
        with_backend(mlp, "native")(x)


def test_other_precisions_and_autocast_go_to_pytorch(calls):
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    model.double()(x.double())
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = model(x), with_backend(model, "sdpa")(x)
    assert calls == []
    assert torch.equal(got, want)


def test_a_wrong_mask_or_width_is_refused_as_by_every_backend():
    block = FLAREBlock(16, 4, 8)
    with pytest.raises(ValueError, match=r"it should be torch\.bool"):
        block(noise((1, 50, 16), 1), torch.ones(1, 50))
    with pytest.raises((ValueError, RuntimeError)):
        block(noise((1, 50, 12), 1))


# ---- a good citizen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [False, True])
def test_operators_pass_torchs_own_checks(keep):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((2, 70, 16), 1)
    if keep:
        x.requires_grad_()
    else:
        block.requires_grad_(False)
    mask = torch.arange(70).expand(2, -1) < 60
    arguments = (x, block.mixer.latents, weights_of(block), mask, 1.0, 1e-5, [3, 3, 0, 0], keep)
    torch.library.opcheck(torch.ops.flare.block.default, arguments)
    shape = [16, 16, 16, 3, 1, 1, 0]
    torch.library.opcheck(torch.ops.flare.resmlp.default, (x, list(block.ffn.parameters()), shape))


def test_second_derivatives_are_refused():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1).requires_grad_()
    (slope,) = torch.autograd.grad(block(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        slope.square().sum().backward()


def test_an_undefined_gradient_is_none():
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


def test_weights_changed_between_forward_and_backward_are_refused():
    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1)
    y = block(x)
    with torch.no_grad():
        block.ffn.layers[0].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_a_traced_model_has_no_kernels_of_ours_in_it():
    model, x = build_model("flare", 3, 2, **SMALL).eval(), noise((1, 50, 3), 1)
    traced = torch.jit.trace(model, x)
    assert "flare::" not in str(traced.graph)
    torch.testing.assert_close(traced(x), model(x), rtol=1e-5, atol=1e-6)


def test_activation_checkpointing_gives_the_same_bits():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 70, 16), 1)

    def twice(x):
        return checkpoint(block, checkpoint(block, x, use_reentrant=False), use_reentrant=False)

    gradients = []
    for function in (twice, lambda x: block(block(x))):
        x = x.detach().requires_grad_()
        y = function(x)
        gradients.append(torch.autograd.grad(y, [x, *block.parameters()], noise(y.shape, 4)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_functional_calls_and_gradients_of_torch_func():
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    weights = dict(model.named_parameters())

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    got = torch.func.grad(loss)(weights)
    loss(weights).backward()
    for name, weight in weights.items():
        torch.testing.assert_close(got[name], weight.grad, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_model_has_the_same_gradients_and_takes_any_number_of_points(backend):
    model = lively(build_model("flare", 3, 2, **SMALL))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for points in (50, 130, 77):
        x = noise((2, points, 3), points)
        for a, b in zip(results(compiled, x), results(model, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_an_exported_model_has_no_kernels_of_ours_in_it():
    model, x = lively(build_model("flare", 3, 2, **SMALL)).eval(), noise((1, 50, 3), 1)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: torch.export.Dim("points", min=2)}})
    assert not any("flare" in str(node.target) for node in program.graph.nodes if node.op == "call_function")
    longer = noise((1, 300, 3), 2)
    torch.testing.assert_close(program.module()(longer), model(longer), rtol=1e-5, atol=1e-5)


# ---- slow truths ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_million_points_do_not_add_up_errors():
    block = lively(FLAREBlock(16, 2, 16))
    x = noise((1, 1_000_000, 16), 1)
    want = results(with_backend(block, "sdpa").double(), x.double())
    assert_exact(results(block, x), want)


@pytest.mark.slow
def test_five_hundred_steps_follow_the_eager_ones_and_end_in_equal_models():
    """Loss curves agree with eager ones as well as eager ones with other numbers of threads do."""
    x = noise((8, 300, 2), 0)
    target = torch.sin(2 * x[..., :1]) + 0.5 * x[..., 1:] ** 2 + x.mean(1, keepdim=True)[..., :1]

    def train(backend, threads, seed):
        torch.set_num_threads(threads)
        torch.manual_seed(seed)
        model = build_model("flare", 2, 1, channels=32, blocks=2, heads=4, latents=16, backend=backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        losses = []
        for step in range(500):
            pair = torch.tensor([step % 4, 4 + step % 4])
            loss = (model(x[pair]) - target[pair]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return model, torch.tensor(losses)

    def distance(a, b):
        return (a.view(25, 20).mean(1).log() - b.view(25, 20).mean(1).log()).abs().max().item()

    before = torch.get_num_threads()
    among_eager, to_eager = [], []
    try:
        for seed in range(3):  # how soon rounding shows is a matter of luck
            one, two = (train("sdpa", threads, seed)[1] for threads in (1, 2))
            model, native = train("native", 2, seed)
            assert native[-20:].mean() < 0.1 * native[:20].mean(), "it learned nothing, so nothing was compared"
            torch.testing.assert_close(native[:50], one[:50], rtol=1e-4, atol=0)
            among_eager.append(distance(one, two))
            to_eager.append(distance(native, one))
    finally:
        torch.set_num_threads(before)
    assert max(to_eager) <= max(among_eager)
    check(model, x)  # with weights that were really trained
