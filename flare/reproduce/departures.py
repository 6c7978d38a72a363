"""In what the setting of a training differs from the paper's, in words that stand in its row."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from flare.data.benchmarks.cards import card, card_names
from flare.physics import generator_class
from flare.reproduce.decisions import decided
from flare.reproduce.jobs import Data, Training
from flare.utils.errors import differences

OPTIONS = {"layers": "voxels of {} layers", "points": "{:,} points", "refinement": "panels refined {:g} times"}
"""Options of generators -> words for their values; of the others the name has to do."""


def departures_of(ours: Training, exact: Training) -> list[str]:
    """Data, settings, and what we decided otherwise than the authors' code.

    Args:
        exact: the training that the paper's number is of, or would be.
    """
    words = [] if ours.on.published else _of_data(ours.on, exact.on)
    for key, there, here in differences(exact.definition()["settings"], ours.definition()["settings"]):
        if key == "epochs":
            words.append(other_epochs(here, there))
        elif key == "data.subsample" and here is not None:
            words.append(_of_subsample(ours.on, here, there))
        elif key == "data.mirror":
            words.append(f"mirrored at random in training ({', '.join(here)})")
        elif key != "seed":
            words.append(worded(key, there, here))
    return words + decided(exact)


def other_epochs(here: int, there: int) -> str:
    """Said so that nobody takes them for the first epochs of the longer training."""
    ours = "1 epoch with a schedule of its own" if here == 1 else f"{here} epochs with a schedule of their own"
    return f"{ours}, not {there}"


def worded(key: str, there: Any, here: Any) -> str:
    """`batch size 1, not 2`."""
    name = key.removeprefix("data.").removeprefix("optim.").removeprefix("model.").replace("_", " ")
    return f"{name} {_plain(here)}, not {_plain(there)}"


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("kind", "of its own"))
    if isinstance(value, list):
        return " and ".join(map(_plain, value))
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _of_data(data: Data, full: Data) -> list[str]:
    """Whose samples these are, how many, and of how many points."""
    stand_in = data.name in card_names() and card(data.name).stands_in_for
    words = [f"{data.name}, which stands in for {stand_in}" if stand_in else "data of our solver"]
    if (data.samples, data.test) != (full.samples, full.test):
        words.append(f"{data.samples - data.test}+{data.test} of {full.samples - full.test}+{full.test} samples")
    usual = generator_class(data.name)()
    here, there = _grid(data), usual.schema().grid
    if here and there and here != there:
        options = ", ".join(f"{key} {value}" for key, value in data.options.items())
        return [*words, f"{_times(here)} points, not {_times(there)} ({options})"]
    return words + [_of_option(key, value, getattr(usual, key)) for key, value in data.options.items()]


def _of_option(key: str, here: Any, there: Any) -> str:
    form = OPTIONS.get(key, f"{key} {{}}")
    other = f"{there:,}" if isinstance(there, int) else _plain(there)
    return f"{form.format(here)}, not {other}"


def _of_subsample(data: Data, here: int, there: int | None) -> str:
    grid = None if data.published else _grid(data)
    points = prod(grid) if grid else data.options.get("points", card(data.name).points)
    total = f" of {int(points):,}" if str(points).isdigit() else ""  # of LPBF every part has its own number
    return f"trained on {here:,}{total} points a sample, {f'not {there:,}, ' if there else ''}tested on all"


def _grid(data: Data) -> tuple[int, ...] | None:
    return generator_class(data.name)(**data.options).schema().grid


def _times(grid: tuple[int, ...]) -> str:
    return "×".join(map(str, grid))
