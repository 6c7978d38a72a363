"""Points in chunks give the output of all points at once; latents alone give it at any point."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from flare.models import build_model, streaming
from flare.models.flare import FLAREBlock
from flare.models.streaming import Stream, can_stream, query
from flare.train.presets import load_config, preset_path
from flare.utils.errors import ConfigError

VARIANTS = [{}, {"latent_blocks": 2}, {"shared_latents": True}, {"qk_norm": True, "norm": "rms"}, {"scale": None}]
VARIANTS += [{"fourier": 3}]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def case(dtype, **options):
    torch.manual_seed(0)
    model = build_model("flare", 3, 2, channels=32, blocks=3, heads=4, latents=8, **options).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are so small that all outputs are equal
            parameter += 0.1 * torch.randn_like(parameter)
    return model, torch.randn(2, 41, 3, dtype=dtype), torch.rand(2, 41) > 0.3


def streamed(model, x, mask=None, **options):
    answers = []

    def write(start, stop, y):
        assert start == sum(answer.shape[1] for answer in answers)
        assert y.shape[1] == stop - start
        answers.append(y)

    found = Stream(
        model=model,
        points=x.shape[1],
        read=lambda start, stop: x[:, start:stop],
        mask=lambda start, stop: None if mask is None else mask[:, start:stop],
        **options,
    )
    latents = found.forward(write)
    return torch.cat(answers, 1), latents


def error(found, truth, mask=None):
    """Return the relative L2 error, over the real points if a mask is given."""
    real = ... if mask is None else mask
    return float((found - truth)[real].norm() / truth[real].norm())


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all real", "masked"])
def test_chunks_of_any_size_give_the_same_output(options, dtype, masked):
    model, x, mask = case(dtype, **options)
    mask = mask if masked else None
    with torch.no_grad():
        whole = model(x, mask)
    for chunk in (7,) if options else (1, 40, 41):
        answer, latents = streamed(model, x, mask, chunk=chunk)
        assert error(answer, whole) < TOLERANCE[dtype], "includes padded points"
        with torch.no_grad():
            assert error(query(model, x, latents), whole, mask) < TOLERANCE[dtype]


PAPER = ["elasticity", "drivaer-1m"]
"""Presets of 8 blocks and 64 to 512 latents, 8 or 16 heads."""


def deep_case(preset, noise):
    torch.manual_seed(0)
    sizes = dict(load_config(preset_path(preset)).model)
    assert sizes["blocks"] == 8
    model = build_model(sizes.pop("name"), 3, 1, **sizes).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += noise * torch.randn_like(parameter)
    mask = torch.rand(2, 200) > 0.3
    mask[1, :70] = False  # a chunk without a real point
    return model, torch.rand(2, 200, 3), mask


@pytest.mark.parametrize(("preset", "noise"), [("elasticity", 0.0), *((preset, 0.05) for preset in PAPER)])
def test_eight_blocks_in_chunks_are_as_accurate_as_the_whole(preset, noise):
    model, x, mask = deep_case(preset, noise)
    whole, truth = model(x, mask), deepcopy(model).double()(x.double(), mask)
    answer, latents = streamed(model, x, mask, chunk=77)
    for found in (answer[mask], query(model, x, latents)[mask]):
        assert error(found, truth[mask]) < 1.25 * error(whole[mask], truth[mask])
        if noise == 0:
            assert error(found, whole[mask]) < TOLERANCE[torch.float32]
    answer, _ = streamed(deepcopy(model).double(), x.double(), mask, chunk=77)
    assert error(answer, truth) < TOLERANCE[torch.float64]


def test_features_in_a_file_give_the_same_bits(monkeypatch, tmp_path):
    model, x, mask = case(torch.float32)
    kept, _ = streamed(model, x, mask, chunk=7)
    monkeypatch.setattr(streaming, "MOST_IN_MEMORY", 0)
    filed, _ = streamed(model, x, mask, chunk=7, scratch=tmp_path)
    assert torch.equal(kept, filed)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_point_once_per_block():
    model, x, _ = case(torch.float32)
    counted = []
    streamed(model, x, chunk=7, done=counted.append)
    assert sum(counted) == 3 * 41


def test_latents_of_the_elasticity_model_take_128_kb():
    model = build_model("flare", 2, 1)
    latents = Stream(model=model, points=300, read=lambda start, stop: torch.rand(1, stop - start, 2)).encode()
    assert sum(z.numel() * z.element_size() for z in latents) == 131_072  # 128 KB for the Elasticity model


class OwnBlock(FLAREBlock):
    def forward(self, x_BNC, mask=None):
        return 2 * super().forward(x_BNC, mask)


@pytest.mark.parametrize(
    ("where", "change"),
    [
        (r"blocks\.0\.mixer", lambda model: setattr(model.blocks[0], "mixer", nn.Bilinear(2, 2, 2))),
        (r"blocks\.1", lambda model: model.blocks.__setitem__(1, OwnBlock(32, 4, 8))),
        (r"blocks\.2\.mixer", lambda model: model.blocks[2].mixer.register_forward_hook(print)),
        (r"blocks\.0", lambda model: setattr(model.blocks[0], "forward", torch.tanh)),
    ],
)
def test_streams_do_not_bypass_modules_hooks_or_methods_of_users(where, change):
    model, x, _ = case(torch.float32)
    assert can_stream(model)
    change(model)
    assert not can_stream(model)
    with pytest.raises(ConfigError, match=where):
        streamed(model, x)


def test_invalid_streams_are_refused():
    model, x, _ = case(torch.float32)
    with pytest.raises(ConfigError, match="chunk=0"):
        streamed(model, x, chunk=0)
    with pytest.raises(ConfigError, match="Transolver"):
        streamed(build_model("transolver", 3, 2, channels=16, blocks=1, heads=2), x)
