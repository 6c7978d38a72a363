"""Training recorded cells again, and judging whether they come out as recorded.

On the machine of the record the numbers are the same, bit for bit. Elsewhere sums are rounded otherwise, and at worst a
training ends like one with another seed. Two means of n seeds with deviation s should then not differ by more than
3 s √(2/n); simulated with the deviations of our recorded cells, they do in 1 % of the cases of three seeds, and in 5 %
of those of one, for the models whose errors scatter most. Where that is more than half the error itself, a rerun within
it would tell nothing, and none but the same bits is taken for agreement.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flare.errors import DataError
from flare.experiments.jobs import Place, Training
from flare.experiments.ledger import Ledger
from flare.experiments.study import Cell, Outcome, outcomes
from flare.experiments.sweep import sweep

TYPICAL = {"rel_l2": 0.05, "accuracy": 0.02}
"""Measure -> its deviation over seeds as a part of its mean: about the median of our recorded cells of three seeds. For
one seed, which has none, and where three happen to lie closer."""
DEVIATIONS = 3.0
"""Of the difference of two means: what is allowed."""
MOST = 0.5
"""Part of the recorded mean beyond which nothing is: a model that learns nothing would pass."""


def verify(
    cells: Sequence[Cell],
    ledger: Ledger,
    place: Place,
    *,
    seeds: int | None = None,
    tell: Callable[[str], None],
    **how: Any,
) -> bool:
    """Train some cells again, with the seeds of their records, and say of each whether it comes out as recorded.

    The records stay as they are. What is unfinished has nothing to compare with: it is named and left alone.

    Args:
        seeds: only those below; None: all that have records.
        how: workers, threads and scheduler of `sweep`.
    """
    recorded = [outcome for outcome in outcomes(ledger, cells) if isinstance(outcome.cell.job, Training)]
    found = [again for outcome in recorded if (again := _comparable(outcome, seeds, tell)) is not None]
    if not found:
        raise DataError(f"none of these cells is a finished training with records in {ledger.folder}; none to verify")
    place.root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="again-", dir=place.root))
    try:
        anew = Ledger(folder / "records")
        jobs = [job for outcome in found for job in outcome.jobs]
        sweep(jobs, anew, replace(place, runs=f"{folder.name}/runs"), tell=tell, **how)
        spreads = {outcome.cell.parts: outcome.spread for outcome in recorded}
        verdicts = []
        for then in found:
            records = [record for job in then.jobs if (record := anew.find(job)) is not None]
            good, words = judged(then, replace(then, records=records), spreads[then.cell.parts])
            tell(words)
            verdicts.append(good)
    finally:
        shutil.rmtree(folder)
    return all(verdicts)


def _comparable(outcome: Outcome, seeds: int | None, tell: Callable[[str], None]) -> Outcome | None:
    """With the seeds asked for that came to an end; None where none did."""
    name = "/".join(outcome.cell.parts)
    pairs = list(zip(outcome.jobs, outcome.records, strict=True))
    if seeds is not None:
        pairs = [(job, record) for job, record in pairs if isinstance(job, Training) and job.seed < seeds]
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
    s = max(spread or 0.0, typical)
    allowed = DEVIATIONS * s * math.sqrt(2 / len(before.values()))
    difference = abs(after.mean - before.mean)
    rule = f"{allowed / before.unit:.3g}, {_rule(before, spread, typical)}"
    near = f"{'also' if difference <= s else 'not'} within ± s"
    if allowed > MOST * before.mean:
        return False, f"SCATTERS too much to be verified by its mean alone: {rule}, is over {MOST:.0%} of it; {near}"
    good = difference <= allowed
    return good, f"{'within' if good else 'OUTSIDE'} {rule}; {near}"


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
