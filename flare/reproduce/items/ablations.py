"""Ablations: the error of FLARE over a grid of two of its options (Figures 9 to 13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flare.reproduce.analyses import TrainedSpectra
from flare.reproduce.budgets import BUDGETS, Budget
from flare.reproduce.figures import grid_curves
from flare.reproduce.items.spectra import SAMPLES, spectra_blocks
from flare.reproduce.jobs import Training
from flare.reproduce.study import (
    ERROR,
    PAPER,
    READ_OFF,
    Block,
    Cell,
    Item,
    Outcome,
    error_table,
    labels,
    matrix,
)

Point = tuple[Any, Any]
Settings = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Ablation:
    """A grid of two options of FLARE on some benchmarks."""

    name: str
    title: str
    where: str
    axes: tuple[str, str]
    """Names of the options in the names of cells, such as `blocks` in `blocks=8`. Empty: the value alone."""
    columns: tuple[str, str]
    """Titles of the columns of the options."""
    grids: Mapping[str, Sequence[Point]]
    """Budget -> points of the grid."""
    settings: Callable[[Budget, Any, Any], Settings]
    """Returns the overrides of a training from the budget and the two options."""
    paper: Mapping[str, Mapping[Point, float]]
    """Dataset -> point -> error in thousandths."""
    paper_title: str = READ_OFF
    legend: str = "M ="
    """Text before the second option in the legend of the figure."""
    log: bool = True
    """Whether the abscissa of the figure is logarithmic."""
    more: Callable[[Sequence[Outcome], Budget], dict[str, list[str]]] = lambda found, budget: {}
    """Returns further columns of the table of errors."""

    def cells(self, budget: Budget) -> list[Cell]:
        """List the cells of all datasets."""
        exact = BUDGETS["paper"]
        return [
            Cell(
                (
                    dataset,
                    *(f"{axis}={value}" if axis else value for axis, value in zip(self.axes, point, strict=True)),
                ),
                budget.training(dataset, "flare", *self.settings(budget, *point)),
                exact=exact.training(dataset, "flare", *self.settings(exact, *point)),
                paper=1e-3 * paper[point] if budget.comparable and point in paper else None,
            )
            for dataset, paper in self.paper.items()
            for point in self.grids[budget.name]
        ]

    def report(self, found: Sequence[Outcome], budget: Budget) -> list[Block]:
        """Build a matrix and a figure per dataset, and the table of errors."""
        wanted = self.cells(budget)
        blocks: list[Block] = []
        for dataset in self.paper:
            here = [outcome for outcome in found if outcome.cell.parts[0] == dataset]
            cells = [cell for cell in wanted if cell.parts[0] == dataset]
            name = self.name if len(self.paper) == 1 else f"{self.name}-{dataset}"
            caption = f"{dataset}: relative L2 error over {self.columns[0]}; the paper's in the right panel."
            blocks += self._matrix(dataset, cells, here)
            blocks += grid_curves(
                name, cells, here, axis=self.columns[0], by=self.legend, caption=caption, log=self.log
            )
        table = error_table(("dataset", *self.columns), found, self.paper_title, self.more(found, budget))
        return [*blocks, "All cells:", table]

    def _matrix(self, dataset: str, cells: Sequence[Cell], found: Sequence[Outcome]) -> list[Block]:
        """Build a table of the second option over the first; nothing if the second has one value."""

        def place(cell: Cell) -> tuple[str, str]:
            _, column, row = labels(cell)
            return row, column

        wanted = {place(cell): cell for cell in cells}
        if len({row for row, _ in wanted}) < 2:
            return []
        best = min((o for o in found if o.values()), key=lambda outcome: outcome.mean, default=None)
        bold = [place(best.cell)] if best is not None else []
        title = f"{dataset}, {ERROR}, ours (paper), {self.columns[1]} (rows) × {self.columns[0]}, lowest mean in bold:"
        return matrix(self.columns[1], wanted, {place(o.cell): o for o in found}, bold, title)

    def item(self) -> Item:
        """Return the item of the registry."""
        return Item(self.name, self.title, self.cells, self.report, self.where)


def _table(columns: Sequence[int], rows: Mapping[Any, Sequence[float]]) -> dict[Point, float]:
    """Turn a table of the paper, row -> numbers of the columns, into (column, row) -> number."""
    return {(c, r): value for r, values in rows.items() for c, value in zip(columns, values, strict=True)}


def _blocks_latents(budget: Budget, blocks: int, latents: int) -> Settings:
    heads = budget.sizes.get("heads", 8)  # also on Darcy, where Table 1 has 16
    return [("model.blocks", blocks), ("model.latents", latents), ("model.heads", heads)]


BLOCKS_LATENTS = Ablation(
    name="blocks-latents",
    title="Blocks × latents",
    where="Figure 9",
    axes=("blocks", "latents"),
    columns=("blocks", "latents"),
    grids={
        "smoke": [(b, m) for m in (2, 4) for b in (1, 2)],
        "cpu": [(b, m) for m in (16, 64) for b in (1, 2, 4, 8)],
        "paper": [(b, m) for m in (16, 32, 64, 128, 256, 512) for b in (1, 2, 4, 8, 12, 16, 20)],
    },
    settings=_blocks_latents,
    paper={
        "elasticity": _table(
            (1, 2, 4, 8, 12, 16, 20),
            {
                16: (23.0, 9.94, 6.48, 4.70, 3.26, 3.42, 3.25),
                32: (22.6, 10.9, 6.48, 3.39, 3.91, 3.10, 2.92),
                64: (22.0, 9.99, 5.23, 3.84, 4.06, 3.17, 2.95),
                128: (26.9, 9.58, 5.28, 3.43, 3.31, 3.61, 3.10),
                256: (21.0, 9.51, 6.27, 3.51, 3.00, 3.46, 3.51),
                512: (21.9, 8.75, 5.36, 3.87, 2.96, 3.44, 3.13),
            },
        ),
        "darcy": _table(
            (1, 2, 4, 8, 12, 16, 20),
            {
                16: (22.2, 11.6, 8.36, 6.70, 6.45, 6.34, 6.21),
                32: (20.1, 9.14, 6.63, 6.07, 6.11, 6.17, 5.96),
                64: (18.6, 8.28, 6.09, 5.88, 5.86, 5.68, 5.78),
                128: (18.5, 7.67, 5.87, 5.42, 5.24, 5.32, 5.11),
                256: (19.1, 7.37, 5.74, 5.26, 5.57, 5.23, 5.39),
                512: (18.3, 7.41, 5.61, 5.10, 4.91, 5.15, 5.04),
            },
        ),
    },
).item()


def _depth_grids(depths: Sequence[int]) -> dict[str, list[Point]]:
    return {
        "smoke": [(depth, 4) for depth in depths[:2]],
        "cpu": [(depth, 64) for depth in depths],
        "paper": [(depth, m) for m in (16, 32, 64, 128) for depth in depths],
    }


KV_DEPTH = Ablation(
    name="kv-depth",
    title="K/V depth",
    where="Figure 10, left",
    axes=("depth", "latents"),
    columns=("K/V depth", "latents"),
    grids=_depth_grids(range(6)),
    settings=lambda budget, depth, latents: [("model.kv_depth", depth), ("model.latents", latents)],
    paper={
        "elasticity": _table(
            range(6),
            {
                16: (6.36, 4.95, 4.46, 5.14, 3.61, 4.06),
                32: (6.31, 4.53, 4.92, 3.67, 4.01, 3.68),
                64: (5.96, 3.91, 3.79, 3.77, 3.68, 3.57),
                128: (6.03, 4.32, 3.64, 3.66, 3.62, 3.78),
            },
        )
    },
    log=False,
).item()


FFN_DEPTH = Ablation(
    name="ffn-depth",
    title="FFN depth",
    where="Figure 10, right",
    axes=("depth", "latents"),
    columns=("FFN depth", "latents"),
    grids=_depth_grids(range(6)),
    settings=lambda budget, depth, latents: [("model.ffn_depth", depth), ("model.latents", latents)],
    paper={
        "elasticity": _table(
            range(6),
            {
                16: (4.28, 4.42, 4.02, 5.14, 4.06, 4.02),
                32: (4.47, 4.53, 3.74, 3.67, 3.85, 4.37),
                64: (4.40, 4.12, 3.94, 3.77, 4.36, 3.65),
                128: (4.11, 3.94, 3.83, 3.66, 3.47, 3.53),
            },
        )
    },
    log=False,
).item()


def _head_width(budget: Budget, width: int, latents: int) -> Settings:
    return [("model.heads", budget.model("elasticity")["channels"] // width), ("model.latents", latents)]


HEAD_DIMENSION = Ablation(
    name="head-dimension",
    title="Head dimension",
    where="Figure 13",
    axes=("width", "latents"),
    columns=("head width", "latents"),
    grids={
        "smoke": [(2, 4), (8, 4)],
        "cpu": [(d, 64) for d in (2, 4, 8, 16, 32)],  # half of the channels, so one width less
        "paper": [(d, m) for m in (16, 32, 64, 128) for d in (2, 4, 8, 16, 32, 64)],
    },
    settings=_head_width,
    paper={
        "elasticity": _table(
            (2, 4, 8, 16, 32, 64),
            {
                16: (5.28, 4.51, 5.05, 4.71, 5.02, 5.54),
                32: (3.91, 3.80, 3.71, 3.92, 4.57, 5.25),
                64: (4.55, 3.45, 3.73, 3.98, 4.44, 5.61),
                128: (4.60, 4.16, 4.30, 3.92, 4.38, 4.60),
            },
        )
    },
).item()


PAPERS_SECONDS = _table(
    (1, 2, 4, 8),
    {
        0: (4.6, 6.5, 9.9, 16.8),
        1: (5.2, 7.6, 12.3, 21.9),
        2: (5.6, 8.3, 15.8, 25.7),
        4: (6.5, 10.2, 17.9, 34.2),
        8: (8.3, 13.7, 24.8, 48.8),
    },
)
"""(blocks, latent blocks) -> seconds of an epoch in the paper's figure, on a GPU that it does not name."""


