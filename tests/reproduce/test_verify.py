"""Verification of records by reruns: made-up reruns that agree or do not."""

import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from flare.reproduce import ITEMS
from flare.reproduce import verify as verifying
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.jobs import Training, Workspace
from flare.reproduce.ledger import Ledger, Record
from flare.reproduce.registry import find_item
from flare.reproduce.study import outcomes, select_cells
from flare.reproduce.verify import MOST, NothingToVerify, bound, compare_analysis, verify
from tests.logs import Log

ROOT = Path(__file__).parents[2]

(CELL,) = select_cells(find_item("kv-depth").cells(BUDGETS["cpu"]), ["depth=3"])


def done(error, fingerprint="a"):
    return Record("done", {"rel_l2": error, "data_fingerprint": fingerprint})


def item_cells(name, only=None, budget="cpu"):
    return select_cells(find_item(name).cells(BUDGETS[budget]), only)


def rerun(folder, monkeypatch, recorded, now, **how):
    """Return whether `verify` agrees, its log, and the trained seeds, if a training gives `now` for its seed."""
    ledger, log, trained = Ledger(folder / "records"), Log(), []
    for seed, record in enumerate(recorded):
        ledger.write(CELL.job.with_seed(seed), record)

    def sweep(jobs, anew, place, **_):
        for job in jobs:
            trained.append(job.seed)
            anew.write(job, now[job.seed])

    monkeypatch.setattr(verifying, "sweep", sweep)
    with log:
        good = verify([CELL], ledger, Workspace(folder / "work"), **how)
    return good, log.lines, trained


def test_equal_results_are_bit_equal(tmp_path, monkeypatch):
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
    assert "21.2, 3 s √(2/1) with s = 5%" in line


def test_seeds_that_happen_to_lie_close_are_not_held_to_that(tmp_path, monkeypatch):
    recorded, now = [done(0.1), done(0.1001), done(0.1002)], [done(0.105), done(0.106), done(0.107)]
    good, (line,), _ = rerun(tmp_path, monkeypatch, recorded, now)
    assert good
    assert "with s = 5%" in line


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
    assert "1 of 2" in told[0]
    assert "bit-equal" in told[1]
    with pytest.raises(NothingToVerify):
        rerun(tmp_path / "other", monkeypatch, recorded[1:], [done(0.1)])


def test_a_seed_that_fails_now_is_no_agreement_and_one_that_fails_again_is(tmp_path, monkeypatch):
    failed = Record("failed", failure="TrainingDiverged: the loss is nan")
    good, (line,), _ = rerun(tmp_path / "a", monkeypatch, [done(0.1), done(0.1)], [done(0.1), failed])
    assert not good
    assert "DIFFERENT: 1 of 2 seeds" in line
    good, (line,), _ = rerun(tmp_path / "b", monkeypatch, [failed], [failed])
    assert good
    assert "failed again" in line


@pytest.mark.parametrize("now", [0.1, 0.101])
def test_other_data_are_no_agreement_whatever_comes_of_them(now, tmp_path, monkeypatch):
    good, (line,), _ = rerun(tmp_path, monkeypatch, [done(0.1)], [done(now, "b")])
    assert not good
    assert "OTHER DATA, fingerprint a recorded, b now" in line


def test_a_cell_that_scatters_by_half_its_error_agrees_in_its_bits_or_not_at_all(tmp_path, monkeypatch):
    recorded = [done(0.356), done(0.562), done(0.768)]
    good, (line,), _ = rerun(tmp_path / "a", monkeypatch, recorded, [done(0.06), done(0.06), done(0.06)])
    assert not good
    assert "SCATTERS" in line
    assert "505, 3 s √(2/3) with the recorded spread s, is over 50% of it; not within ± s" in line
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


def again(job, folder, then, now, arrays=(None, None)):
    """What is said of a job whose record was `then` and is `now`, with the arrays beside each."""
    ledgers = [Ledger(folder / name) for name in ("then", "now")]
    for ledger, result, beside in zip(ledgers, (then, now), arrays, strict=True):
        ledger.write(job, Record("done", result), beside)
    return compare_analysis(job, *ledgers)


COUNTS = {"parameters": 5, "flops": 1e9, "activations": 7}


