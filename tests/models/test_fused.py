"""Kernels replace modules that are as built, with the same results: eager, compiled, exported, trained."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from flare.mixer.native import library
from flare.models import build_model, use_backend
from flare.models.flare import FLARE, FLAREBlock, ResMLP
from flare.train.distributed.fabric import leave_ranks
from flare.utils.errors import ConfigError
from tests.exact import noise
from tests.layers import SMALL, check, lively, results, with_backend

pytestmark = pytest.mark.kernels
SHALLOW = SMALL | {"blocks": 1, "kv_depth": 0, "ffn_depth": 0, "io_depth": 0}
"""Compiling takes time in proportion to the number of layers."""


def test_model_runs_in_kernels(calls):
    build_model("flare", 3, 2, **SMALL)(noise((1, 50, 3), 1))
    assert calls == ["flare_resmlp", "flare_block", "flare_block", "flare_resmlp"]


def test_backend_of_a_model_can_be_changed(calls):
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    want = model(x)
    calls.clear()
    for backend in ("sdpa", "reference"):
        torch.testing.assert_close(use_backend(model, backend)(x), want, rtol=1e-5, atol=1e-6)
    assert {module.backend for module in model.modules() if hasattr(module, "backend")} == {"reference"}
    assert calls == []
    assert torch.equal(use_backend(model, "auto")(x), want)
    with pytest.raises(ConfigError, match="'native'"):
        use_backend(model, "natve")


@pytest.mark.parametrize(
    "where", ["mixer", "mixer.key", "mixer.key.layers.0", "ffn.activation", "mixer_norm", "mixer.out"]
)
def test_hooks_are_called(where):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    want, called = block(x), []
    handle = block.get_submodule(where).register_forward_hook(lambda *_: called.append(1))
    torch.testing.assert_close(block(x), want, rtol=1e-5, atol=1e-5)
    assert called
    handle.remove()
    assert torch.equal(block(x), want)


def test_global_hooks_are_called():
    block, x, called = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: called.append(type(module)))
    try:
        block(x)
    finally:
        handle.remove()
    assert called.count(nn.Linear) == 16


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
        lambda b: setattr(b.mixer, "out", nn.Tanh()),
        lambda b: setattr(b, "ffn", lively(ResMLP(16, 32, 16, 3))),
        lambda b: setattr(b, "ffn", nn.Sequential(nn.Linear(16, 16), nn.Tanh())),
        lambda b: setattr(b, "ffn_norm", nn.RMSNorm(16, eps=1e-5)),
        lambda b: setattr(b, "ffn_norm", nn.LayerNorm((50, 16))),
        lambda b: [setattr(b, name, nn.RMSNorm(16)) for name in ("mixer_norm", "ffn_norm")],
        lambda b: b.ffn.layers.__setitem__(1, nn.Identity()),
        lambda b: setattr(b.mixer, "forward", lambda x, mask: 2 * x),
        lambda b: setattr(b.mixer, "queries_and_keys", lambda x: (b.mixer.latents, torch.zeros(1, 4, 50, 4))),
        lambda b: setattr(b.ffn, "forward", torch.tanh),
        lambda b: setattr(b.mixer, "backend", "reference"),
        lambda b: setattr(b.mixer, "scale", torch.tensor(0.5)),
        lambda b: setattr(b, "ffn_norm", nn.LayerNorm(16, elementwise_affine=False)),
        lambda b: [prune.l1_unstructured(b.mixer_norm, "weight", 0.3), prune.remove(b.mixer_norm, "weight")],
        lambda b: [prune.l1_unstructured(b.ffn.layers[0], "weight", 0.3), prune.remove(b.ffn.layers[0], "weight")],
        lambda b: b.__setstate__(lively(FLAREBlock(16, 4, 8), 5).__dict__),
        lambda b: b.ffn.__setstate__(lively(ResMLP(16, 16, 16, 3), 5).__dict__),
        lambda b: setattr(b.ffn.layers, "_modules", {str(i): nn.Linear(16, 16) for i in range(5)}),
        lambda b: nn.utils.parametrizations.weight_norm(b.ffn.layers[1]),
        lambda b: delattr(b.mixer_norm, "eps") or setattr(b.mixer_norm, "eps", 1e-3),
    ],
)
def test_changed_blocks_compute_what_they_were_changed_to(change):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)  # makes a plan that must become invalid
    change(block)
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("place", "layer"), [(0, nn.Linear(1, 16)), (-1, nn.Linear(16, 1))])
def test_widths_that_broadcast_go_to_pytorch(place, layer):
    mlp = lively(ResMLP(16, 16, 16, 1))
    mlp.layers[place] = layer
    x = noise((50, layer.in_features), 1)
    torch.testing.assert_close(mlp(x), with_backend(mlp, "sdpa")(x))


class OwnMixer(nn.Module):
    """A mixer without any of FLARE's attributes."""

    def forward(self, x, mask=None):
        return x.mean(1, keepdim=True) - x if mask is None else x * mask[..., None]


class ScaledFLARE(FLARE):
    def queries_and_keys(self, x_BNC):
        q_HMD, k_BHND = super().queries_and_keys(x_BNC)
        return 3 * q_HMD, k_BHND


