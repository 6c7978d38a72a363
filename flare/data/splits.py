"""Splits of imported cases: which train, which calibrate error bars, which test. Groups are never divided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flare.data.importing.cases import name_matches
from flare.utils.errors import ConfigError, DataError
from flare.utils.text import counted

COVERAGE = 0.9
"""Nominal coverage of error bars."""
ENOUGH_SAMPLES = 19
"""Number of calibration samples with which 90 % error bars cover at most 95 %."""
NEAR = 0.75
"""Fraction of `ENOUGH_SAMPLES` from which a calibration share is raised to it."""


def split_cases(
    names: Sequence[str],
    groups: Sequence[str],
    *,
    test: float | str = 0.2,
    calibration: float = 0.0,
    seed: int = 0,
) -> dict[str, list[int]]:
    """Draw the splits of some cases.

    The share of calibration cases is raised to what error bars need (and to whole groups), and to `ENOUGH_SAMPLES` if
    it is near that, while half of all cases remain for training.

    Args:
        names: File of each case.
        groups: Group of each case. Cases of a group stay in one split.
        test: Share of the cases to test on; or the cases themselves, as a pattern of file names or a .txt file with
            one name per line.
        calibration: Share of the cases to calibrate error bars with; 0 makes no such split.
        seed: Seed of the draw.

    Returns:
        Sorted case indices of `train`, `calibration` (if any) and `test`.

    Raises:
        ConfigError: Shares are impossible, or `test` names a part of a group.
        DataError: Too few cases, or a name in `test` matches none.
    """
    share = as_share(test)
    if not 0 <= calibration < 1 or (share is not None and not 0 < share + calibration < 1):
        raise ConfigError(f"test={test}, calibration={calibration}: shares must be from 0 to 1, together below 1")
    order = np.random.default_rng(seed).permutation(sorted(set(groups))).tolist()
    members = {group: [i for i, g in enumerate(groups) if g == group] for group in order}
    if share is None:
        held = _match_names(names, str(test))
        chosen = {groups[i] for i in held}
        missing = [i for i in range(len(names)) if groups[i] in chosen and i not in held]
        if missing:
            both = f"{names[missing[0]]} is also in it, or a copy ({counted(len(missing), 'case')} of this kind)"
            raise ConfigError(
                f"test={test!r} divides the group {groups[missing[0]]!r}: {both}; name all, or exclude copies"
            )
        order = [group for group in order if group not in chosen]
    else:
        held = _take(order, members, share * len(names))
    wanted = calibration * len(names)
    calibrating = _take(order, members, wanted)
    for fewest in (ENOUGH_SAMPLES if wanted >= NEAR * ENOUGH_SAMPLES else 0, fewest_calibration_samples()):
        if calibration and len(calibrating) < fewest:
            calibrating = _take_at_least(order, members, calibrating, fewest, len(names) / 2)
    train = sorted(i for group in order for i in members[group])
    if not train or not held:
        left = f"leave {len(train)} to train on and {len(held)} to test on"
        raise DataError(f"{len(names)} cases in {len(members)} groups {left}; use more cases or other shares")
    return {"train": train, **({"calibration": calibrating} if calibrating else {}), "test": held}


def joined(groups: Sequence[str], contents: Sequence[str]) -> list[str]:
    """Merge groups that share a content.

    Returns:
        The group of each case; a merged group has the name of its first member.
    """
    names, group = np.unique(groups, return_inverse=True)
    kinds, content = np.unique(contents, return_inverse=True)
    size = len(names) + len(kinds)  # a graph of groups and contents, with an edge for each case
    edges = coo_array((np.ones(len(groups)), (group, len(names) + content)), shape=(size, size))
    component = connected_components(edges, directed=False)[1][group]
    first: dict[int, str] = {}
    return [first.setdefault(int(c), g) for c, g in zip(component, groups, strict=True)]


def _take(order: list[str], members: dict[str, list[int]], wanted: float) -> list[int]:
    """Remove groups from the front of `order` while they bring the number of cases closer to `wanted`."""
    cases: list[int] = []
    while order and abs(len(cases) + len(members[order[0]]) - wanted) < abs(len(cases) - wanted):
        cases += members[order.pop(0)]
    return sorted(cases)


def _take_at_least(
    order: list[str], members: dict[str, list[int]], cases: list[int], fewest: int, remaining: float
) -> list[int]:
    """Add groups up to `fewest` cases, unless fewer than `remaining` cases would be left in `order`."""
    count, more = len(cases), 0
    while count < fewest and more < len(order):
        count += len(members[order[more]])
        more += 1
    if count < fewest or sum(len(members[group]) for group in order[more:]) < remaining:
        return cases
    added = [i for group in order[:more] for i in members[group]]
    del order[:more]
    return sorted(cases + added)


def as_share(test: float | str) -> float | None:
    """Return `test` as a number, or None if it names cases."""
    try:
        return float(test)
    except ValueError:
        return None


def _match_names(names: Sequence[str], wanted: str) -> list[int]:
    patterns = [wanted]
    if wanted.endswith(".txt"):
        try:
            lines = Path(wanted).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{wanted} cannot be read: {error}") from None
        patterns = [line.strip() for line in lines if line.strip()]
    found: set[int] = set()
    for pattern in patterns:
        hits = {i for i, name in enumerate(names) if name_matches(name, pattern)}
        if not hits:
            raise DataError(f"no case matches {pattern!r}; the first cases are {', '.join(names[:3])}")
        found |= hits
    return sorted(found)


def fewest_calibration_samples(coverage: float = COVERAGE) -> int:
    """Return the number of samples below which conformal error bars are infinitely wide: K / (K + 1) ≥ coverage."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def few_samples_note(samples: int) -> str:
    """Return a note on error bars that few samples calibrate; empty if the samples are enough.

    The coverage is at most 1 / (K + 1) above the nominal one, and close to that if K is small.
    """
    if samples < fewest_calibration_samples():
        return f"{samples} samples to calibrate error bars, which need {fewest_calibration_samples()}"
    if samples >= ENOUGH_SAMPLES:
        return ""
    most, usual = (f"{COVERAGE + 1 / (count + 1):.0%}" for count in (samples, ENOUGH_SAMPLES))
    return (
        f"error bars from {samples} samples cover up to {most} instead of {COVERAGE:.0%}; from {ENOUGH_SAMPLES} "
        f"samples, up to {usual}"
    )
