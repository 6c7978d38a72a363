"""Fourier features: their formula, and a model that has them in every way to compute it."""

import math

import pytest
import torch

from flare import build_model
from flare.models.fourier import FourierFeatures
from flare.models.streaming import Stream, query
from flare.utils.errors import ConfigError

SIZES = {"channels": 16, "blocks": 2, "heads": 2, "latents": 8, "kv_depth": 1, "ffn_depth": 1, "fourier": 3}


def test_every_input_has_its_waves():
    x = torch.randn(2, 5, 3)
    waves = [wave(math.pi / 2 * 2**k * x) for wave in (torch.sin, torch.cos) for k in range(3)]
    features = FourierFeatures(3)
    torch.testing.assert_close(features(x), torch.cat([x, *waves], dim=-1))
    assert features(x).shape[-1] == features.width(3)


def test_a_model_has_as_many_more_weights_as_the_features_have_channels():
    counts = [sum(p.numel() for p in build_model("flare", 2, 1, fourier=octaves).parameters()) for octaves in (0, 4)]
    assert counts == [592_641, 592_641 + 64 * 2 * 2 * 4]


def test_kernels_give_what_layers_give():
    outputs, gradients = [], []
    for backend in ("native", "sdpa"):
        torch.manual_seed(0)
        model, x = build_model("flare", 2, 1, **SIZES, backend=backend), torch.randn(2, 40, 2, requires_grad=True)
        y = model(x)
        outputs.append(y)
        gradients.append(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_chunks_and_queries_give_what_the_whole_gives():
    torch.manual_seed(0)
    model, x = build_model("flare", 2, 1, **SIZES), torch.randn(1, 50, 2)
    whole = model(x).detach()
    parts = torch.empty_like(whole)

    def write(start, stop, y):
        parts[:, start:stop] = y

    latents = Stream(model=model, points=50, read=lambda start, stop: x[:, start:stop], chunk=16).forward(write)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(query(model, x[:, :7], latents).detach(), whole[:, :7], rtol=1e-4, atol=1e-6)


def test_less_than_no_octaves_are_refused():
    with pytest.raises(ConfigError, match="fourier"):
        build_model("flare", 2, 1, fourier=-1)
