"""A module goes to the kernels as long as it is as built, and to PyTorch as soon as it is not."""

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
from flare.models.flare import FLAREBlock, ResMLP
from flare.utils.errors import ConfigError
from tests.exact import noise
from tests.layers import SMALL, lively, with_backend

pytestmark = pytest.mark.kernels


def test_the_whole_model_runs_in_kernels(calls):
    build_model("flare", 3, 2, **SMALL)(noise((1, 50, 3), 1))
    assert calls == ["flare_resmlp", "flare_block", "flare_block", "flare_resmlp"]


def test_the_backend_of_a_model_can_be_changed(calls):
    model, x = build_model("flare", 3, 2, **SMALL), noise((1, 50, 3), 1)
    want = model(x)
    calls.clear()
    torch.testing.assert_close(use_backend(model, "sdpa")(x), want, rtol=1e-5, atol=1e-6)
    assert calls == []
    assert torch.equal(use_backend(model, "auto")(x), want)
    with pytest.raises(ConfigError, match="unknown mixer backend 'natve'; did you mean 'native'"):
        use_backend(model, "natve")


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


def test_hooks_for_all_modules_are_called():
    block, x, heard = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: heard.append(type(module)))
    try:
        block(x)
    finally:
        handle.remove()
    assert heard.count(nn.Linear) == 16


def test_a_module_that_was_replaced_is_used():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)
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
        lambda b: setattr(b.mixer, "scale", torch.tensor(0.5)),
        lambda b: setattr(b, "ffn_norm", nn.LayerNorm(16, elementwise_affine=False)),
        lambda b: [prune.l1_unstructured(b.mixer_norm, "weight", 0.3), prune.remove(b.mixer_norm, "weight")],
        lambda b: [prune.l1_unstructured(b.ffn.layers[0], "weight", 0.3), prune.remove(b.ffn.layers[0], "weight")],
        lambda b: b.__setstate__(lively(FLAREBlock(16, 4, 8), 5).__dict__),
        lambda b: b.ffn.__setstate__(lively(ResMLP(16, 16, 16, 3), 5).__dict__),
        lambda b: setattr(b.ffn.layers, "_modules", {str(i): nn.Linear(16, 16) for i in range(5)}),
        lambda b: delattr(b.mixer_norm, "eps") or setattr(b.mixer_norm, "eps", 1e-3),
    ],
)
def test_a_block_that_was_changed_by_hand_is_what_it_was_changed_to(change):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)  # so that there is something to remember
    change(block)
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("place", "layer"), [(0, nn.Linear(1, 16)), (-1, nn.Linear(16, 1))])
def test_layers_whose_widths_broadcast_go_to_pytorch(place, layer):
    mlp = lively(ResMLP(16, 16, 16, 1))
    mlp.layers[place] = layer
    x = noise((50, layer.in_features), 1)
    torch.testing.assert_close(mlp(x), with_backend(mlp, "sdpa")(x))


def test_weights_of_another_kind_go_to_pytorch():
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


def test_a_class_that_was_patched_is_used(monkeypatch, calls):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)
    honest = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: 2 * honest(self, x))
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)
    assert calls == ["flare_block"]


def test_other_weights_in_the_same_modules_are_used(calls):
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    block(x)
    block.ffn.layers[0].weight = nn.Parameter(noise((16, 16), 2))
    block.mixer.key.layers[0].weight.data = noise((16, 16), 3).t()
    block.mixer_norm.bias.data.fill_(0.5)
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)
    assert calls == ["flare_block", "flare_block"]
    block.mixer.out.bias = None
    torch.testing.assert_close(block(x), with_backend(block, "sdpa")(x), rtol=1e-5, atol=1e-4)
    assert calls[2:] == ["flare_resmlp"] * 3, "the residual MLPs go on by kernels of their own"


def test_what_is_remembered_of_a_module_ends_with_it():
    block = FLAREBlock(16, 4, 8)
    block(noise((1, 50, 16), 1))
    block.ffn.owner = [block]
    block(noise((1, 50, 16), 1))
    ended = weakref.ref(block)
    del block
    gc.collect()
    assert ended() is None


def test_a_pickle_and_a_copy_have_nothing_to_remember():
    block, x = lively(FLAREBlock(16, 4, 8)), noise((1, 50, 16), 1)
    want = block(x)
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert other.__dict__["_look"] is None
        assert torch.equal(other(x), want)


def test_a_profiler_sees_the_operators():
    block, x = FLAREBlock(16, 4, 8), noise((1, 50, 16), 1)
    with torch.profiler.profile() as profile:
        block(x).sum().backward()
    assert {"flare::block", "flare::block_backward"} <= {event.name for event in profile.events()}


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
