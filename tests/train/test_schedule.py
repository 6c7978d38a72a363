"""Schedules as functions of the step, compared with PyTorch."""

import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR

from flare.train.config import OptimConfig
from flare.train.schedule import decay_start, first_beta, learning_rate


@pytest.mark.parametrize("warmup", [0.1, 0.3])
@pytest.mark.parametrize(("div", "final_div"), [(1e4, 1e4), (25.0, 1e4)])
@pytest.mark.parametrize("total", [25, 200, 1037])
def test_onecycle_is_torchs(warmup, div, final_div, total):
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=1e-3)
    theirs = OneCycleLR(
        optimizer, 1e-3, total_steps=total, pct_start=warmup, div_factor=div, final_div_factor=final_div
    )
    optim = OptimConfig(warmup=warmup, div=div, final_div=final_div)
    for step in range(total):
        assert learning_rate(step, total, optim, 1e-3) == pytest.approx(
            optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-18
        )
        assert first_beta(step, total, optim) == pytest.approx(optimizer.param_groups[0]["betas"][0], rel=1e-9)
        optimizer.step()
        if step + 1 < total:
            theirs.step()


def test_the_peak_is_reached_at_the_end_of_the_warm_up():
    rates = [learning_rate(s, 100, OptimConfig(), 1e-3) for s in range(100)]
    assert max(rates) == rates[9] == pytest.approx(1e-3)
    assert rates[0] == pytest.approx(1e-7)
    assert rates[-1] == pytest.approx(1e-11)


def test_beta1_stays_when_cycling_is_off():
    assert first_beta(5, 10, OptimConfig(cycle_beta1=False, betas=(0.8, 0.99))) == 0.8


def test_constant():
    optim = OptimConfig(schedule="constant")
    assert {learning_rate(s, 50, optim, 3e-4) for s in range(50)} == {3e-4}
    assert first_beta(7, 50, optim) == 0.9


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize("total", [10, 40, 333])
def test_warm_up_is_linear_and_decay_ends_near_zero(schedule, total):
    optim = OptimConfig(schedule=schedule, warmup=0.1, decay=0.2)
    rates = [learning_rate(s, total, optim, 1.0) for s in range(total)]
    warm, fall = math.ceil(0.1 * total), decay_start(total, optim)
    np.testing.assert_allclose(np.diff(rates[: warm - 1]), 1 / (0.1 * total))
    assert rates[warm - 1 : fall + 1] == [1.0] * (fall - warm + 2)
    assert (np.diff(rates[fall:]) < 0).all()
    assert 0 < rates[-1] < 0.4


def test_wsd_is_stable_until_its_decay_and_falls_by_the_square_root():
    optim = OptimConfig(schedule="wsd", warmup=0.1, decay=0.25)
    assert decay_start(100, optim) == 75
    assert learning_rate(75 + 9, 100, optim, 2.0) == pytest.approx(2 * (1 - math.sqrt(9 / 25)))


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "wsd"])
@pytest.mark.parametrize("total", [1, 2, 3])
def test_very_short_runs_have_a_rate(total, schedule):
    assert all(0 < learning_rate(s, total, OptimConfig(schedule=schedule), 1e-3) <= 1e-3 for s in range(total))
