"""Points in chunks give the answer of all points at once; latents alone answer at any point."""

import pytest
import torch

from flare.errors import ConfigError
from flare.mixer.parts import Gathered, Part, encode_part
from flare.models import build_model, stream
from flare.models.stream import Stream, query

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
    answer = x.new_full((*x.shape[:2], 2), torch.nan)

    def write(start, stop, y):
        answer[:, start:stop] = y

    found = Stream(
        model=model,
        points=x.shape[1],
        read=lambda start, stop: x[:, start:stop],
        mask=lambda start, stop: None if mask is None else mask[:, start:stop],
        **options,
    )
    return answer, found.forward(write)


def error(found, truth, mask=None):
    """Relative L2 over the real points."""
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
        assert error(answer, whole, mask) < TOLERANCE[dtype]
        with torch.no_grad():
            assert error(query(model, x, latents), whole, mask) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", ["reference", "sdpa", "auto"])
def test_every_backend_gathers_the_same_parts(backend):
    torch.manual_seed(1)
    q, k, v = torch.randn(4, 8, 6), 3 * torch.randn(2, 4, 40, 6), torch.randn(2, 4, 40, 6)
    truth = encode_part(q.double(), k.double(), v.double(), backend="reference")
    part = encode_part(q, k, v, backend=backend)
    torch.testing.assert_close(part.z_BHMD.double(), truth.z_BHMD, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part.log_BHM.double(), truth.log_BHM, rtol=1e-5, atol=1e-5)


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
