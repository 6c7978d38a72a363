"""Muon: updates are near the polar factor, and torch's Muon takes the same path."""

import numpy as np
import pytest
import torch
from torch import nn

from flare.train.optimizers.muon import COEFFICIENTS, Muon, orthogonalize
from tests.train.optimizers.paths import follow, random_gradients

CLASSIC = ((3.4445, -4.7750, 2.0315),) * 5


def with_singular_values(values, rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    u, v = (np.linalg.qr(rng.standard_normal((n, len(values))))[0] for n in (rows, columns))
    return torch.from_numpy(u @ np.diag(values) @ v.T), torch.from_numpy(u @ v.T)


@pytest.mark.parametrize(("rows", "columns"), [(48, 48), (32, 80), (80, 32)])
def test_newton_schulz_has_the_singular_vectors_of_the_polar_factor_and_values_near_one(rows, columns):
    values = np.geomspace(1, 0.02, 32)
    matrix, polar = with_singular_values(values, rows, columns)
    assert values.min() / np.linalg.norm(values) > 0.003
    found = orthogonalize(matrix[None])[0]
    aligned = torch.linalg.svdvals(found)[:32]
    assert aligned.min() > 0.8 - 1e-3
    assert aligned.max() < 1.2 + 1e-3
    assert torch.linalg.matrix_norm(found - polar, 2) < 0.2 + 1e-3


def test_further_iterations_converge_to_the_polar_factor():
    matrix, polar = with_singular_values(np.geomspace(1, 0.02, 32), 48, 40)
    exact = orthogonalize(matrix[None], (*COEFFICIENTS, *[(15 / 8, -10 / 8, 3 / 8)] * 6))[0]
    torch.testing.assert_close(exact, polar, rtol=0, atol=1e-10)


def test_the_polynomials_map_their_interval_into_the_stated_one():
    x = np.geomspace(0.003, 1, 100_001)
    for a, b, c in COEFFICIENTS:
        x = a * x + b * x**3 + c * x**5
    assert x.min() == pytest.approx(0.80, abs=0.01)
    assert x.max() == pytest.approx(1.20, abs=0.01)


def test_a_zero_gradient_leaves_the_weights_alone():
    assert not orthogonalize(torch.zeros(2, 16, 16)).any()


def test_it_takes_the_path_of_torchs_muon():
    """Torch orthogonalizes in bfloat16, whose rounding sets the tolerance."""
    shapes = [(32, 24), (24, 24)]
    groups = {"matrices": True, "weight_decay": 0.1}
    ours = follow(lambda p: Muon([{"params": p, **groups}], lr=0.01, coefficients=CLASSIC), shapes, torch.float32)
    theirs = follow(
        lambda p: torch.optim.Muon(p, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"), shapes, torch.float32
    )
    start = [nn.Parameter(w) for w, _ in random_gradients(shapes, torch.float32, steps=0)]
    for own, other, begin in zip(ours, theirs, start, strict=True):
        assert torch.norm(own - other) < 0.01 * torch.norm(own - begin)


@pytest.mark.kernels
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("shape", [(5, 64, 64), (3, 16, 40), (2, 100, 33), (1, 1, 7), (4, 20, 20)])
def test_the_kernel_equals_batched_products(shape, threads, monkeypatch):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    matrices[0] *= 1e-12
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        native = orthogonalize(matrices)
    finally:
        torch.set_num_threads(before)
    plain = orthogonalize(matrices.double())
    torch.testing.assert_close(native.double(), plain, rtol=0, atol=1e-4)
    assert torch.equal(native, orthogonalize(matrices)), "for any number of threads"
