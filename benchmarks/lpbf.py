"""What a simulated print costs: seconds on one and on two threads, memory, growth with nodes, solver iterations.

.venv/bin/python benchmarks/lpbf.py            about ten minutes on a quiet machine; the tables go into `PAGE`
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.physics.lpbf import numba_threads, process_preset, simulate
from flare.physics.lpbf.parts import draw_part
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, gigabytes, load, others_percent, peak_above, run_isolated, save
from table import origin, table, three_digits

PAGE = PERFORMANCE
BEGIN, END = "<!-- cost table -->", "<!-- end of cost -->"
DZ, GROUP = 0.6, 4
"""Height of a voxel in mm, voxels of a layer group: the benchmark's."""


class Tube(NamedTuple):
    """An upright tube of square voxels."""

    across: int
    """Voxels of its outer diameter."""
    wall: int
    """Voxels of its wall."""
    groups: int

    def voxels(self) -> Voxels:
        middle = (np.arange(self.across) + 0.5) - self.across / 2
        radius = np.hypot(*np.meshgrid(middle, middle, indexing="ij"))
        ring = (radius < self.across / 2) & (radius > self.across / 2 - self.wall)
        solid = np.repeat(ring[:, :, None], GROUP * self.groups, axis=2)
        return Voxels(solid, (0.5, 0.5, DZ), (-self.across / 4, -self.across / 4, 0.0))


class RandomPart(NamedTuple):
    """Of the dataset: a sample of seed 0."""

    index: int

    def voxels(self) -> Voxels:
        return draw_part(np.random.default_rng([0, self.index])).voxels


Case = Tube | RandomPart
CASES: dict[str, tuple[Case, float | None, float | None]] = {
    "tube, 10,000 nodes, 10 groups": (Tube(28, 2, 10), 30.0, None),
    "tube, 20,000 nodes, 25 groups": (Tube(24, 2, 25), 180.0, None),
    "tube, 50,000 nodes, 10 groups": (Tube(80, 4, 10), None, 8.0),
    "random part 20, 25 groups": (RandomPart(20), 180.0, 8.0),
}
"""Part, and the seconds on two cores and the gigabytes it may take."""
GROWTH = [Tube(20, 2, 5), Tube(40, 2, 5), Tube(60, 3, 5), Tube(100, 4, 5)]
REFINEMENTS = (1, 2, 4)
"""Into so many voxels each edge of a coarse one is divided."""


def measure(case: Case, count: int) -> dict[str, Any]:
    """One print in benchmark mode; the second of this process, so that compiling is not counted."""
    voxels, process = case.voxels(), process_preset("ti64-am250")
    with numba_threads(count):
        simulate(Tube(10, 2, 1).voxels(), process)
        begin = time.perf_counter()
        result = simulate(voxels, process, keep_frames=False)
        seconds = time.perf_counter() - begin
    fewer = len(merged(voxels).points)
    return {"nodes": len(result.positions), "merged": fewer, "voxels": voxels.count, "seconds": seconds}


def peak(case: Case) -> float:
    """MiB above the process itself."""
    return peak_above(lambda: simulate(case.voxels(), process_preset("ti64-am250"), keep_frames=False))


def block(divided: int) -> Voxels:
    """12 × 6 × 9.6 mm."""
    solid = np.ones((12 * divided, 6 * divided, 8 * divided), dtype=bool)
    return Voxels(solid, (1.0 / divided, 1.0 / divided, 1.2 / divided), (-6.0, -3.0, 0.0))


def frame(divided: int) -> Voxels:
    """Four slender posts of 3 mm with a roof over them, 18 × 12 × 14.4 mm: what multigrid likes least."""
    posts = np.zeros((12, 8, 12), dtype=bool)
    for i, j in ((0, 0), (0, 6), (10, 0), (10, 6)):
        posts[i : i + 2, j : j + 2] = True
    posts[:, :, 10:] = True
    solid = posts.repeat(divided, 0).repeat(divided, 1).repeat(divided, 2)
    return Voxels(solid, (1.5 / divided, 1.5 / divided, 1.2 / divided), (-9.0, -6.0, 0.0))


def iterations(part: Callable[[int], Voxels], divided: int) -> dict[str, Any]:
    """Of conjugate gradients: most of any group, and at release."""
    found: list[int] = []
    voxels = part(divided)
    result = simulate(
        voxels,
        process_preset("ti64-am250"),
        on_group=lambda done, groups, state, step: found.append(step.iterations),
    )
    facts = {"part": part.__name__, "voxels": voxels.count, "nodes": len(result.positions)}
    return facts | {"most": max(found), "released": result.released.iterations}


def exponent(rows: list[dict[str, Any]]) -> float:
    """Of nodes in seconds, by least squares of the logarithms."""
    return float(np.polyfit(np.log([row["nodes"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)[0])


def held(value: float, limit: float | None) -> str:
    """The value, its limit, and whether it is kept."""
    if limit is None:
        return three_digits(value)
    return f"{three_digits(value)} of {limit:g}" + ("" if value <= limit else ", **too much**")


def tables(record: dict[str, Any]) -> str:
    cost = [
        [
            name,
            f"{row['nodes']:,}",
            f"{row['merged']:,}",
            three_digits(row["one"]),
            held(row["two"], row["most_seconds"]),
            held(gigabytes(row["peak_mb"]), row["most_gb"]),
        ]
        for name, row in record["cases"].items()
    ]
    growth = [[f"{row['nodes']:,}", three_digits(row["seconds"])] for row in record["growth"]]
    keys = ("part", "voxels", "nodes", "most", "released")
    finer = [[f"{row[key]:,}" if key != "part" else row[key] for key in keys] for row in record["iterations"]]
    head = ["Benchmark mode", "nodes", "after merging", "seconds, 1 thread", "seconds, 2 threads", "GB"]
    return "\n\n".join(
        [
            table(head, cost),
            table(["Growth: nodes of a tube, 5 groups", "seconds, 2 threads"], growth),
            f"Time grows as nodes to the power {record['exponent']:.2f}.",
            table(["Refined", "voxels", "nodes", "iterations, most of any group", "at release"], finer),
            origin(record),
        ]
    )


def main(out: Path = RESULTS, page: Path = PAGE) -> None:
    record: dict[str, Any] = {"others_percent": others_percent(), "cases": {}}
    for name, (case, most_seconds, most_gb) in CASES.items():
        one, two = measure(case, 1), measure(case, 2)
        limits = {"most_seconds": most_seconds, "most_gb": most_gb}
        facts = {"one": one["seconds"], "two": two["seconds"], "peak_mb": run_isolated(peak, case)}
        record["cases"][name] = two | facts | limits
        print(f"{name}: {two['nodes']:,} nodes, {one['seconds']:.1f} s and {two['seconds']:.1f} s", flush=True)
    record["growth"] = [measure(tube, 2) for tube in GROWTH]
    record["exponent"] = exponent(record["growth"])
    record["iterations"] = [iterations(part, divided) for part in (block, frame) for divided in REFINEMENTS]
    save("lpbf", record, out)
    replace_between_marks(page, BEGIN, END, tables(load("lpbf", out) or {}))


if __name__ == "__main__":
    main()
