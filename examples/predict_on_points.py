"""Load a trained surrogate and predict a field in physical units at given points.

make demo && python examples/predict_on_points.py runs/demo
"""

from __future__ import annotations

import argparse

import numpy as np

import flare
from flare.physics import elasticity
from flare.utils.errors import FlareError


def main(run: str) -> float:
    """Predict the stress around a random hole and return the relative L2 error."""
    model = flare.load(run)
    mesh = elasticity.OGrid(elasticity.random_void(np.random.default_rng(2026)).radius).mesh()
    truth = elasticity.von_mises(elasticity.solve(mesh).gauss_stress())
    stress = model.predict(mesh.gauss_points())["stress"]
    error = float(np.linalg.norm(stress - truth) / np.linalg.norm(truth))
    print(f"stress at {len(stress)} points, largest {stress.max():.1f}; rel-L2 to the solver {error:.4f}")
    return error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Predict the stress around a hole, and compare with the solver.")
    parser.add_argument("run", nargs="?", default="runs/demo", help="run on elasticity data; default runs/demo")
    try:
        main(parser.parse_args().run)
    except FlareError as error:
        parser.error(str(error))
