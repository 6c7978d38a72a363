"""Figures of the mixing of FLARE layers: eigenvalues per block and head, eigenvectors on the points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from flare.models.spectra import FP32_EPSILON, Spectra
from flare.report.fields import color_bar, draw_field, field_axes, panel_size, symmetric_range
from flare.report.style import GREY, INK, SMALL, TEXT, new_figure, plain
from flare.utils.errors import ConfigError


def spectra_figure(spectra: Spectra, blocks: Sequence[int] | None = None) -> Figure:
    """Draw the eigenvalues of some blocks side by side, one curve per head.

    Args:
        spectra: Means over samples.
        blocks: Blocks, counted from 1. None: the first, the middle and the last (1, 5 and 8 of 8, as in the paper).

    Raises:
        ConfigError: A block does not exist.
    """
    total, heads, latents = spectra.eigenvalues.shape
    blocks = sorted({1, total // 2 + 1, total}) if blocks is None else list(blocks)
    if not blocks or min(blocks) < 1 or max(blocks) > total:
        raise ConfigError(f"blocks={blocks}: the model has blocks 1 to {total}")
    figure = new_figure(1.2 + 3.0 * len(blocks), 3.4)
    panels = figure.subplots(1, len(blocks), sharey=True, squeeze=False)[0]
    colors = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, heads))
    for axes, block in zip(panels, blocks, strict=True):
        for head in range(heads):
            curve = spectra.eigenvalues[block - 1, head].numpy()
            axes.plot(np.arange(latents), curve, color=colors[head], linewidth=1.2, label=f"{head + 1}")
        _frame(axes, latents)
        ranks = spectra.effective_rank[block - 1]
        title = f"Block {block}\neffective rank {_span(ranks.min().item(), ranks.max().item())}"
        plain(axes, x="index", y="eigenvalue" if block == blocks[0] else "", title=title)
    handles, labels = panels[0].get_legend_handles_labels()
    look: dict[str, Any] = {"fontsize": SMALL, "title_fontsize": SMALL, "frameon": False, "ncols": -(-heads // 16)}
    figure.legend(handles, labels, title="Head", loc="outside right center", **look)
    return figure


def eigenvector_figure(
    points: ArrayLike,
    values: ArrayLike,
    vectors: ArrayLike,
    *,
    block: int,
    head: int,
    grid: tuple[int, int] | None = None,
    cells: ArrayLike | None = None,
) -> Figure:
    """Draw the leading eigenvectors of one head as fields on the points, three per row.

    Args:
        points: Points, shape (N, 2) or (N, 3).
        values: Eigenvalues, shape (R,).
        vectors: Eigenvectors of unit RMS, shape (N, R). Each has its own color range, symmetric about zero.
        block: Number of the block, counted from 1.
        head: Number of the head, counted from 1.
        grid: See `draw_field`.
        cells: See `draw_field`.
    """
    x, eigenvalues, v = (np.asarray(a, dtype=float) for a in (points, values, vectors))
    columns, rows = min(3, v.shape[1]), -(-v.shape[1] // 3)
    width, height = panel_size(x)
    figure = new_figure((width + 0.85) * columns, (height + 0.35) * rows + 0.5)
    figure.suptitle(f"Eigenvectors of block {block}, head {head}", fontsize=TEXT + 1, color=INK)
    places = figure.add_gridspec(rows, columns)
    for i in range(v.shape[1]):
        axes = field_axes(figure, places[i // 3, i % 3], x.shape[1])
        axes.set_title(f"λ$_{{{i + 1}}}$ = {eigenvalues[i]:.3g}", fontsize=TEXT, color=INK)
        limits = symmetric_range(v[:, i])
        drawn = draw_field(axes, x, v[:, i], grid=grid, cells=cells, limits=limits, colors="RdBu_r")
        if x.shape[1] == 2:
            axes.tick_params(labelleft=i % 3 == 0, labelbottom=i + 3 >= v.shape[1])
        color_bar(axes, drawn, "", v[:, i])
    return figure


def _frame(axes: Axes, latents: int) -> None:
    """Set the axes of the paper, and mark the last index and the epsilon of float32, below which values are noise."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 2)
    axes.axvline(latents - 1, color=GREY, linewidth=0.8, linestyle=":")
    axes.axhline(FP32_EPSILON, color=GREY, linewidth=0.8, linestyle="--")
    # There, fast curves have left the picture and slow ones are above.
    note = axes.text(latents - 1, 0.7 * FP32_EPSILON, "FP32 epsilon ", fontsize=SMALL, color=GREY, ha="right", va="top")
    note.set_bbox({"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 0.5})


def _span(low: float, high: float) -> str:
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
