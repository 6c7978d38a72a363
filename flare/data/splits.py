"""Which cases train, which calibrate error bars, which test: drawn with a seed, or named, and never cutting a group."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from flare.data.importing.cases import is_called
from flare.trust import bars
from flare.utils.errors import ConfigError, DataError
from flare.utils.text import counted

NEAR = 0.75
"""Of what would be enough, so that a share is taken for it."""


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
    """Indices of the cases of each split, in order.

    Args:
        names: files of the cases.
        groups: cases of one group stay together.
        contents: equal where two cases hold the same, and are one group for that; for messages alone.
        test: share of the cases; or which, as a pattern of file names or a .txt file with a name a line.
        calibration: share of all cases that is held out for error bars; a split of that name is made where it is not 0.
        fewest: cases without which that split is of no use: it takes so many, or the next whole group beyond, where
            half of all cases are left to train.
        enough: cases beyond which more gain little: it takes so many likewise, where the share is near that.
        seed: of the draw.
    """
    share = as_share(test)
    if not 0 <= calibration < 1 or (share is not None and not 0 < share + calibration < 1):
        raise ConfigError(f"test={test}, calibration={calibration}: shares of the cases, together below 1")
    order = np.random.default_rng(seed).permutation(sorted(set(groups))).tolist()
    members = {group: [i for i, g in enumerate(groups) if g == group] for group in order}
    if share is None:
        held = _named(names, str(test))
        chosen = {groups[i] for i in held}
        _refuse_lone_copies(names, str(test), held, contents or names)
        _refuse_cuts(names, str(test), held, {group: members[group] for group in sorted(chosen)})
        order = [group for group in order if group not in chosen]
    else:
        held = _take(order, members, share * len(names))
    calibrating = _take(order, members, calibration * len(names))
    for wanted in (enough if calibration * len(names) >= NEAR * enough else 0, fewest):
        if calibration and len(calibrating) < wanted:
            calibrating = _at_least(order, members, calibrating, wanted, len(names) / 2)
    train = sorted(i for group in order for i in members[group])
    if not train or not held:
        raise DataError(
            f"{len(names)} cases in {len(members)} groups leave {len(train)} to train and {len(held)} to test; bring "
            f"more, or choose other shares"
        )
    return {"train": train, **({"calibration": calibrating} if calibrating else {}), "test": held}


def _refuse_lone_copies(names: Sequence[str], test: str, held: Sequence[int], contents: Sequence[str]) -> None:
    """A case that is named, while another that holds the same is not."""
    tested = {contents[i]: i for i in held}
    lone = [i for i, content in enumerate(contents) if content in tested and i not in held]
    if lone:
        first, copy = names[tested[contents[lone[0]]]], names[lone[0]]
        more = f" ({len(lone) - 1} more of the kind)" if len(lone) > 1 else ""
        raise ConfigError(
            f"test={test!r} names {first}, but not {copy}, which is identical: the test would be no test{more}. Name "
            f"both, or leave one out with --exclude"
        )


def _refuse_cuts(names: Sequence[str], test: str, held: Sequence[int], members: dict[str, list[int]]) -> None:
    """A group of which only some cases are named."""
    cut = [group for group, cases in members.items() if not {*cases} <= {*held}]
    if cut:
        missing = [names[i] for group in cut for i in members[group] if i not in held]
        shown = ", ".join(map(repr, cut[:5])) + (f" and {len(cut) - 5} more" if len(cut) > 5 else "")
        raise ConfigError(
            f"test={test!r} names only some cases of {'these groups' if len(cut) > 1 else 'the group'}: {shown}; "
            f"{len(missing)} more would have to be tested on (first: {missing[0]}). Name whole groups, in a .txt file "
            f"if no pattern fits, or give a share such as --test 0.2"
        )


def joined(groups: Sequence[str], contents: Sequence[str]) -> list[str]:
    """The group of each case, where groups that share a content are one: it has the name of its first member."""
    names, group = np.unique(groups, return_inverse=True)
    kinds, content = np.unique(contents, return_inverse=True)
    size = len(names) + len(kinds)  # a graph of groups and contents, with an edge for each case
    edges = coo_array((np.ones(len(groups)), (group, len(names) + content)), shape=(size, size))
    part = connected_components(edges, directed=False)[1][group]
    first: dict[int, str] = {}
    return [first.setdefault(int(p), g) for p, g in zip(part, groups, strict=True)]


def _take(order: list[str], members: dict[str, list[int]], wanted: float) -> list[int]:
    """Groups from the front of the order while they come nearer to so many cases."""
    taken: list[int] = []
    while order and abs(len(taken) + len(members[order[0]]) - wanted) < abs(len(taken) - wanted):
        taken += members[order.pop(0)]
    return sorted(taken)


def _at_least(order: list[str], members: dict[str, list[int]], taken: list[int], fewest: int, kept: float) -> list[int]:
    """More groups until there are so many cases; none, where fewer than `kept` would be left for that."""
    count, more = len(taken), 0
    while count < fewest and more < len(order):
        count += len(members[order[more]])
        more += 1
    if count < fewest or sum(len(members[group]) for group in order[more:]) < kept:
        return taken
    added = [i for group in order[:more] for i in members[group]]
    del order[:more]
    return sorted(taken + added)


def as_share(test: float | str) -> float | None:
    """None where it names cases."""
    try:
        return float(test)
    except ValueError:
        return None


def _named(names: Sequence[str], wanted: str) -> list[int]:
    patterns = [wanted]
    if wanted.endswith(".txt"):
        try:
            lines = Path(wanted).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{wanted} cannot be read: {error}") from None
        patterns = [line.strip() for line in lines if line.strip()]
    found: set[int] = set()
    for pattern in patterns:
        hits = {i for i, name in enumerate(names) if is_called(name, pattern)}
        if not hits:
            raise DataError(f"no case is called {pattern!r}; the first are {', '.join(names[:3])}")
        found |= hits
    return sorted(found)


def calibration_remarks(held: int, share: float, files: int) -> list[str]:
    """What to know of the split that calibrates error bars; after training it would be too late."""
    needed, wide = bars.fewest(bars.LEVEL), bars.wide_bars(held)
    if not share:
        return []
    if held < needed:
        return [
            f"{counted(held, 'file')} to calibrate: error bars need {needed}, so there will be none; hold out more "
            f"with --calibration, or bring more files"
        ]
    remarks = []
    if share * files < needed - 0.5:
        remarks.append(
            f"{held} files to calibrate, more than a share of {share:g}, for error bars need {needed} at least"
        )
    elif share * files < bars.ENOUGH - 0.5 and not wide:
        remarks.append(f"{held} files to calibrate, more than a share of {share:g}, for error bars of fewer are wide")
    if wide:
        remarks.append(f"{wide}; hold out more with --calibration, or bring more files")
    return remarks
