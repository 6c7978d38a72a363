"""Whether a cell came out again as recorded: made-up reruns, so that every verdict can be wrong."""

import math

import pytest

from flare.errors import DataError
from flare.experiments import verify as verifying
from flare.experiments.budgets import BUDGETS
from flare.experiments.jobs import Place
from flare.experiments.ledger import Ledger, Record
from flare.experiments.reproduce import item_named
from flare.experiments.study import chosen
from flare.experiments.verify import verify

(CELL,) = chosen(item_named("kv-depth").cells(BUDGETS["cpu"]), ["depth=3"])


def done(error, fingerprint="a"):
    return Record("done", {"rel_l2": error, "data_fingerprint": fingerprint})


def rerun(folder, monkeypatch, recorded, now, **how):
    """What `verify` says of records, and the seeds it trained, where a training gives what `now` has for its seed."""
    ledger, told, trained = Ledger(folder / "records"), [], []
    for seed, record in enumerate(recorded):
        ledger.write(CELL.job.with_seed(seed), record)

    def sweep(jobs, anew, place, **_):
        for job in jobs:
            trained.append(job.seed)
            anew.write(job, now[job.seed])

    monkeypatch.setattr(verifying, "sweep", sweep)
    good = verify([CELL], ledger, Place(folder / "work"), tell=told.append, **how)
    return good, told, trained


def test_equal_bits_are_said_to_be(tmp_path, monkeypatch):
    records = [done(0.1), done(0.11), done(0.12)]
    good, told, _ = rerun(tmp_path, monkeypatch, records, records)
    assert good
    assert told == ["elasticity/depth=3/latents=64: recorded 110 ± 10, now 110 ± 10  (bit-equal)"]


@pytest.mark.parametrize(("shift", "good"), [(0.0245, True), (0.0250, False)])
def test_three_seeds_may_differ_by_three_deviations_of_the_difference(shift, good, tmp_path, monkeypatch):
    errors = (0.10, 0.11, 0.12)
    assert 3 * 0.01 * math.sqrt(2 / 3) == pytest.approx(0.0245, abs=1e-4)
    now = [done(error + shift - 1e-4) for error in errors]
    found, (line,), _ = rerun(tmp_path, monkeypatch, [done(error) for error in errors], now)
    assert found == good
    assert ("OUTSIDE" in line) != good
    assert "3 s √(2/3) with the recorded spread s" in line


@pytest.mark.parametrize(("now", "good"), [(0.121, True), (0.122, False)])
def test_one_seed_has_the_typical_spread(now, good, tmp_path, monkeypatch):
    found, (line,), _ = rerun(tmp_path, monkeypatch, [done(0.1)], [done(now)])
    assert found == good
    assert "21.2, 3 s √(2/1) with s = 5%, a typical spread, for want of one" in line


def test_seeds_that_happen_to_lie_close_are_not_held_to_that(tmp_path, monkeypatch):
    recorded, now = [done(0.1), done(0.1001), done(0.1002)], [done(0.105), done(0.106), done(0.107)]
    good, (line,), _ = rerun(tmp_path, monkeypatch, recorded, now)
    assert good
    assert "the recorded being less" in line


def test_only_the_seeds_asked_for_are_trained_and_the_spread_is_of_all_recorded(tmp_path, monkeypatch):
    recorded = [done(0.10), done(0.11), done(0.12)]
    good, (line,), trained = rerun(tmp_path, monkeypatch, recorded, [done(0.14)], seeds=1)
    assert trained == [0]
    assert good, "three deviations of 0.01, times the root of two"
    assert "with the recorded spread s" in line


def test_what_is_unfinished_is_named_and_not_compared(tmp_path, monkeypatch):
    recorded = [done(0.1), Record("unfinished", {"curve": [(1, 0.5)], "epochs": 16})]
    good, told, trained = rerun(tmp_path, monkeypatch, recorded, [done(0.1)])
    assert (good, trained) == (True, [0])
    assert "1 of 2 records unfinished, nothing to compare with; left out" in told[0]
    assert "bit-equal" in told[1]
    with pytest.raises(DataError, match="none of these cells is a finished training"):
        rerun(tmp_path / "other", monkeypatch, recorded[1:], [done(0.1)])


def test_a_seed_that_fails_now_is_no_agreement_and_one_that_fails_again_is(tmp_path, monkeypatch):
    failed = Record("failed", failure="TrainingDiverged: the loss is nan")
    good, (line,), _ = rerun(tmp_path / "a", monkeypatch, [done(0.1), done(0.1)], [done(0.1), failed])
    assert not good
    assert "OTHERWISE: 1 of 2 seeds came to their end, not 2" in line
    good, (line,), _ = rerun(tmp_path / "b", monkeypatch, [failed], [failed])
    assert good
    assert "failed again" in line


@pytest.mark.parametrize("now", [0.1, 0.101])
def test_other_data_are_no_agreement_whatever_comes_of_them(now, tmp_path, monkeypatch):
    good, (line,), _ = rerun(tmp_path, monkeypatch, [done(0.1)], [done(now, "b")])
    assert not good
    assert line.endswith("; OTHER DATA, fingerprint a there, b here)")


def test_a_cell_that_scatters_by_half_its_error_agrees_in_its_bits_or_not_at_all(tmp_path, monkeypatch):
    recorded = [done(0.356), done(0.562), done(0.768)]
    good, (line,), _ = rerun(tmp_path / "a", monkeypatch, recorded, [done(0.06), done(0.06), done(0.06)])
    assert not good
    rule = "505, 3 s √(2/3) with the recorded spread s, is over 50% of it"
    assert f"(SCATTERS too much to be verified by its mean alone: {rule}; not within ± s)" in line
    good, (line,), _ = rerun(tmp_path / "b", monkeypatch, recorded, [done(0.5), done(0.6), done(0.7)])
    assert not good
    assert line.endswith("also within ± s)")
    good, (line,), _ = rerun(tmp_path / "c", monkeypatch, recorded, recorded)
    assert good


@pytest.mark.parametrize(("shift", "words"), [(0.009, "also within ± s"), (0.011, "not within ± s")])
def test_what_is_allowed_is_told_apart_from_what_lies_within_the_spread(shift, words, tmp_path, monkeypatch):
    errors = (0.10, 0.11, 0.12)
    now = [done(error + shift) for error in errors]
    good, (line,), _ = rerun(tmp_path, monkeypatch, [done(error) for error in errors], now)
    assert good
    assert line.endswith(f"{words})")