def _latent_blocks(budget: Budget, blocks: int, latent_blocks: int) -> Settings:
    # Without latent blocks this is the model of the other ablations, and they share its run.
    return [("model.blocks", blocks), *([("model.latent_blocks", latent_blocks)] if latent_blocks else [])]


def _epoch_seconds(found: Sequence[Outcome], budget: Budget) -> dict[str, list[str]]:
    """Return columns with the seconds of an epoch here, the least of all seeds, and in the paper."""
    ours, theirs = [], []
    for outcome in found:
        done = [r for r in outcome.records if r.outcome == "done" and r.result.get("epochs")]
        known = [(r.made.get("cpu_seconds") or r.made.get("seconds"), r.result["epochs"]) for r in done]
        ours.append(min((seconds / epochs for seconds, epochs in known if seconds), default=None))
        _, blocks, latent_blocks = labels(outcome.cell)
        point = int(blocks), int(latent_blocks)
        theirs.append(PAPERS_SECONDS.get(point) if budget.comparable else None)
    columns = {"s per epoch, least of seeds": ours, "paper: s per epoch on its GPU": theirs}
    return {title: ["" if v is None else f"{v:.1f}" for v in values] for title, values in columns.items()}


LATENT_BLOCKS = Ablation(
    name="latent-blocks",
    title="Latent blocks × blocks",
    where="Figure 11",
    axes=("blocks", "latent-blocks"),
    columns=("blocks", "latent blocks"),
    grids={
        "smoke": [(b, l) for l in (0, 1) for b in (1, 2)],
        "cpu": [(b, l) for l in (0, 1, 4) for b in (1, 2, 4) if b * (l + 1) <= 10],
        "paper": [(b, l) for l in (0, 1, 2, 4, 8) for b in (1, 2, 4, 8)],
    },
    settings=_latent_blocks,
    paper={
        "elasticity": _table(
            (1, 2, 4, 8),
            {
                0: (21.2, 10.5, 5.27, 3.73),
                1: (13.9, 8.59, 5.32, 3.65),
                2: (13.4, 7.71, 4.82, 4.56),
                4: (13.9, 7.00, 5.48, 4.30),
                8: (12.3, 7.84, 5.39, 4.19),
            },
        )
    },
    paper_title=PAPER,
    legend="latent blocks",
    more=_epoch_seconds,
).item()


