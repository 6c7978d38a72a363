"""Doing recorded cells again, and judging whether they come out as recorded.

On the machine of the record the numbers are the same, bit for bit. Elsewhere sums are rounded otherwise, and at worst a
training ends like one with another seed. Two means of n seeds with deviation s should then not differ by more than
3 s √(2/n). Where that is more than half the error itself, a rerun within it would tell nothing, and none but the same
bits is taken for agreement. tests/reproduce/test_verify.py simulates how often reruns with other seeds, as scattered
as our recorded cells, do not agree: in 4 % of the cases of three seeds, and in 6 % of those of one.

Counts, statistics of a dataset, and looks at a trained model follow from their data and that model: they are the same
but for rounding. Times and memory are of the machine, and are not verified.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.reproduce.analyses import Experiment
from flare.reproduce.jobs import Job, Place, Training
from flare.reproduce.ledger import Arrays, Ledger, Record, is_finite
from flare.reproduce.registry import job_names
from flare.reproduce.study import Cell, Outcome, outcomes
from flare.reproduce.sweep import sweep
from flare.utils.errors import DataError

TYPICAL = {"rel_l2": 0.05, "accuracy": 0.02}
"""Measure -> its deviation over seeds as a part of its mean: about the median of our recorded cells of three seeds. For
one seed, which has none, and where three happen to lie closer."""
DEVIATIONS = 3.0
"""Of the difference of two means: what is allowed."""
MOST = 0.5
"""Part of the recorded mean beyond which nothing is: a model that learns nothing would pass."""
TOLERANCE = 1e-6
"""Of what follows from data and model alone: the part of a number, or of the largest of an array, that is rounding."""


class NothingToVerify(DataError):
    """Cells without a record that could come out again."""


def verify(
    cells: Sequence[Cell],
    ledger: Ledger,
    place: Place,
    *,
    seeds: int | None = None,
    tell: Callable[[str], None],
    **how: Any,
) -> bool:
    """Do some cells again, trainings with the seeds of their records, and say of each whether it comes out as recorded.

    The records stay as they are. What is unfinished has nothing to compare with, and what was measured is of its
    machine: they are named and left alone. A look at a trained model has that model trained again.

    Args:
        seeds: only those below; None: all that have records.
        how: workers, makers, threads and scheduler of `sweep`.

    Raises:
        NothingToVerify: nothing is left.
    """
    recorded = outcomes(ledger, cells)
    if not recorded:
        raise NothingToVerify(f"none of these cells has a record in {ledger.folder}; without --verify they are done")
    found = [again for outcome in recorded if (again := _comparable(outcome, seeds, tell)) is not None]
    if not found:
        raise NothingToVerify(f"there is nothing left to verify by the records in {ledger.folder}, as said above")
    place.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="again-", dir=place.root))
    try:
        anew = Ledger(folder / "records")
        jobs = [(outcome.cell, job) for outcome in found for job in outcome.jobs]
        there = replace(place, runs=f"{folder.name}/runs")
        sweep([job for _, job in jobs], anew, there, names=job_names(jobs), tell=tell, **how)
        spreads = {outcome.cell.parts: outcome.spread for outcome in recorded}
        verdicts = []
        for then in found:
            if isinstance(then.cell.job, Training):
                records = [record for job in then.jobs if (record := anew.find(job)) is not None]
                good, words = judged(then, replace(then, records=records), spreads[then.cell.parts])
            else:
                good, words = repeated(then.cell.job, ledger, anew)
                words = f"{'/'.join(then.cell.parts)}: {words}"
            tell(words)
            verdicts.append(good)
    finally:
        shutil.rmtree(folder)
    return all(verdicts)


def _comparable(outcome: Outcome, seeds: int | None, tell: Callable[[str], None]) -> Outcome | None:
    """With the seeds asked for that came to an end; None where none did."""
    name = "/".join(outcome.cell.parts)
    if isinstance(outcome.cell.job, Experiment):
        tell(
            f"{name}: its time and memory are of the machine they were measured on, so they are not verified; left out"
        )
        return None
    pairs = list(zip(outcome.jobs, outcome.records, strict=True))
    if seeds is not None:
        pairs = [(job, record) for job, record in pairs if not isinstance(job, Training) or job.seed < seeds]
    ended = [(job, record) for job, record in pairs if record.outcome != "unfinished"]
    if len(ended) < len(pairs):
        tell(f"{name}: {len(pairs) - len(ended)} of {len(pairs)} records unfinished, nothing to compare with; left out")
    if not ended:
        return None
    jobs, records = zip(*ended, strict=True)
    return replace(outcome, jobs=jobs, records=records)


def judged(before: Outcome, after: Outcome, spread: float | None) -> tuple[bool, str]:
    """Whether a cell came out as recorded, and a line that says why.

    Args:
        spread: of all recorded seeds, though fewer be trained again; None where there is one alone.
    """
    name = "/".join(before.cell.parts)
    line = f"{name}: recorded {before.error()}, now {after.error()}"
    then, now = before.values(), after.values()
    if len(then) != len(now):
        return (
            False,
            f"{line}  (OTHERWISE: {len(now)} of {len(after.records)} seeds came to their end, not {len(then)})",
        )
    if then == now:
        good, words = True, "bit-equal" if then else "failed again"
    else:
        good, words = _compared(before, after, spread)
    other = _other_data(before, after)
    return good and not other, f"{line}  ({words}{other})"


def _compared(before: Outcome, after: Outcome, spread: float | None) -> tuple[bool, str]:
    """Whether the means are as near as those of other seeds would be, and in words how near that is."""
    typical = TYPICAL[before.measure] * before.mean
    s, allowed = bound(before.measure, before.mean, spread, len(before.values()))
    difference = abs(after.mean - before.mean)
    rule = f"{allowed / before.unit:.3g}, {_rule(before, spread, typical)}"
    near = f"{'also' if difference <= s else 'not'} within ± s"
    if allowed > MOST * before.mean:
        return False, f"SCATTERS too much to be verified by its mean alone: {rule}, is over {MOST:.0%} of it; {near}"
    good = difference <= allowed
    return good, f"{'within' if good else 'OUTSIDE'} {rule}; {near}"


def bound(measure: str, mean: float, spread: float | None, n: int) -> tuple[float, float]:
    """The deviation of seeds that is reckoned with, and by how much two means of `n` of them may differ."""
    s = max(spread or 0.0, TYPICAL[measure] * mean)
    return s, DEVIATIONS * s * math.sqrt(2 / n)


def _rule(before: Outcome, spread: float | None, typical: float) -> str:
    n = len(before.values())
    if spread is not None and spread >= typical:
        return f"{DEVIATIONS:g} s √(2/{n}) with the recorded spread s"
    share = f"{TYPICAL[before.measure]:.0%}"
    return f"{DEVIATIONS:g} s √(2/{n}) with s = {share}, a typical spread, " + (
        "for want of one" if spread is None else "the recorded being less"
    )


def _other_data(before: Outcome, after: Outcome) -> str:
    """That the data are not those of the records, by their fingerprints; empty where they are."""
    pairs = {
        (a.result.get("data_fingerprint"), b.result.get("data_fingerprint"))
        for a, b in zip(before.records, after.records, strict=True)
    }
    other = [f"{there} there, {here} here" for there, here in sorted(pairs, key=str) if there and here != there]
    return f"; OTHER DATA, fingerprint {', '.join(other)}" if other else ""


def repeated(job: Job, ledger: Ledger, anew: Ledger) -> tuple[bool, str]:
    """Whether what follows from data and model came out as recorded, and in words how, or where not."""
    then, now = ledger.find(job), anew.find(job)
    assert then is not None
    if now is None or now.outcome != then.outcome:
        # A look at a model that failed is not there at all.
        return (
            False,
            f"OTHERWISE: {then.outcome} in the record, {now.failure or now.outcome if now else 'not done'} here",
        )
    if then.outcome == "failed":
        return True, "failed again"
    if job.training is not None and (other := _other_model(ledger.find(job.training), anew.find(job.training))):
        return False, other
    here, there = _arrays(job, now, anew), _arrays(job, then, ledger)
    # Checksums are of files; older records lack some keys, and what a picture looks like depends on what draws it.
    pairs = {key: (value, now.result.get(key)) for key, value in then.result.items() if key != "arrays"}
    pairs |= {key: (value, here.get(key)) for key, value in there.items() if not key.endswith(".png")}
    for key, (value, again) in pairs.items():
        if where := _unlike(value, again):
            return False, f"OTHERWISE: {key}{where}"
    exact = all(_unlike(value, again, tolerance=0.0) == "" for value, again in pairs.values())
    return True, "equal" if exact else f"equal within {TOLERANCE:g}"


def _arrays(job: Job, record: Record, ledger: Ledger) -> Arrays:
    return ledger.arrays(job) if "arrays" in record.result else {}


def _other_model(then: Record | None, now: Record | None) -> str:
    """That a look is at a model which came out otherwise, by its error; empty where it is the same, or unknown."""
    if then is None or now is None or then.result.get("rel_l2") == now.result.get("rel_l2"):
        return ""
    errors = f"{then.result.get('rel_l2')} in the record, {now.result.get('rel_l2')} here"
    return f"OTHERWISE: the model it looks at is not that of the record, bit for bit (rel-L2 {errors}); verify that one"


def _unlike(then: Any, now: Any, tolerance: float = TOLERANCE) -> str:
    """Where two values of a result differ by more than rounding, in words; empty where they do not."""
    if isinstance(then, dict) and isinstance(now, dict):
        found = (f".{key}{where}" for key in then if (where := _unlike(then[key], now.get(key), tolerance)))
        return next(found, "")
    if isinstance(then, list | np.ndarray) and isinstance(now, list | np.ndarray):
        return _unlike_arrays(np.asarray(then), np.asarray(now), tolerance)
    if is_finite(then) and is_finite(now):
        return "" if abs(then - now) <= tolerance * abs(then) else f" is {then:g} in the record, {now:g} here"
    return "" if then == now else f" is {then!r} in the record, {now!r} here"


def _unlike_arrays(then: np.ndarray, now: np.ndarray, tolerance: float) -> str:
    if then.shape != now.shape:
        return f" has shape {then.shape} in the record, {now.shape} here"
    if then.dtype.kind not in "iuf" or now.dtype.kind not in "iuf":
        return "" if np.array_equal(then, now) else " is not as in the record"
    apart = float(np.abs(then.astype(float) - now.astype(float)).max(initial=0.0))
    largest = float(np.abs(then).max(initial=0.0))
    return (
        "" if apart <= tolerance * largest else f" is up to {apart:g} from the record, where the largest is {largest:g}"
    )
