"""Verification of records by reruns: made-up reruns that agree or do not."""

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
from flare.reproduce.verify import MOST, bound, compare_analysis, verify
from flare.utils.errors import DataError
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

    def sweep(jobs, rerun, place, **_):
        for job in jobs:
            trained.append(job.seed)
            rerun.write(job, now[job.seed])

    monkeypatch.setattr(verifying, "sweep", sweep)
    with log:
        good = verify([CELL], ledger, Workspace(folder / "work"), **how)
    return good, log.lines, trained


A, B, C = ((0.10, 0.11, 0.12), (0.1, 0.1001, 0.1002), (0.356, 0.562, 0.768))


@pytest.mark.parametrize(
    ("recorded", "now", "good", "word"),
    [
        (A, A, True, "bit-equal"),
        (A, [error + 0.0244 for error in A], True, "within the bound 24.5"),  # 3 s √(2/3) with s = 0.01
        (A, [error + 0.0249 for error in A], False, "OUTSIDE"),
        ([0.1], [0.121], True, "within the bound 21.2"),  # the typical spread, 5 %
        ([0.1], [0.122], False, "OUTSIDE"),
        (B, [0.105, 0.106, 0.107], True, "within"),  # seeds that happen to lie close
        (C, [0.5, 0.6, 0.7], False, "SCATTERS"),
        (C, C, True, "bit-equal"),
    ],
)
def test_means_may_differ_by_three_deviations_of_their_difference(recorded, now, good, word, tmp_path, monkeypatch):
    found, (line,), _ = rerun(tmp_path, monkeypatch, [*map(done, recorded)], [*map(done, now)])
    assert found == good
    assert word in line


def test_only_the_seeds_asked_for_are_trained_and_the_spread_is_of_all_recorded(tmp_path, monkeypatch):
    recorded = [done(0.10), done(0.11), done(0.12)]
    good, (line,), trained = rerun(tmp_path, monkeypatch, recorded, [done(0.14)], seeds=1)
    assert trained == [0]
    assert good
    assert "within the bound 42.4" in line, "three deviations of 0.01, times the root of two"


def test_unfinished_trainings_are_named_and_not_compared(tmp_path, monkeypatch):
    recorded = [done(0.1), Record("unfinished", {"curve": [(1, 0.5)], "epochs": 16})]
    good, printed, trained = rerun(tmp_path, monkeypatch, recorded, [done(0.1)])
    assert (good, trained) == (True, [0])
    assert "1 of 2" in printed[0]
    assert "bit-equal" in printed[1]
    with pytest.raises(DataError):
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
def test_equal_errors_on_other_data_do_not_agree(now, tmp_path, monkeypatch):
    good, (line,), _ = rerun(tmp_path, monkeypatch, [done(0.1)], [done(now, "b")])
    assert not good
    assert "OTHER DATA" in line


def again(job, folder, then, now, arrays=(None, None)):
    """Return what `compare_analysis` reports if a job's record was `then` and is `now`, with `arrays` beside them."""
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
        (COUNTS | {"parameters": 6}, False, "DIFFERENT: parameters"),
    ],
)
def test_counts_are_reproduced(now, good, words, tmp_path):
    job = item_cells("architectures", ["flare/points=1024"])[0].job
    assert again(job, tmp_path, COUNTS, now) == (good, words)


def test_arrays_and_statistics_are_compared_but_not_pictures(tmp_path):
    (cell,) = item_cells("lpbf")
    result = {"landmarks": {"mean of points": 3.0}, "samples": 4, "data_fingerprint": "a"}
    arrays = {"points": np.array([1.0, 2.0]), "gallery.png": np.array([1, 2], dtype=np.uint8)}
    redrawn = arrays | {"gallery.png": np.array([7], dtype=np.uint8)}
    assert again(cell.job, tmp_path / "a", result, result, (arrays, redrawn)) == (True, "equal")
    moved = arrays | {"points": np.array([1.0, 2.1])}
    assert again(cell.job, tmp_path / "b", result, result, (arrays, moved)) == (False, "DIFFERENT: points")
    other = result | {"landmarks": {"mean of points": 3.1}}
    good, words = again(cell.job, tmp_path / "c", result, other, (arrays, arrays))
    assert (good, words) == (False, "DIFFERENT: landmarks")
    good, words = again(cell.job, tmp_path / "d", result, result | {"data_fingerprint": "b"}, (arrays, arrays))
    assert (good, words) == (False, "DIFFERENT: data_fingerprint")


def test_an_analysis_of_another_model_does_not_agree(tmp_path):
    (cell,) = item_cells("spectra")
    for name, error in (("then", 0.1), ("now", 0.1001)):
        Ledger(tmp_path / name).write(cell.job.training, done(error))
    result, arrays = {"rel_l2": 0.1, "samples": 2}, {"eigenvalues": np.ones((1, 2, 3))}
    good, words = again(cell.job, tmp_path, result, result, (arrays, arrays))
    assert not good
    assert "0.1001" in words
    Ledger(tmp_path / "now").write(cell.job.training, done(0.1))
    assert again(cell.job, tmp_path, result, result, (arrays, arrays)) == (True, "equal")


@pytest.mark.parametrize("name", ["scaling", "million"])
def test_measured_times_and_missing_records_cannot_be_verified(name, tmp_path):
    for ledger in (Ledger(ROOT / "results" / "records"), Ledger(tmp_path)):
        with pytest.raises(DataError):
            verify(item_cells(name), ledger, Workspace(tmp_path))


def refused(measure, mean, deviation, n, chance):
    """Whether a rerun does not agree, of `n` seeds each that are normal about one mean with one deviation."""
    then, now = ([chance.gauss(mean, deviation) for _ in range(n)] for _ in range(2))
    allowed = bound(measure, statistics.mean(then), statistics.stdev(then) if n > 1 else None, n)
    return allowed > MOST * statistics.mean(then) or abs(statistics.mean(now) - statistics.mean(then)) > allowed


def test_reruns_with_other_seeds_are_seldom_rejected():
    """Seeds are drawn with the spread of each recorded cell of three seeds, which is taken as the true spread."""
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