def _shared_latents(budget: Budget, blocks: int, kind: str) -> Settings:
    return [("model.blocks", blocks), *([("model.shared_latents", True)] if kind == "shared" else [])]


_ERRORS = Ablation(
    name="shared-latents",
    title="Shared or independent latents",
    where="Figure 12",
    axes=("blocks", ""),
    columns=("blocks", "latents"),
    grids={
        "smoke": [(b, kind) for kind in ("independent", "shared") for b in (1, 2)],
        "cpu": [(b, kind) for kind in ("independent", "shared") for b in (1, 2, 4, 8)],
        "paper": [(b, kind) for kind in ("independent", "shared") for b in (1, 2, 4, 8)],
    },
    settings=_shared_latents,
    paper={
        "elasticity": _table(
            (1, 2, 4, 8), {"independent": (21.9, 9.99, 5.21, 3.85), "shared": (20.8, 10.8, 5.91, 4.37)}
        )
    },
    paper_title=PAPER,
    legend="",
)


def _spectra(budget: Budget) -> list[Cell]:
    """List the spectra of the deepest models with seed 0."""
    deepest = f"blocks={max(blocks for blocks, _ in _ERRORS.grids[budget.name])}"
    return [
        Cell(("spectra", cell.parts[2]), TrainedSpectra(cell.job, SAMPLES[budget.name]), cell.exact)
        for cell in _ERRORS.cells(budget)
        if cell.parts[1] == deepest and isinstance(cell.job, Training)
    ]


def _shared_cells(budget: Budget) -> list[Cell]:
    return [*_ERRORS.cells(budget), *_spectra(budget)]


def _shared_report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    errors, spectra = ([o for o in found if (o.cell.parts[0] == "spectra") == which] for which in (False, True))
    return [*(_ERRORS.report(errors, budget) if errors else []), *spectra_blocks(spectra, "shared-latents")]


SHARED_LATENTS = replace(_ERRORS.item(), cells=_shared_cells, report=_shared_report)
