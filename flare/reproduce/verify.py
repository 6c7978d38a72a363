"""Do recorded cells again and check that the results agree with the records.

On the machine of the record the numbers are equal bit for bit. Elsewhere sums are rounded differently, and at worst a
training ends like one with another seed. Two means of n seeds with standard deviation s must then not differ by more
than 3 s √(2/n). If this bound is more than half of the error, only bit-equal results agree.
tests/reproduce/test_verify.py simulates how often reruns with other seeds are rejected.

Counts, statistics of a dataset and analyses of a trained model must be equal up to rounding. Times and memory depend on
the machine and are not verified.
"""

from __future__ import annotations

import logging
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.reproduce.analyses import Experiment
from flare.reproduce.jobs import Job, Training, Workspace
from flare.reproduce.ledger import Arrays, Ledger, Record, is_finite
from flare.reproduce.registry import job_names
from flare.reproduce.study import Cell, Outcome, outcomes
from flare.reproduce.sweep import sweep
from flare.utils.errors import DataError

logger = logging.getLogger(__name__)

TYPICAL = {"rel_l2": 0.05, "accuracy": 0.02}
"""Measure -> typical standard deviation over seeds, relative to the mean: about the median of our cells with three
seeds. It is used for a single seed, and if the recorded spread is smaller."""
DEVIATIONS = 3.0
"""Allowed difference of two means, in standard deviations of that difference."""
MOST = 0.5
"""Largest allowed difference relative to the recorded mean."""
TOLERANCE = 1e-6
"""Relative difference of analyses that counts as rounding."""


class NothingToVerify(DataError):
    """No cell has a record that can be verified."""


def verify(
    cells: Sequence[Cell],
    ledger: Ledger,
    workspace: Workspace,
    *,
    seeds: int | None = None,
    **how: Any,
) -> bool:
    """Do some cells again and log for each whether it agrees with its records, which are not changed.

    Unfinished trainings and measurements of time and memory are skipped. The model of an analysis is trained again.

    Args:
        cells: Cells to verify.
        ledger: Their records.
        workspace: Folder of datasets and of the temporary run folders.
        seeds: Verify only seeds below this number. None: all that have records.
        how: workers, generators, threads and scheduler of `sweep`.

    Returns:
        Whether all cells agree.

    Raises:
        NothingToVerify: No cell has a record that can be verified.
    """
    recorded = outcomes(ledger, cells)
    if not recorded:
        raise NothingToVerify(f"none of these cells has a record in {ledger.folder}; run them first")
    found = [again for outcome in recorded if (again := _comparable(outcome, seeds)) is not None]
    if not found:
        raise NothingToVerify(f"no record of these cells in {ledger.folder} can be verified")
    workspace.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="again-", dir=workspace.root))
    try:
        rerun = Ledger(folder / "records")
        jobs = [(outcome.cell, job) for outcome in found for job in outcome.jobs]
        sweep(
            [job for _, job in jobs],
            rerun,
            replace(workspace, runs=f"{folder.name}/runs"),
            names=job_names(jobs),
            **how,
        )
        spreads = {outcome.cell.parts: outcome.spread for outcome in recorded}
        agree = []
        for before in found:
            if isinstance(before.cell.job, Training):
                records = [record for job in before.jobs if (record := rerun.find(job)) is not None]
                good, line = compare_training(before, replace(before, records=records), spreads[before.cell.parts])
            else:
                good, line = compare_analysis(before.cell.job, ledger, rerun)
            logger.info("%s: %s", before.cell.name, line)
            agree.append(good)
    finally:
        shutil.rmtree(folder)
    return all(agree)


def _comparable(outcome: Outcome, seeds: int | None) -> Outcome | None:
    """Return the outcome with the requested seeds that have ended, None if there are none."""
    name = outcome.cell.name
    if isinstance(outcome.cell.job, Experiment):
        logger.info("%s: skipped, time and memory depend on the machine", name)
        return None
    pairs = list(zip(outcome.jobs, outcome.records, strict=True))
    if seeds is not None:
        pairs = [(job, record) for job, record in pairs if not isinstance(job, Training) or job.seed < seeds]
    ended = [(job, record) for job, record in pairs if record.outcome != "unfinished"]
    if len(ended) < len(pairs):
        logger.info("%s: skipped %d of %d records, which are unfinished", name, len(pairs) - len(ended), len(pairs))
    if not ended:
        return None
    jobs, records = zip(*ended, strict=True)
    return replace(outcome, jobs=jobs, records=records)


def compare_training(before: Outcome, after: Outcome, spread: float | None) -> tuple[bool, str]:
    """Compare the rerun of a training with its records.

    Args:
        before: Recorded outcome.
        after: Outcome of the same seeds, trained again.
        spread: Standard deviation of all recorded seeds, None for a single one.

    Returns:
        Whether they agree, and a line for the log.
    """
    line = f"recorded {before.error()}, now {after.error()}"
    then, now = before.values(), after.values()
    if len(then) != len(now):
        return False, f"{line}  (DIFFERENT: {len(now)} of {len(after.records)} seeds finished, not {len(then)})"
    if then == now:
        good, text = True, "bit-equal" if then else "failed again"
    else:
        good, text = _compare_means(before, after, spread)
    other = _other_data(before, after)
    return good and not other, f"{line}  ({text}{other})"


