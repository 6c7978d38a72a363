"""Statistics that characterize the dataset of a benchmark. Its card has those of the published files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flare.data.benchmarks.cards import is_benchmark
from flare.data.dataset import Dataset
from flare.mesh.octree import edges_of

GAMMA = 1.4
CAR_SPEED = 38.889  # m/s

Landmarks = dict[str, Any]
"""Name of a statistic -> its value."""
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
    found = measure(dataset, list(range(len(dataset))) if indices is None else list(indices))
    return {name: float(value) for name, value in found.items()}


def _elasticity(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    stress = _doubles(dataset, indices, "stress")
    means, largest = [s.mean() for s in stress], [s.max() for s in stress]
    return {
        "mean": np.mean(means),
        "median of the samples' means": np.median(means),
        "median of the samples' maxima": np.median(largest),
        "smallest of the samples' means": min(means),
        "largest of the samples' means": max(means),
        "smallest of the samples' maxima": min(largest),
        "share of points below 18.2": np.mean([(s < 18.2).mean() for s in stress]),
        "share of points from 18.2 to 36.4": np.mean([((s >= 18.2) & (s < 36.4)).mean() for s in stress]),
        "smallest": min(s.min() for s in stress),
        "largest": max(largest),
    }


def _darcy(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    u = _on_grid(dataset, indices, "pressure")
    border = [np.abs(np.concatenate([a[0], a[-1], a[1:-1, 0], a[1:-1, -1]])) for a in u]
    phase = [(coefficient > 7.5).mean() for coefficient in _doubles(dataset, indices, "coefficient")]
    return {
        "mean of |u| at the border": np.mean([edge.mean() for edge in border]),
        "largest |u| at the border": np.max([edge.max() for edge in border]),
        "RMS of u inside": np.sqrt(np.mean([np.square(a[1:-1, 1:-1]).mean() for a in u])),
        "share of the phase a = 12": np.mean(phase),
        "spread of that share": np.std(phase),
    }


def _airfoil(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    rows = []
    for i in indices:
        values = {name: array.astype(np.float64) for name, array in dataset[i].values.items()}
        density, pressure = values["density"][:, 0], values["pressure"][:, 0]
        kinetic, isentropic = np.square(values["velocity"]).sum(1) / 2, pressure / density**GAMMA
        away = np.linalg.norm(values["points"], axis=1) > 20
        far = max(np.abs(density[away] - 1).mean(), np.abs(pressure[away] - 1).mean())
        supersonic, largest = (values["mach"] > 1).mean(), values["mach"].max()
        energy = (pressure / density / (GAMMA - 1) + kinetic).std()
        enthalpy = (GAMMA / (GAMMA - 1) * pressure / density + kinetic).std()
        rows.append((supersonic, energy, enthalpy, isentropic.std(), np.abs(isentropic - 1).max(), far, largest))
    means, most = np.mean(rows, axis=0), np.max(rows, axis=0)
    return {
        "share of supersonic nodes": means[0],
        "spread of total energy": means[1],
        "spread of total enthalpy": means[2],
        "spread of entropy": means[3],
        "largest departure of entropy from 1": most[4],
        "mean departure of density or pressure beyond 20 chords": most[5],
        "median of the samples' largest Mach number": np.median([row[6] for row in rows]),
    }


def _pipe(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    u = _on_grid(dataset, indices, "velocity")
    return {
        "mean at the inlet": np.mean([a[0].mean() for a in u]),
        "mean at the outlet": np.mean([a[-1].mean() for a in u]),
        "mean of the row above the lower wall": np.mean([a[:, 1].mean() for a in u]),
        "mean of the row below the upper wall": np.mean([a[:, -2].mean() for a in u]),
        "median of the samples' maxima": np.median([a.max() for a in u]),
        "smallest": min(a.min() for a in u),
    }


def _lpbf(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    nodes = dataset.sizes[list(indices)]
    points = _doubles(dataset, indices, "points")
    edges = [edges_of(dataset[i].cells, n).T for i, n in zip(indices, nodes, strict=True)]  # type: ignore[arg-type]
    found = {
        "nodes": nodes,
        "edges": [len(e) for e in edges],
        "edges per node": [len(e) / n for e, n in zip(edges, nodes, strict=True)],
        "aspect ratio": [_aspect_ratio(p, e) for p, e in zip(points, edges, strict=True)],
        "height": [np.ptp(p[:, 2]) for p in points],
        "largest rise": [rise.max() for rise in _doubles(dataset, indices, "displacement")],
        "largest von Mises stress": [stress.max() for stress in _doubles(dataset, indices, "von_mises")],
    }
    return {f"{name} of {what}": take(values) for what, values in found.items() for name, take in STATISTICS.items()}


def _cars(dataset: Dataset, indices: Sequence[int]) -> Landmarks:
    cp = [pressure / (CAR_SPEED**2 / 2) for pressure in _doubles(dataset, indices, "pressure")]
    mean = np.mean([c.mean() for c in cp])
    return {
        "mean of Cp": mean,
        "spread of Cp": np.sqrt(np.mean([np.square(c - mean).mean() for c in cp])),
        "median of the samples' smallest Cp": np.median([c.min() for c in cp]),
        "median of the samples' largest Cp": np.median([c.max() for c in cp]),
    }


def _aspect_ratio(points: np.ndarray, edges: np.ndarray) -> float:
    """Return the ratio of the longest to the shortest edge of the smallest element; all elements are similar."""
    lengths = np.abs(points[edges[:, 0]] - points[edges[:, 1]])
    shortest = [along[along > 1e-6].min() for along in lengths.T]
    return float(max(shortest) / min(shortest))


def _doubles(dataset: Dataset, indices: Sequence[int], name: str) -> list[np.ndarray]:
    return [dataset[i].values[name].astype(np.float64) for i in indices]


def _on_grid(dataset: Dataset, indices: Sequence[int], name: str) -> list[np.ndarray]:
    assert dataset.schema.grid is not None
    return [values.reshape(dataset.schema.grid) for values in _doubles(dataset, indices, name)]


MEASURES: dict[str, Callable[[Dataset, Sequence[int]], Landmarks]] = {
    "elasticity": _elasticity,
    "darcy": _darcy,
    "airfoil": _airfoil,
    "pipe": _pipe,
    "lpbf": _lpbf,
    "drivaerml": _cars,
    "car-potential": _cars,
}
