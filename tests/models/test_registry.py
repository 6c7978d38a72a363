"""The model registry: built-in and registered models, their options, and what all models have in common."""

import doctest
import subprocess
import sys

import pytest
import torch
from torch import nn

import flare.mixer
import flare.models.flare
from flare.models import MODELS, build_model, check_options, model_options, register_model
from flare.utils.errors import ConfigError

SMALL = {
    "flare": {"latents": 8, "kv_depth": 1, "ffn_depth": 1, "io_depth": 1},
    "transformer": {"io_depth": 1},
    "perceiver": {"latents": 8, "io_depth": 1},
    "transolver": {"slices": 8},
    "transolver++": {"slices": 8},
    "lno": {"modes": 8, "mlp_depth": 1},
    "gnot": {},
}
"""Every built-in model and options that make it small."""
GRID = {"grid": (5, 4)}
VARIANTS = [
    *((name, {}) for name in SMALL),
    *(("flare", option) for option in ({"latent_blocks": 1}, {"qk_norm": True}, {"fourier": 2}, {"ffn": "standard"})),
    ("flare", {"backend": "reference"}),
    ("perceiver", {"flavour": "self"}),
    ("transolver", GRID),
    ("transolver", {"unified_pos": True, **GRID}),
    ("gnot", {"unified_pos": True, **GRID}),
]


def small(name, **options):
    return build_model(name, 3, 2, **{"channels": 16, "blocks": 1, "heads": 4, **SMALL[name], **options})


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    """Drop what a test registers."""
    monkeypatch.setattr(MODELS, "_entries", dict(MODELS._entries))


def test_registered_model_is_built_with_its_own_options():
    @register_model("own")
    class Own(nn.Module):
        def __init__(self, in_dim, out_dim, width=8, *, name: str = "x"):
            super().__init__()
            self.linear = nn.Linear(in_dim, out_dim * width)

    assert "own" in MODELS
    assert model_options("own") == {"width": 8, "name": "x"}
    model = build_model("own", 3, 2, width=4)
    assert type(model) is Own
    assert model.linear.out_features == 8
    with pytest.raises(ConfigError, match="'width'"):
        build_model("own", 3, 2, widht=4)


def test_unknown_names_and_names_of_other_models_are_refused():
    with pytest.raises(ConfigError, match="'flare'"):
        build_model("flair", 2, 1)
    with pytest.raises(ConfigError, match="'flare'"):

        @register_model("flare")
        class Other(nn.Module):
            pass


def test_integer_is_accepted_for_a_float_and_none_for_anything():
    check_options("flare", {"scale": 2, "ffn_ratio": None, "channels": None})
    with pytest.raises(ConfigError, match=r"channels=64\.0"):
        check_options("flare", {"channels": 64.0})


def test_registry_does_not_import_torch():
    code = "import sys, flare.models; flare.models.MODELS.names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in SMALL), VARIANTS[-1]], ids=str)
def test_forward_and_backward_on_the_meta_device(name, options):
    with torch.device("meta"):
        model = small(name, **options).bfloat16()
    x = torch.empty(2, 20, 3, device="meta", dtype=torch.bfloat16, requires_grad=True)
    for mask in (None, torch.empty(2, 20, device="meta", dtype=torch.bool)):
        y = model(x, mask)
        assert (y.shape, y.dtype, y.is_meta) == ((2, 20, 2), x.dtype, True)
        y.sum().backward()
    assert all(p.grad.is_meta for p in [x, *model.parameters()] if p.requires_grad)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
def test_default_dtype_and_device_do_not_matter_after_construction(name, options):
    model, x = small(name, **options).eval(), torch.randn(2, 20, 3)
    expected = model(x)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        assert torch.equal(model(x), expected)
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("module", [flare.mixer, flare.models, flare.models.flare], ids=lambda module: module.__name__)
def test_examples_in_docstrings(module):
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted
