"""Statistics that characterize the dataset of a benchmark. Its card has those of the published files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import is_benchmark
from flare.data.dataset import Dataset
from flare.data.sample import Sample

GAMMA = 1.4
CAR_SPEED = 38.889  # m/s
HEXAHEDRON_EDGES = [[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4], [0, 4], [1, 5], [2, 6], [3, 7]]

STATISTICS: dict[str, Callable[[Any], Any]] = {
    "mean": np.mean,
    "spread": np.std,
    "smallest": np.min,
    "lower quartile": lambda x: np.quantile(x, 0.25),
    "median": np.median,
    "upper quartile": lambda x: np.quantile(x, 0.75),
    "largest": np.max,
}
"""Statistics over samples of one quantity per sample; landmarks are called `median of nodes` etc."""
UNITS = {"height": "mm", "largest rise": "mm", "largest von Mises stress": "MPa"}
"""Units of these quantities."""


def labelled(quantity: str) -> str:
    """Return a quantity with its unit, such as `height, mm`."""
    return f"{quantity}, {UNITS[quantity]}" if quantity in UNITS else quantity


def landmarks(dataset: Dataset, indices: Sequence[int] | None = None) -> dict[str, float]:
    """Compute the landmarks of a dataset over all samples or some; empty if it is not a benchmark."""
    if not is_benchmark(dataset.schema):
        return {}
    measure = MEASURES[dataset.schema.name]
    return measure(dataset, list(range(len(dataset))) if indices is None else list(indices))


def _elasticity(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    stress = [dataset[i].values["stress"].astype(np.float64) for i in indices]
    return {
        "mean": float(np.mean([s.mean() for s in stress])),
        "median of the samples' means": float(np.median([s.mean() for s in stress])),
        "median of the samples' maxima": float(np.median([s.max() for s in stress])),
        "smallest of the samples' means": float(min(s.mean() for s in stress)),
        "largest of the samples' means": float(max(s.mean() for s in stress)),
        "smallest of the samples' maxima": float(min(s.max() for s in stress)),
        "share of points below 18.2": float(np.mean([(s < 18.2).mean() for s in stress])),
        "share of points from 18.2 to 36.4": float(np.mean([((s >= 18.2) & (s < 36.4)).mean() for s in stress])),
        "smallest": float(min(s.min() for s in stress)),
        "largest": float(max(s.max() for s in stress)),
    }


def _darcy(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    border, largest, inside, phase = [], [], [], []
    for i in indices:
        sample = dataset[i]
        u = _on_grid(dataset, sample, "pressure")[..., 0]
        edge = np.abs(np.concatenate([u[0], u[-1], u[1:-1, 0], u[1:-1, -1]]))
        border.append(edge.mean())
        largest.append(edge.max())
        inside.append(np.square(u[1:-1, 1:-1]).mean())
        phase.append((sample.values["coefficient"] > 7.5).mean())
    return {
        "mean of |u| at the border": float(np.mean(border)),
        "largest |u| at the border": float(np.max(largest)),
        "RMS of u inside": float(np.sqrt(np.mean(inside))),
        "share of the phase a = 12": float(np.mean(phase)),
        "spread of that share": float(np.std(phase)),
    }


def _airfoil(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    supersonic, energy, enthalpy, entropy, uneven, far, largest = [], [], [], [], [], [], []
    for i in indices:
        values = {name: array.astype(np.float64) for name, array in dataset[i].values.items()}
        density, pressure = values["density"][:, 0], values["pressure"][:, 0]
        speed_squared = np.square(values["velocity"]).sum(1)
        supersonic.append((values["mach"] > 1).mean())
        energy.append((pressure / density / (GAMMA - 1) + speed_squared / 2).std())
        enthalpy.append((GAMMA / (GAMMA - 1) * pressure / density + speed_squared / 2).std())
        entropy.append((pressure / density**GAMMA).std())
        uneven.append(np.abs(pressure / density**GAMMA - 1).max())
        away = np.linalg.norm(values["points"], axis=1) > 20
        far.append(max(np.abs(density[away] - 1).mean(), np.abs(pressure[away] - 1).mean()))
        largest.append(values["mach"].max())
    return {
        "share of supersonic nodes": float(np.mean(supersonic)),
        "spread of total energy": float(np.mean(energy)),
        "spread of total enthalpy": float(np.mean(enthalpy)),
        "spread of entropy": float(np.mean(entropy)),
        "largest departure of entropy from 1": float(np.max(uneven)),
        "mean departure of density or pressure beyond 20 chords": float(np.max(far)),
        "median of the samples' largest Mach number": float(np.median(largest)),
    }


def _pipe(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    u = [_on_grid(dataset, dataset[i], "velocity")[..., 0] for i in indices]
    return {
        "mean at the inlet": float(np.mean([a[0].mean() for a in u])),
        "mean at the outlet": float(np.mean([a[-1].mean() for a in u])),
        "mean of the row above the lower wall": float(np.mean([a[:, 1].mean() for a in u])),
        "mean of the row below the upper wall": float(np.mean([a[:, -2].mean() for a in u])),
        "median of the samples' maxima": float(np.median([a.max() for a in u])),
        "smallest": float(min(a.min() for a in u)),
    }


def _lpbf(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    samples = [dataset[i] for i in indices]
    nodes = dataset.sizes[list(indices)]
    points = [sample.values["points"].astype(np.float64) for sample in samples]
    edges = [_edges(sample.cells) for sample in samples if sample.cells is not None]
    rise = [float(sample.values["displacement"].max()) for sample in samples]
    found = {
        "nodes": nodes,
        "edges": [len(e) for e in edges],
        "edges per node": [len(e) / n for e, n in zip(edges, nodes, strict=True)],
        "aspect ratio": [_aspect_ratio(p, e) for p, e in zip(points, edges, strict=True)],
        "height": [float(np.ptp(p[:, 2])) for p in points],
        "largest rise": rise,
        "largest von Mises stress": [float(sample.values["von_mises"].max()) for sample in samples],
    }
    return {
        f"{name} of {what}": float(take(values)) for what, values in found.items() for name, take in STATISTICS.items()
    }


def _cars(dataset: Dataset, indices: Sequence[int]) -> dict[str, float]:
    cp = [dataset[i].values["pressure"].astype(np.float64) / (CAR_SPEED**2 / 2) for i in indices]
    mean = np.mean([c.mean() for c in cp])
    return {
        "mean of Cp": float(mean),
        "spread of Cp": float(np.sqrt(np.mean([np.square(c - mean).mean() for c in cp]))),
        "median of the samples' smallest Cp": float(np.median([c.min() for c in cp])),
        "median of the samples' largest Cp": float(np.median([c.max() for c in cp])),
    }


def _edges(cells: np.ndarray) -> np.ndarray:
    """Return the edges of hexahedra in both directions, each once, shape (E, 2)."""
    pairs = cells[:, HEXAHEDRON_EDGES].reshape(-1, 2)
    return np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)


def _aspect_ratio(points: np.ndarray, edges: np.ndarray) -> float:
    """Return the ratio of the longest to the shortest edge of the smallest element; all elements are similar."""
    lengths = np.abs(points[edges[:, 0]] - points[edges[:, 1]])
    shortest = [along[along > 1e-6].min() for along in lengths.T]
    return float(max(shortest) / min(shortest))


def _on_grid(dataset: Dataset, sample: Sample, name: str) -> np.ndarray:
    assert dataset.schema.grid is not None
    return sample.values[name].astype(np.float64).reshape(*dataset.schema.grid, -1)


MEASURES: dict[str, Callable[[Dataset, Sequence[int]], dict[str, float]]] = {
    "elasticity": _elasticity,
    "darcy": _darcy,
    "airfoil": _airfoil,
    "pipe": _pipe,
    "lpbf": _lpbf,
    "drivaerml": _cars,
    "car-potential": _cars,
}