def _compare_means(before: Outcome, after: Outcome, spread: float | None) -> tuple[bool, str]:
    """Return whether the means agree within the bound, and the bound as text."""
    typical = TYPICAL[before.measure] * before.mean
    s, allowed = bound(before.measure, before.mean, spread, len(before.values()))
    difference = abs(after.mean - before.mean)
    rule = f"{allowed / before.unit:.3g}, {_rule(before, spread, typical)}"
    near = f"{'also' if difference <= s else 'not'} within ± s"
    if allowed > MOST * before.mean:
        return False, f"SCATTERS too much to be verified by its mean: {rule}, is over {MOST:.0%} of it; {near}"
    good = difference <= allowed
    return good, f"{'within' if good else 'OUTSIDE'} {rule}; {near}"


def bound(measure: str, mean: float, spread: float | None, n: int) -> tuple[float, float]:
    """Return the assumed standard deviation of seeds, and the allowed difference of two means of `n` seeds."""
    s = max(spread or 0.0, TYPICAL[measure] * mean)
    return s, DEVIATIONS * s * math.sqrt(2 / n)


def _rule(before: Outcome, spread: float | None, typical: float) -> str:
    own = spread is not None and spread >= typical
    source = "the recorded spread s" if own else f"s = {TYPICAL[before.measure]:.0%}, a typical spread"
    return f"{DEVIATIONS:g} s √(2/{len(before.values())}) with {source}"


def _other_data(before: Outcome, after: Outcome) -> str:
    """Return the fingerprints of data that differ from the record; empty if none do."""
    pairs = {
        (a.result.get("data_fingerprint"), b.result.get("data_fingerprint"))
        for a, b in zip(before.records, after.records, strict=True)
    }
    other = [f"{there} recorded, {here} now" for there, here in sorted(pairs, key=str) if there and here != there]
    return f"; OTHER DATA, fingerprint {', '.join(other)}" if other else ""


def compare_analysis(job: Job, ledger: Ledger, rerun: Ledger) -> tuple[bool, str]:
    """Compare the rerun of a count, of statistics, or of an analysis of a model with its record.

    Returns:
        Whether they agree, and a line for the log.
    """
    then, now = ledger.find(job), rerun.find(job)
    assert then is not None
    if now is None or now.outcome != then.outcome:  # an analysis of a failed model has no record
        outcome = now.failure or now.outcome if now else "not done"
        return False, f"DIFFERENT: {then.outcome} recorded, {outcome} now"
    if then.outcome == "failed":
        return True, "failed again"
    if job.training is not None and (other := _other_model(ledger.find(job.training), rerun.find(job.training))):
        return False, other
    here, there = _arrays(job, now, rerun), _arrays(job, then, ledger)
    # Checksums depend on the file format, older records lack some keys, and pixels depend on library versions.
    pairs = {key: (value, now.result.get(key)) for key, value in then.result.items() if key != "arrays"}
    pairs |= {key: (value, here.get(key)) for key, value in there.items() if not key.endswith(".png")}
    for key, (value, again) in pairs.items():
        if where := _unlike(value, again):
            return False, f"DIFFERENT: {key}{where}"
    exact = all(_unlike(value, again, tolerance=0.0) == "" for value, again in pairs.values())
    return True, "equal" if exact else f"equal within {TOLERANCE:g}"


def _arrays(job: Job, record: Record, ledger: Ledger) -> Arrays:
    return ledger.arrays(job) if "arrays" in record.result else {}


def _other_model(then: Record | None, now: Record | None) -> str:
    """Return how the error of the analyzed model differs from its record; empty if it is equal or unknown."""
    if then is None or now is None or then.result.get("rel_l2") == now.result.get("rel_l2"):
        return ""
    errors = f"{then.result.get('rel_l2')} recorded, {now.result.get('rel_l2')} now"
    return f"DIFFERENT: the analyzed model is not bit-equal (rel-L2 {errors}); verify its training"


def _unlike(then: Any, now: Any, tolerance: float = TOLERANCE) -> str:
    """Describe where two values of a result differ by more than rounding; empty if they do not."""
    if isinstance(then, dict) and isinstance(now, dict):
        found = (f".{key}{where}" for key in then if (where := _unlike(then[key], now.get(key), tolerance)))
        return next(found, "")
    if isinstance(then, list | np.ndarray) and isinstance(now, list | np.ndarray):
        return _unlike_arrays(np.asarray(then), np.asarray(now), tolerance)
    if is_finite(then) and is_finite(now):
        return "" if abs(then - now) <= tolerance * abs(then) else f" is {then:g} recorded, {now:g} now"
    return "" if then == now else f" is {then!r} recorded, {now!r} now"


def _unlike_arrays(then: np.ndarray, now: np.ndarray, tolerance: float) -> str:
    if then.shape != now.shape:
        return f" has shape {then.shape} recorded, {now.shape} now"
    if then.dtype.kind not in "iuf" or now.dtype.kind not in "iuf":
        return "" if np.array_equal(then, now) else " differs from the record"
    apart = float(np.abs(then.astype(float) - now.astype(float)).max(initial=0.0))
    largest = float(np.abs(then).max(initial=0.0))
    return "" if apart <= tolerance * largest else f" differs by up to {apart:g}; its largest value is {largest:g}"