@pytest.mark.parametrize(
    ("now", "good", "words"),
    [
        (COUNTS, True, "equal"),
        (COUNTS | {"flops": 1e9 + 1}, True, "equal within 1e-06"),
        (COUNTS | {"parameters": 6}, False, "DIFFERENT: parameters is 5 recorded, 6 now"),
    ],
)
def test_counts_come_out_again(now, good, words, tmp_path):
    job = item_cells("architectures", ["flare/points=1024"])[0].job
    assert again(job, tmp_path, COUNTS, now) == (good, words)


def test_arrays_and_statistics_are_compared_but_not_what_a_picture_looks_like(tmp_path):
    (cell,) = item_cells("lpbf")
    result = {"landmarks": {"mean of points": 3.0}, "samples": 4, "data_fingerprint": "a"}
    arrays = {"points": np.array([1.0, 2.0]), "gallery.png": np.array([1, 2], dtype=np.uint8)}
    redrawn = arrays | {"gallery.png": np.array([7], dtype=np.uint8)}
    assert again(cell.job, tmp_path / "a", result, result, (arrays, redrawn)) == (True, "equal")
    moved = arrays | {"points": np.array([1.0, 2.1])}
    good, words = again(cell.job, tmp_path / "b", result, result, (arrays, moved))
    assert not good
    assert words.startswith("DIFFERENT: points differs by up to 0.1")
    other = result | {"landmarks": {"mean of points": 3.1}}
    good, words = again(cell.job, tmp_path / "c", result, other, (arrays, arrays))
    assert (good, words) == (False, "DIFFERENT: landmarks.mean of points is 3 recorded, 3.1 now")
    good, words = again(cell.job, tmp_path / "d", result, result | {"data_fingerprint": "b"}, (arrays, arrays))
    assert (good, words) == (False, "DIFFERENT: data_fingerprint is 'a' recorded, 'b' now")


def test_a_look_at_another_model_is_said_to_be(tmp_path):
    (cell,) = item_cells("spectra")
    for name, error in (("then", 0.1), ("now", 0.1001)):
        Ledger(tmp_path / name).write(cell.job.training, done(error))
    result, arrays = {"rel_l2": 0.1, "samples": 2}, {"eigenvalues": np.ones((1, 2, 3))}
    good, words = again(cell.job, tmp_path, result, result, (arrays, arrays))
    assert not good
    assert "rel-L2 0.1 recorded, 0.1001 now" in words
    Ledger(tmp_path / "now").write(cell.job.training, done(0.1))
    assert again(cell.job, tmp_path, result, result, (arrays, arrays)) == (True, "equal")


@pytest.mark.parametrize("name", ["scaling", "million"])
def test_measured_times_and_missing_records_cannot_be_verified(name, tmp_path):
    for ledger in (Ledger(ROOT / "results" / "records"), Ledger(tmp_path)):
        with pytest.raises(NothingToVerify):
            verify(item_cells(name), ledger, Workspace(tmp_path))


def refused(measure, mean, deviation, n, chance):
    """Whether a rerun does not agree, of `n` seeds each that are normal about one mean with one deviation."""
    then, now = ([chance.gauss(mean, deviation) for _ in range(n)] for _ in range(2))
    _, allowed = bound(measure, statistics.mean(then), statistics.stdev(then) if n > 1 else None, n)
    return allowed > MOST * statistics.mean(then) or abs(statistics.mean(now) - statistics.mean(then)) > allowed


def test_an_honest_rerun_is_seldom_refused():
    """Seeds drawn with the spreads of all our recorded cells of three seeds, which are told here for the truth."""
    ledger, found = Ledger(ROOT / "results" / "records"), {}
    for name in ITEMS:
        for outcome in outcomes(ledger, find_item(name).cells(BUDGETS["cpu"])):
            if isinstance(outcome.cell.job, Training) and len(outcome.values()) == 3:
                found[ledger.path(outcome.cell.job)] = outcome
    assert len(found) > 30
    chance, shares = random.Random(0), {}
    for n in (3, 1):
        each = [[refused(o.measure, o.mean, o.spread, n, chance) for _ in range(300)] for o in found.values()]
        shares[n] = statistics.mean(statistics.mean(cell) for cell in each)
    assert 0.02 < shares[3] < 0.12
    assert 0.04 < shares[1] < 0.14
