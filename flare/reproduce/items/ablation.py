"""What the paper's ablations have in common: FLARE on one benchmark, over a grid of one or two of its sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flare.report.ablation import Series, error_curves
from flare.report.page import png
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.study import Cell, Outcome, Picture, labels

Point = tuple[int, ...]
Settings = Sequence[tuple[str, Any]]


def grid_cells(
    budget: Budget,
    dataset: str,
    axes: Sequence[str],
    points: Iterable[Point],
    settings: Callable[..., Settings],
    paper: Mapping[Point, float],
) -> list[Cell]:
    """A cell for every point of a grid.

    Args:
        axes: names of the coordinates of a point.
        settings: of the training, from the budget and the coordinates.
        paper: point -> its error in thousandths, where it has one and the budget's models are comparable.
    """
    exact = BUDGETS["paper"]
    return [
        Cell(
            (dataset, *(f"{axis}={value}" for axis, value in zip(axes, point, strict=True))),
            budget.training(dataset, "flare", *settings(budget, *point)),
            exact=exact.training(dataset, "flare", *settings(exact, *point)),
            paper=1e-3 * paper[point] if budget.comparable and point in paper else None,
        )
        for point in points
    ]


def table_of(columns: Sequence[int], rows: Mapping[int, Sequence[float]]) -> dict[Point, float]:
    """A table of the paper: {row: numbers of the columns} -> {(column, row): number}."""
    return {(c, r): value for r, values in rows.items() for c, value in zip(columns, values, strict=True)}


def curves(
    name: str,
    wanted: Sequence[Cell],
    found: Sequence[Outcome],
    *,
    axis: str,
    by: str,
    caption: str,
    log: bool = True,
) -> Picture:
    """Error over the second part of the cells, a curve for every third one, the paper's in a panel beside ours.

    Args:
        wanted: all cells of the grid: of those without a number of ours the paper's is drawn.
    """
    of = {outcome.cell.parts: outcome for outcome in found if outcome.values()}
    lines: dict[str, Series] = {}
    for cell in wanted:
        outcome = of.get(cell.parts)
        if outcome is None and cell.paper is None:
            continue
        _, x, label = labels(cell)
        line = lines.setdefault(f"{by} {label}", Series())
        line.x.append(float(x))
        line.y.append(outcome.mean if outcome is not None else math.nan)
        line.spread.append((outcome.spread or 0.0) if outcome is not None else 0.0)
        line.paper.append(cell.paper)
    if any(value is not None for line in lines.values() for value in line.paper):
        caption += " Left ours, right the paper's, each on an axis of its own."
    return Picture(name, caption, png(error_curves(lines, axis=axis, log=log)))


def drawable(found: Sequence[Outcome]) -> bool:
    """Whether there is something to compare: one point of ours is in the table."""
    return sum(bool(outcome.values()) for outcome in found) > 1