class ScaledMLP(ResMLP):
    def forward(self, x):
        return 3 * super().forward(x)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("mixer", OwnMixer()),
        ("mixer", lively(ScaledFLARE(16, 4, 8))),
        ("ffn", lively(ScaledMLP(16, 16, 16, 3))),
        ("ffn", nn.Tanh()),
        ("mixer_norm", nn.Identity()),
        ("ffn_norm", nn.Tanh()),
    ],
)
@pytest.mark.parametrize("masked", [False, True])
def test_own_modules_in_a_block_are_called(name, module, masked):
    block, x, called = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1), []
    mask = torch.arange(50)[None] < 40 if masked else None
    block(x, mask)
    setattr(block, name, module)
    h = x + block.mixer(block.mixer_norm(x), mask)
    expected = h + block.ffn(block.ffn_norm(h))
    assert torch.equal(block(x, mask), expected)
    handle = module.register_forward_hook(lambda *_: called.append(1))
    block(x, mask)
    handle.remove()
    assert called


def test_tensor_subclasses_go_to_pytorch():
    class Halved(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            plain = [a.as_subclass(torch.Tensor) / 2 if type(a) is cls else a for a in args]
            return function(*plain, **(kwargs or {}))

    mlp, x = lively(ResMLP(16, 16, 16, 1)), noise((50, 16), 1)
    mlp(x)
    halved = with_backend(mlp, "sdpa")
    halved.layers[1].bias.data /= 2
    mlp.layers[1]._parameters["bias"] = mlp.layers[1].bias.detach().as_subclass(Halved)
    torch.testing.assert_close(mlp(x), halved(x))


def test_replaced_weights_are_used(calls):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)
    block.ffn.layers[0].weight = nn.Parameter(noise((16, 16), 2))
    block.mixer.key.layers[0].weight.data = noise((16, 16), 3).t()
    block.mixer_norm.bias.data.fill_(0.5)
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)
    assert calls == ["flare_block", "flare_block"]
    block.mixer.out.bias = None
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)
    assert calls[2:] == ["flare_resmlp"] * 3, "the residual MLPs still use their own kernel"


def test_cached_plan_does_not_keep_a_module_alive():
    block = FLAREBlock(16, 4, 8)
    block(noise((1, 50, 16), 1))
    block.ffn.owner = [block]
    block(noise((1, 50, 16), 1))
    ended = weakref.ref(block)
    del block
    gc.collect()
    assert ended() is None


def test_copies_and_pickles_drop_the_cached_plan():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    want = block(x)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert other.__dict__["_fused_plan"] is None
        assert torch.equal(other(x), want)


def test_profiler_sees_the_operators():
    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1)
    with torch.profiler.profile() as profile:
        block(x).sum().backward()
    assert {"flare::block", "flare::block_backward"} <= {event.name for event in profile.events()}


def test_native_without_kernels_is_refused(monkeypatch):
    monkeypatch.setattr(library, "_loaded", library.KernelsUnavailable("no compiler"))
    mlp, x = ResMLP(4, 4, 4, 1), noise((5, 4), 1)
    assert torch.isfinite(mlp(x)).all()
    with pytest.raises(ConfigError, match="native"):
        with_backend(mlp, "native")(x)


def test_other_precisions_and_autocast_go_to_pytorch(calls):
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    model.double()(x.double())
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = model(x), with_backend(model, "sdpa")(x)
    assert calls == []
    assert torch.equal(got, want)


def test_wrong_mask_or_width_is_refused():
    block = FLAREBlock(16, 4, 8)
    with pytest.raises(ValueError, match="mask"):
        block(noise((1, 50, 16), 1), torch.ones(1, 50))
    with pytest.raises((ValueError, RuntimeError)):
        block(noise((1, 50, 12), 1))


# ---- whole models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{}, {"norm": "rms"}, {"qk_norm": True}, {"latent_blocks": 1}, {"shared_latents": True}, {"fourier": 2}],
)
def test_model_variants_equal_float64(options):
    model = lively(build_model("flare", 3, 2, **SMALL, **options))
    check(model, noise((2, 90, 3), 1), torch.arange(90).expand(2, -1) < torch.tensor([[90], [40]]))


def test_distributed_training_runs_in_kernels(calls, tmp_path):
    model, x = build_model("flare", 3, 2, **SMALL), noise((2, 90, 3), 1)
    want = results(model, x)
    calls.clear()
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        parallel = nn.parallel.DistributedDataParallel(model)
        y = parallel(x)
        y.backward(noise(y.shape, 4))
    finally:
        leave_ranks()  # destroy_process_group may hang while the reducer is still alive
    assert calls.count("flare_block") == calls.count("flare_block_backward") == 2
    for weight, gradient in zip(model.parameters(), want[2:], strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=0, atol=0)


def test_functional_call_and_torch_func_gradients():
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    weights = dict(model.named_parameters())

    def loss(weights):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    got = torch.func.grad(loss)(weights)
    loss(weights).backward()
    for name, weight in weights.items():
        torch.testing.assert_close(got[name], weight.grad, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_model_has_the_same_gradients_for_any_number_of_points(backend):
    model = lively(build_model("flare", 3, 2, **SHALLOW))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    for points in (50, 130):
        x = noise((2, points, 3), points)
        for a, b in zip(results(compiled, x), results(model, x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_exported_model_contains_no_flare_operators():
    model, x = lively(build_model("flare", 3, 2, **SHALLOW)).eval(), noise((1, 50, 3), 1)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {1: torch.export.Dim("points", min=2)}})
    assert not any("flare" in str(node.target) for node in program.graph.nodes if node.op == "call_function")
    longer = noise((1, 300, 3), 2)
    torch.testing.assert_close(program.module()(longer), model(longer), rtol=1e-5, atol=1e-5)
