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
"""Fraction of `enough` from which a calibration share is rounded up to it."""


def split_cases(
    names: Sequence[str],
    groups: Sequence[str],
    *,
    contents: Sequence[str] | None = None,
    test: float | str = 0.2,
    calibration: float = 0.0,
    fewest: int = 0,
    enough: int = 0,
    seed: int = 0,
) -> dict[str, list[int]]:
    """Draw the splits of some cases.

    Args:
        names: File of each case.
        groups: Group of each case. Cases of a group stay in one split.
        contents: Content digest of each case, to report identical cases that `test` would separate.
        test: Share of the cases to test on; or the cases themselves, as a pattern of file names or a .txt file with
            one name per line.
        calibration: Share of the cases to calibrate error bars with; 0 makes no such split.
        fewest: Smallest useful number of calibration cases. The share is raised to it (and to whole groups) if half
            of all cases remain for training.
        enough: Number of calibration cases beyond which more gain little. A share near it is raised to it.
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
        _refuse_divided_copies(names, str(test), held, contents or names)
        _refuse_divided_groups(names, str(test), held, {group: members[group] for group in sorted(chosen)})
        order = [group for group in order if group not in chosen]
    else:
        held = _take(order, members, share * len(names))
    calibrating = _take(order, members, calibration * len(names))
    for wanted in (enough if calibration * len(names) >= NEAR * enough else 0, fewest):
        if calibration and len(calibrating) < wanted:
            calibrating = _take_at_least(order, members, calibrating, wanted, len(names) / 2)
    train = sorted(i for group in order for i in members[group])
    if not train or not held:
        raise DataError(
            f"{len(names)} cases in {len(members)} groups leave {len(train)} to train on and {len(held)} to test on; "
            f"use more cases or other shares"
        )
    return {"train": train, **({"calibration": calibrating} if calibrating else {}), "test": held}


def _refuse_divided_copies(names: Sequence[str], test: str, held: Sequence[int], contents: Sequence[str]) -> None:
    """Raise if `test` names a case but not another case of the same content."""
    tested = {contents[i]: i for i in held}
    copies = [i for i, content in enumerate(contents) if content in tested and i not in held]
    if copies:
        first, copy = names[tested[contents[copies[0]]]], names[copies[0]]
        more = f" ({len(copies) - 1} more such pairs)" if len(copies) > 1 else ""
        raise ConfigError(
            f"test={test!r} names {first} but not {copy}, which is identical, so the model would train on test "
            f"data{more}. Name both, or leave one out with exclude=..."
        )


def _refuse_divided_groups(names: Sequence[str], test: str, held: Sequence[int], members: dict[str, list[int]]) -> None:
    """Raise if `test` names only some cases of a group."""
    cut = [group for group, cases in members.items() if not {*cases} <= {*held}]
    if cut:
        missing = [names[i] for group in cut for i in members[group] if i not in held]
        shown = ", ".join(map(repr, cut[:5])) + (f" and {len(cut) - 5} more" if len(cut) > 5 else "")
        raise ConfigError(
            f"test={test!r} names only some cases of {'these groups' if len(cut) > 1 else 'the group'}: {shown}; "
            f"{counted(len(missing), 'case')} of them {'is' if len(missing) == 1 else 'are'} missing (first: "
            f"{missing[0]}). Name whole groups, in a .txt file if no pattern fits, or give a share such as test=0.2"
        )


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


def calibration_remarks(held: int, share: float, files: int) -> list[str]:
    """Return notes on a calibration split that is too small, or larger than the share that was asked for.

    Args:
        held: Cases of the split.
        share: Share that was asked for.
        files: Number of all cases.
    """
    needed, note = fewest_calibration_samples(), few_samples_note(held)
    more = "hold out more with calibration=..., or add files"
    if not share:
        return []
    if held < needed:
        return [f"{counted(held, 'file')} to calibrate: error bars need {needed}, so there will be none; {more}"]
    remarks = []
    if share * files < needed - 0.5:
        remarks.append(f"{held} files to calibrate instead of a share of {share:g}: error bars need at least {needed}")
    elif share * files < ENOUGH_SAMPLES - 0.5 and not note:
        remarks.append(f"{held} files to calibrate instead of a share of {share:g}: with fewer, error bars are wide")
    return [*remarks, *([f"{note}; {more}"] if note else [])]


def fewest_calibration_samples(coverage: float = COVERAGE) -> int:
    """Return the number of samples below which conformal error bars are infinitely wide: K / (K + 1) ≥ coverage."""
    return math.ceil(coverage / (1 - coverage) - 1e-9)


def few_samples_note(samples: int, coverage: float = COVERAGE) -> str:
    """Return a note on error bars that few samples calibrate; empty if the samples are enough.

    The coverage is at most 1 / (K + 1) above the nominal one, and close to that if K is small.
    """
    if samples >= ENOUGH_SAMPLES:
        return ""
    most, usual = (f"{coverage + 1 / (count + 1):.0%}" for count in (samples, ENOUGH_SAMPLES))
    largest = ", as wide as the largest error seen," if samples == fewest_calibration_samples(coverage) else ""
    return (
        f"error bars from {samples} samples{largest} cover up to {most} instead of {coverage:.0%}; from "
        f"{ENOUGH_SAMPLES} samples, up to {usual}"
    )
