"""Shape optimization with a surrogate: minimize the peak stress around a hole of constant area.

make demo && python examples/optimise_hole.py runs/demo

The surrogate gives d peak / d points, the mesh d points / d shape; their product is the gradient by the ten shape
coefficients. The solver checks the result.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

import flare
from flare.inference.sensitivity import peak, sensitivity
from flare.physics import elasticity
from flare.utils.errors import FlareError

SOFTNESS = 0.3
ANGLES = np.linspace(-np.pi, np.pi, 721)[:-1]


class Outcome(NamedTuple):
    """Peak stress before and after, from surrogate and solver, and the relative change of the area."""

    predicted: tuple[float, float]
    solved: tuple[float, float]
    area_change: float


def points_of(shape: np.ndarray) -> np.ndarray:
    """Return the points of the mesh around a hole."""
    return elasticity.OGrid(elasticity.Void(shape.reshape(5, 2)).radius).mesh().gauss_points()


def area_of(shape: np.ndarray) -> float:
    """Return the area of a hole."""
    return float(np.pi * np.mean(elasticity.Void(shape.reshape(5, 2)).radius(ANGLES) ** 2))


def jacobian(function, shape: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """Return d function / d shape by central differences."""
    steps = step * np.eye(shape.size)
    return np.stack([(function(shape + s) - function(shape - s)) / (2 * step) for s in steps], -1)


def solved_peak(shape: np.ndarray) -> float:
    """Return the peak stress from the solver."""
    mesh = elasticity.OGrid(elasticity.Void(shape.reshape(5, 2)).radius).mesh()
    return float(elasticity.von_mises(elasticity.solve(mesh).gauss_stress()).max())


def optimise(run: str, *, steps: int = 40, seed: int = 2026, stride: float = 0.15) -> Outcome:
    """Optimize a random hole with a trained surrogate."""
    model, lowest = flare.load(run), peak("stress", softness=SOFTNESS)
    start = shape = elasticity.random_void(np.random.default_rng(seed)).coefficients.reshape(-1)
    area, best = area_of(start), (np.inf, start)
    for step in range(steps + 1):
        found = sensitivity(model, points_of(shape), lowest)
        best = min(best, (found.value, shape), key=lambda pair: pair[0])
        if step % 10 == 0:
            print(f"step {step:3d}   peak {found.value:7.1f}   area {area_of(shape):.4f}")
        slope = np.einsum("nd,nds->s", found.points, jacobian(points_of, shape))
        normal = jacobian(area_of, shape)
        slope -= normal * (slope @ normal) / (normal @ normal)  # keeps the area, to first order
        shape = shape - stride * slope / np.linalg.norm(slope)
        shape = shape - normal * (area_of(shape) - area) / (normal @ normal)  # corrects the area
    end = best[1]
    outcome = Outcome(
        (sensitivity(model, points_of(start), lowest).value, best[0]),
        (solved_peak(start), solved_peak(end)),
        area_of(end) / area - 1,
    )
    for who, (before, after) in (("surrogate", outcome.predicted), ("solver", outcome.solved)):
        way = "lower" if after < before else "HIGHER"
        print(f"{who:>9}: peak {before:.0f} -> {after:.0f}, {abs(1 - after / before):.0%} {way}")
    return outcome


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Minimize the peak stress around a hole of constant area.")
    parser.add_argument("run", nargs="?", default="runs/demo", help="run on elasticity data; default runs/demo")
    try:
        optimise(parser.parse_args().run)
    except FlareError as error:
        parser.error(str(error))
