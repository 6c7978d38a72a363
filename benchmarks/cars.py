"""The flow past cars: errors of the panels where the answer is known, and what a car and its points cost.

.venv/bin/python benchmarks/cars.py      about three minutes; the tables go into docs/benchmarks
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from flare.physics.cars import car_flow, pressure_coefficient, random_car, solve
from flare.physics.cars.exact import ellipsoid, ellipsoid_cp
from flare.physics.cars.panels import Panels
from flare.physics.cars.triangle import velocity
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, VALIDATION, gigabytes, load, peak_above, run_isolated, save
from table import origin, table, three_digits

ACCURACY = "<!-- cars accuracy table -->", "<!-- end of cars accuracy -->"
COST = "<!-- cars cost table -->", "<!-- end of cars cost -->"
BODIES = {
    "sphere": (1.0, 1.0, 1.0),
    "2 : 1 : 1": (2.0, 1.0, 1.0),
    "2 : 1 : 0.6": (2.0, 1.0, 0.6),
    "1 : 2 : 0.5": (1, 2, 0.5),
}
LEVELS, REFINEMENTS, SIZES, CARS = [1, 2, 3, 4], [0.5, 1.0, 1.5], [40_000, 1_000_000, 10_000_000], 5
"""Subdivisions of an icosahedron; of the panels of a car; points drawn; cars that are timed."""


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def ours(axes: tuple[float, float, float], subdivisions: int) -> float:
    body = ellipsoid(axes, subdivisions)
    return rms(pressure_coefficient(body, solve(body).potential) - ellipsoid_cp(axes, body.vertices))


def summed(axes: tuple[float, float, float], subdivisions: int, *, own: bool) -> float:
    """Error at the centroids of the usual way: ½ as the own term, and the velocities of the panels added up, with or
    without that of a panel in its own plane."""
    panels = Panels(ellipsoid(axes, subdivisions))
    matrix = panels.normal_velocities(exact=True)
    np.fill_diagonal(matrix, 0.5)
    sources = np.linalg.solve(matrix, -panels.normals[:, 0])
    found = panels.velocities(sources, panels.centroids + 1e-9 * panels.normals) + np.array([1.0, 0.0, 0.0])
    if not own:
        for i, (corners, normal) in enumerate(zip(panels.corners, panels.normals, strict=True)):
            alone_in_plane = np.zeros(3)
            velocity(panels.centroids[i], corners, normal, 0.0, alone_in_plane)
            found[i] -= sources[i] * alone_in_plane
    places = panels.centroids / np.linalg.norm(panels.centroids / axes, axis=1)[:, None]
    return rms(1 - np.square(found).sum(axis=1) - ellipsoid_cp(axes, places))


def accuracy(levels: list[int]) -> list[dict[str, Any]]:
    rows = [
        {"method": f"panels of this package, {name}", "errors": [ours(axes, n) for n in levels]}
        for name, axes in BODIES.items()
    ]
    sphere = BODIES["sphere"]
    rows.append({"method": "velocities added up, sphere", "errors": [summed(sphere, n, own=True) for n in levels]})
    rows.append(
        {"method": "the same without a panel's own in-plane velocity, sphere"}
        | {"errors": [summed(sphere, n, own=False) for n in levels]}
    )
    for row in rows:
        print(f"{row['method']:<60}", "  ".join(f"{error:.4f}" for error in row["errors"]), flush=True)
    return rows


def cost(refinement: float) -> dict[str, Any]:
    """Of a car, and how far its drag is from zero."""
    car_flow(random_car(np.random.default_rng(0)), refinement=0.25)  # compiled code is made once
    seconds, drags = [], []
    for index in range(CARS):
        begin = time.process_time()
        flow = car_flow(random_car(np.random.default_rng([0, index])), refinement=refinement)
        seconds.append(time.process_time() - begin)
        drags.append(abs(float(flow.forces[0])))
    found = {"refinement": refinement, "panels": len(flow.surface.faces), "seconds": statistics.median(seconds)}
    found |= {"drag": statistics.median(drags)}
    print(f"refinement {refinement:g}: {found['seconds']:.2f} s, drag {found['drag']:.4f}", flush=True)
    return found


def sampling(points: int) -> dict[str, Any]:
    """Of a fresh process: time and memory to draw so many points of one car."""
    flow = car_flow(random_car(np.random.default_rng(0)), refinement=0.5)
    flow.sample(1000, np.random.default_rng(0))
    begin = time.process_time()
    peak = peak_above(lambda: flow.sample(points, np.random.default_rng(0)))
    return {"points": points, "seconds": time.process_time() - begin, "peak_mb": peak}


def accuracy_table(record: dict[str, Any]) -> str:
    head = ["RMS error of Cp, panels", *(f"{20 * 4**n:,}" for n in record["levels"])]
    errors = table(head, [[row["method"], *(f"{error:.4f}" for error in row["errors"])] for row in record["accuracy"]])
    return f"{errors}\n\n{origin(record)}"


def cost_tables(record: dict[str, Any]) -> str:
    head = ["A car, refinement", "panels", "seconds, one core", "drag coefficient, exactly 0"]
    costs = table(
        head,
        [
            [f"{row['refinement']:g}", f"{row['panels']:,}", three_digits(row["seconds"]), f"{row['drag']:.4f}"]
            for row in record["cost"]
        ],
    )
    head = ["Points drawn of a car", "seconds, one core", "GB"]
    lines = [
        [f"{row['points']:,}", three_digits(row["seconds"]), three_digits(gigabytes(row["peak_mb"]))]
        for row in record["sampling"]
    ]
    return "\n\n".join([costs, table(head, lines), origin(record)])


def main() -> None:
    record: dict[str, Any] = {"levels": LEVELS, "accuracy": accuracy(LEVELS)}
    record["cost"] = [cost(refinement) for refinement in REFINEMENTS]
    record["sampling"] = [run_isolated(sampling, size) for size in SIZES]
    for row in record["sampling"]:
        print(f"{row['points']:,} points: {row['seconds']:.3g} s, {gigabytes(row['peak_mb']):.2f} GB", flush=True)
    save("cars", record, RESULTS)
    made = load("cars") or {}
    replace_between_marks(VALIDATION, *ACCURACY, accuracy_table(made))
    replace_between_marks(PERFORMANCE, *COST, cost_tables(made))


if __name__ == "__main__":
    main()
