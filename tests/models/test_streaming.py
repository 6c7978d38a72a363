"""Points in chunks give the answer of all points at once; latents alone answer at any point."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from flare import mixer
from flare.mixer import chunked as parts
from flare.mixer.chunked import Gathered, Part, encode_part
from flare.models import build_model
from flare.models import streaming as stream
from flare.models.streaming import Stream, query
from flare.train.presets import load_config, preset_path
from flare.utils.errors import ConfigError

VARIANTS = [{}, {"latent_blocks": 2}, {"shared_latents": True}, {"qk_norm": True, "norm": "rms"}, {"scale": None}]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}


def case(dtype, **options):
    torch.manual_seed(0)
    model = build_model("flare", 3, 2, channels=32, blocks=3, heads=4, latents=8, **options).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are so small that every point gets the same answer
            parameter += 0.1 * torch.randn_like(parameter)
    return model, torch.randn(2, 101, 3, dtype=dtype), torch.rand(2, 101) > 0.3


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
    """Relative L2, over the real points where a mask is given."""
    real = ... if mask is None else mask
    return float((found - truth)[real].norm() / truth[real].norm())


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["all real", "masked"])
def test_chunks_of_any_size_give_the_whole_answer(options, dtype, masked):
    model, x, mask = case(dtype, **options)
    mask = mask if masked else None
    with torch.no_grad():
        whole = model(x, mask)
    for chunk in (1, 7, 50, 101, 500):
        answer, latents = streamed(model, x, mask, chunk=chunk)
        assert error(answer, whole) < TOLERANCE[dtype], "at padded points, too"
        with torch.no_grad():
            assert error(query(model, x, latents), whole, mask) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_no_chunk_size_is_special(dtype):
    model, x, mask = case(dtype)
    x, mask = x[:, :40], mask[:, :40]
    with torch.no_grad():
        whole = model(x, mask)
    for chunk in range(1, x.shape[1] + 2):
        assert error(streamed(model, x, mask, chunk=chunk)[0], whole) < TOLERANCE[dtype], chunk


PAPER = ["elasticity", "darcy", "lpbf", "drivaer-1m"]
"""Presets of 8 blocks and 64 to 512 latents, 8 or 16 heads."""


def deep_case(preset, noise):
    torch.manual_seed(0)
    sizes = dict(load_config(preset_path(preset)).model)
    assert sizes["blocks"] == 8
    model = build_model(sizes.pop("name"), 3, 1, **sizes).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter += noise * torch.randn_like(parameter)
    mask = torch.rand(2, 200) > 0.3
    mask[1, :70] = False  # a chunk without a point
    return model, torch.rand(2, 200, 3), mask


@pytest.mark.parametrize("preset", PAPER)
@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["as initialised", "with large weights"])
def test_eight_blocks_in_chunks_are_as_near_to_float64_as_the_whole(preset, noise):
    model, x, mask = deep_case(preset, noise)
    whole, truth = model(x, mask), deepcopy(model).double()(x.double(), mask)
    for chunk in (64, 77):
        answer, latents = streamed(model, x, mask, chunk=chunk)
        for found in (answer[mask], query(model, x, latents)[mask]):
            assert error(found, truth[mask]) < 1.25 * error(whole[mask], truth[mask])
            if noise == 0:
                assert error(found, whole[mask]) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("preset", PAPER)
@pytest.mark.parametrize("noise", [0.0, 0.05], ids=["as initialised", "with large weights"])
def test_features_after_eight_blocks_are_those_of_the_whole(preset, noise):
    """Before the head, that is, whose answer may be so small beside them that their rounding shows."""
    model, x, mask = deep_case(preset, noise)
    model.head_norm = model.head = nn.Identity()
    assert error(streamed(model, x, mask, chunk=64)[0], model(x, mask)) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("preset", PAPER)
def test_eight_blocks_in_chunks_are_the_whole_in_float64(preset):
    model, x, mask = deep_case(preset, 0.05)
    model, x = model.double(), x.double()
    assert error(streamed(model, x, mask, chunk=77)[0], model(x, mask)) < TOLERANCE[torch.float64]


def test_rounding_features_to_float32_once_a_block_costs_as_much_as_chunks_do():
    """No order of sums in float32 brings chunks and whole nearer than this: all else is done in float64 here."""
    model, x, _ = deep_case("elasticity", 0.05)
    whole, model, x = model(x), model.double(), x.double()
    exact = rounded = model.lift(x)
    for block in model.blocks:
        exact, rounded = block(exact), block(rounded).float().double()
    truth, floor = model.head(model.head_norm(exact)), model.head(model.head_norm(rounded))
    assert error(floor, truth) > 0.1 * error(whole, truth)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_every_backend_gathers_the_same_parts(backend, monkeypatch):
    monkeypatch.setattr(parts, "TILE", 7)
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 8, 6), 3 * torch.randn(2, 4, 40, 6), torch.randn(2, 4, 40, 6)
    mask = torch.rand(2, 40) > 0.4
    mask[0, 7:14] = False  # a tile without a point
    truth = mixer.encode(q.double(), k.double(), v.double(), mask=mask, backend="reference")
    scores = torch.einsum("hmd,bhnd->bhmn", q.double(), k.double()).masked_fill(~mask[:, None, None], -torch.inf)
    part = encode_part(q, k, v, mask=mask, backend=backend)
    torch.testing.assert_close(part.z_BHMD.double(), truth, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part.log_BHM.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_a_part_without_a_point_weighs_nothing(backend):
    torch.manual_seed(2)
    q, k, v = torch.randn(4, 8, 6), torch.randn(2, 4, 40, 6), torch.randn(2, 4, 40, 6)
    nobody = torch.zeros(2, 5, dtype=torch.bool)
    gathered = Gathered()
    gathered.add(encode_part(q, k[:, :, :0], v[:, :, :0], backend=backend))
    gathered.add(encode_part(q, k[:, :, :5], v[:, :, :5], mask=nobody, backend=backend))
    assert (gathered.latents(torch.float32) == 0).all()
    whole = encode_part(q, k, v, backend=backend)
    gathered.add(whole)
    torch.testing.assert_close(gathered.latents(torch.float32), whole.z_BHMD)


def test_scores_beyond_the_range_of_exp_merge():
    z, far = torch.randn(1, 1, 3, 2), torch.tensor([[[500.0, -500.0, 0.0]]])
    gathered = Gathered()
    gathered.add(Part(z, far))
    gathered.add(Part(-z, far - 1000))
    torch.testing.assert_close(gathered.latents(torch.float32), z)


def test_a_file_in_place_of_memory_changes_nothing(monkeypatch, tmp_path):
    model, x, mask = case(torch.float32)
    kept, _ = streamed(model, x, mask, chunk=7)
    monkeypatch.setattr(stream, "MOST_IN_MEMORY", 0)
    filed, _ = streamed(model, x, mask, chunk=7, scratch=tmp_path)
    assert torch.equal(kept, filed)
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_point_once_a_block():
    model, x, _ = case(torch.float32)
    counted = []
    streamed(model, x, chunk=7, done=counted.append)
    assert sum(counted) == 3 * 101


def test_a_query_depends_smoothly_on_the_point():
    model, x, _ = case(torch.float64)
    _, latents = streamed(model, x)
    latents, at = [z.detach() for z in latents], torch.randn(2, 4, 3, dtype=torch.float64)
    model.requires_grad_(False)
    away = [float((query(model, at + step, latents) - query(model, at, latents)).abs().max()) for step in (1e-4, 1e-6)]
    assert away[1] == pytest.approx(away[0] / 100, rel=0.02)


def test_latents_are_few_numbers():
    model = build_model("flare", 2, 1)
    latents = Stream(model=model, points=300, read=lambda start, stop: torch.rand(1, stop - start, 2)).encode()
    assert sum(z.numel() * z.element_size() for z in latents) == 131_072  # 128 KB for the Elasticity model


def test_what_cannot_be_streamed_is_refused():
    model, x, _ = case(torch.float32)
    with pytest.raises(ConfigError, match="chunk=0"):
        streamed(model, x, chunk=0)
    with pytest.raises(ConfigError, match="Transolver cannot take its points in chunks"):
        streamed(build_model("transolver", 3, 2, channels=16, blocks=1, heads=2), x)
