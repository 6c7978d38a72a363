"""Shape optimisation with a surrogate: let a hole of fixed area take the form that lowers the peak of stress around it.

make demo && python examples/optimise_hole.py runs/demo

The surrogate gives d peak / d points, the mesh d points / d shape; their product is the slope in the ten numbers that
describe the hole. The solver, which took no part, has the last word.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

import flare
from flare.physics import elasticity
from flare.sensitivity import peak, sensitivity
from flare.utils.errors import FlareError

SOFTNESS = 0.3
ANGLES = np.linspace(-np.pi, np.pi, 721)[:-1]


class Outcome(NamedTuple):
    """Peaks before and after, as surrogate and solver see them, and by what part the area of the hole changed."""

    predicted: tuple[float, float]
    solved: tuple[float, float]
    area_change: float


def points_of(shape: np.ndarray) -> np.ndarray:
    return elasticity.OGrid(elasticity.Void(shape.reshape(5, 2)).radius).mesh().gauss_points()


def area_of(shape: np.ndarray) -> float:
    return float(np.pi * np.mean(elasticity.Void(shape.reshape(5, 2)).radius(ANGLES) ** 2))


def jacobian(function, shape: np.ndarray, step: float = 1e-4) -> np.ndarray:
    """d function / d shape, by central differences: geometry alone, so it costs next to nothing."""
    steps = step * np.eye(shape.size)
    return np.stack([(function(shape + s) - function(shape - s)) / (2 * step) for s in steps], -1)


def solved_peak(shape: np.ndarray) -> float:
    mesh = elasticity.OGrid(elasticity.Void(shape.reshape(5, 2)).radius).mesh()
    return float(elasticity.von_mises(elasticity.solve(mesh).gauss_stress()).max())


def optimise(run: str, *, steps: int = 40, seed: int = 2026, stride: float = 0.15) -> Outcome:
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
        slope -= normal * (slope @ normal) / (normal @ normal)  # what keeps the area, to first order
        shape = shape - stride * slope / np.linalg.norm(slope)
        shape = shape - normal * (area_of(shape) - area) / (normal @ normal)  # and the rest
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
    parser = argparse.ArgumentParser(description="Let a hole take the form that lowers the peak of stress around it.")
    parser.add_argument("run", nargs="?", default="runs/demo", help="run on elasticity data; default runs/demo")
    try:
        optimise(parser.parse_args().run)
    except FlareError as error:
        parser.error(str(error))
