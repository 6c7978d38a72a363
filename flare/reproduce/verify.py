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
from flare.reproduce.ledger import Ledger, Record
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
        DataError: No cell has a record that can be verified.
    """
    recorded = outcomes(ledger, cells)
    pairs = [(again, before.spread) for before in recorded if (again := _comparable(before, seeds)) is not None]
    if not pairs:
        raise DataError(f"no record of these cells in {ledger.folder} can be verified")
    workspace.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="again-", dir=workspace.root))
    try:
        rerun = Ledger(folder / "records")
        jobs = [(outcome.cell, job) for outcome, _ in pairs for job in outcome.jobs]
        place = replace(workspace, runs=f"{folder.name}/runs")
        sweep([job for _, job in jobs], rerun, place, names=job_names(jobs), **how)
        verdicts = []
        for before, spread in pairs:
            if isinstance(before.cell.job, Training):
                records = [record for job in before.jobs if (record := rerun.find(job)) is not None]
                good, line = compare_training(before, replace(before, records=records), spread)
            else:
                good, line = compare_analysis(before.cell.job, ledger, rerun)
            logger.info("%s: %s", before.cell.name, line)
            verdicts.append(good)
    finally:
        shutil.rmtree(folder)
    return all(verdicts)


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
    then, now = before.values(), after.values()
    allowed = bound(before.measure, before.mean, spread, len(then)) if then else 0.0
    if len(then) != len(now):
        good, text = False, f"DIFFERENT: {len(now)} of {len(after.records)} seeds finished, not {len(then)}"
    elif then == now:
        good, text = True, "bit-equal" if then else "failed again"
    elif allowed > MOST * before.mean:
        good, text = False, f"SCATTERS: the bound {allowed / before.unit:.3g} is over {MOST:.0%} of the mean"
    else:
        good = abs(after.mean - before.mean) <= allowed
        text = f"{'within' if good else 'OUTSIDE'} the bound {allowed / before.unit:.3g}"
    data = [[record.result.get("data_fingerprint") for record in of.records] for of in (before, after)]
    if any(there and there != here for there, here in zip(*data, strict=True)):
        good, text = False, f"{text}; OTHER DATA, fingerprints {data[0]} recorded, {data[1]} now"
    return good, f"recorded {before.error()}, now {after.error()}  ({text})"


def bound(measure: str, mean: float, spread: float | None, n: int) -> float:
    """Return the allowed difference of two means of `n` seeds."""
    return DEVIATIONS * max(spread or 0.0, TYPICAL[measure] * mean) * math.sqrt(2 / n)


def compare_analysis(job: Job, ledger: Ledger, rerun: Ledger) -> tuple[bool, str]:
    """Compare the rerun of a count, of statistics, or of an analysis of a model with its record.

    Returns:
        Whether they agree, and a line for the log.
    """
    then, now = ledger.find(job), rerun.find(job)
    assert then is not None
    if now is None or now.outcome != then.outcome:  # an analysis of a failed model has no record
        return False, f"DIFFERENT: {then.outcome} recorded, {now.failure or now.outcome if now else 'not done'} now"
    if then.outcome == "failed":
        return True, "failed again"
    errors = [record.result.get("rel_l2") for of in (ledger, rerun) if (record := _model(job, of)) is not None]
    if len(errors) == 2 and errors[0] != errors[1]:
        return False, f"DIFFERENT: the model has the error {errors[1]}, not {errors[0]}; verify its training"
    # Checksums depend on the file format, older records lack some keys, and pixels depend on library versions.
    pairs = {key: (value, now.result.get(key)) for key, value in then.result.items() if key != "arrays"}
    if "arrays" in then.result:
        here = rerun.arrays(job)
        pairs |= {k: (value, here.get(k)) for k, value in ledger.arrays(job).items() if not k.endswith(".png")}
    if unlike := [key for key, pair in pairs.items() if not agree(*pair)]:
        return False, f"DIFFERENT: {', '.join(unlike)}"
    return True, "equal" if all(
        agree(*pair, tolerance=0.0) for pair in pairs.values()
    ) else f"equal within {TOLERANCE:g}"


def _model(job: Job, ledger: Ledger) -> Record | None:
    """Return the record of the model that a job analyzes."""
    return None if job.training is None else ledger.find(job.training)


def agree(then: Any, now: Any, tolerance: float = TOLERANCE) -> bool:
    """Return whether two values of a result are equal up to rounding, relative to the largest number of an array."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(agree(then[key], now.get(key), tolerance) for key in then)
    a, b = np.asarray(then), np.asarray(now)
    if a.shape != b.shape or a.dtype.kind not in "iuf" or b.dtype.kind not in "iuf":
        return np.array_equal(a, b)
    return bool(np.abs(a.astype(float) - b).max(initial=0.0) <= tolerance * np.abs(a).max(initial=0.0))
