"""A trained surrogate as a function of points: load a run, ask for a field in physical units.

make demo && python examples/predict_on_points.py runs/demo
"""

from __future__ import annotations

import sys

import numpy as np

import flare
from flare.physics import darcy


def main(run: str) -> float:
    model = flare.load(run)
    side = 25
    coefficient = darcy.random_coefficient(4 * (side - 1) + 1, np.random.default_rng(2026))
    truth = darcy.solve(coefficient)[::4, ::4].ravel()
    x, y = np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side))
    field = model.predict(np.stack([x, y], -1).reshape(-1, 2), coefficient=coefficient[::4, ::4].ravel())
    pressure = field["pressure"]
    error = float(np.linalg.norm(pressure - truth) / np.linalg.norm(truth))
    print(f"pressure at {len(pressure)} points, largest {pressure.max():.5f}; rel-L2 to the solver {error:.4f}")
    return error


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
