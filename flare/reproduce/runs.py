"""Training several runs, one after another: what is finished is only read, what was stopped goes on, and one that
diverges is said to while the others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flare.train.config import TrainConfig
from flare.train.run import start_or_resume
from flare.utils.errors import TrainingDiverged

Results = dict[str, list[dict[str, Any] | None]]
"""Contender -> the result of each seed; None of one that diverged."""


def train_all(
    wanted: Mapping[tuple[str, int], TrainConfig],
    out: Path,
    tell: Callable[[str], None],
    words: Callable[[Mapping[str, Any]], str] = lambda result: "",
) -> Results:
    """Train each (contender, seed) in `<out>/<contender>/seed-<n>`.

    Args:
        words: what to tell of a result; nothing where it is empty.
    """
    results: Results = {}
    for number, ((contender, seed), config) in enumerate(wanted.items(), 1):
        tell(f"{number}/{len(wanted)}: {contender}, seed {seed}")
        try:
            result = start_or_resume(config, out / contender / f"seed-{seed}")
        except TrainingDiverged as error:
            tell(f"{contender}, seed {seed}: {error}")
            results.setdefault(contender, []).append(None)
            continue
        if result:  # only the first rank has one
            results.setdefault(contender, []).append(result)
            if told := words(result):
                tell(told)
    return results
