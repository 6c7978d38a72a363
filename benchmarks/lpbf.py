"""What a simulated print costs: seconds on one and on two threads, memory, growth with nodes, solver iterations.

.venv/bin/python benchmarks/lpbf.py            about ten minutes on a quiet machine; the tables go into docs/lpbf.md
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flare.files import put_between
from flare.mesh.voxels import Voxels
from flare.physics.lpbf import process_preset, simulate, threads
from measure import RESULTS, alone, gigabytes, load, others_percent, peak_above, save
from table import origin, table, three_digits

PAGE = Path(__file__).parents[1] / "docs" / "lpbf.md"
BEGIN, END = "<!-- cost table -->", "<!-- end of cost -->"
DZ, GROUP = 0.6, 4
"""Height of a voxel in mm, voxels of a layer group: the benchmark's."""


class Tube(NamedTuple):
    """An upright tube of square voxels: walls of eight voxels, as thick as much of what is printed."""

    across: int
    """Voxels of its outer diameter."""
    groups: int

    def voxels(self) -> Voxels:
        middle = (np.arange(self.across) + 0.5) - self.across / 2
        radius = np.hypot(*np.meshgrid(middle, middle, indexing="ij"))
        ring = (radius < self.across / 2) & (radius > self.across / 2 - 8)
        solid = np.repeat(ring[:, :, None], GROUP * self.groups, axis=2)
        return Voxels(solid, (0.5, 0.5, DZ), (-self.across / 4, -self.across / 4, 0.0))


CASES = {
    "10,000 nodes, 10 groups": (Tube(16, 10), 30.0),
    "20,000 nodes, 25 groups": (Tube(15, 25), 180.0),
    "50,000 nodes, 10 groups": (Tube(50, 10), None),
}
"""Part, and the seconds it may take on two cores."""
GROWTH = [Tube(20, 5), Tube(32, 5), Tube(64, 5), Tube(120, 5)]
MEMORY_GB = 8.0
REFINEMENTS = (1, 2, 4)
"""Voxels of one block, each edge divided by these."""


def measure(tube: Tube, count: int) -> dict[str, Any]:
    """One print in benchmark mode; the second in this process, so that compiling is not counted."""
    with threads(count):
        simulate(Tube(10, 1).voxels(), process_preset("ti64-am250"))
        begin = time.perf_counter()
        result = simulate(tube.voxels(), process_preset("ti64-am250"), keep_frames=False)
        seconds = time.perf_counter() - begin
    return {"nodes": len(result.positions), "voxels": len(result.cells), "groups": tube.groups, "seconds": seconds}


def peak(tube: Tube) -> float:
    """MiB above the process itself."""
    return peak_above(lambda: simulate(tube.voxels(), process_preset("ti64-am250"), keep_frames=False))


def iterations(divided: int) -> dict[str, Any]:
    """Of conjugate gradients, most of any group, for one block of 12 × 6 × 9.6 mm in finer and finer voxels."""
    size = (1.0 / divided, 1.0 / divided, 1.2 / divided)
    solid = np.ones((12 * divided, 6 * divided, 8 * divided), dtype=bool)
    found: list[int] = []
    process = process_preset("ti64-am250")
    result = simulate(
        Voxels(solid, size, (-6.0, -3.0, 0.0)),
        process,
        on_group=lambda done, groups, state, frame: found.append(frame.iterations),
    )
    return {
        "voxels": solid.size,
        "nodes": len(result.positions),
        "most": max(found),
        "released": result.released.iterations,
    }


def exponent(rows: list[dict[str, Any]]) -> float:
    """Of nodes in seconds, by least squares of the logarithms."""
    return float(np.polyfit(np.log([row["nodes"] for row in rows]), np.log([row["seconds"] for row in rows]), 1)[0])


def tables(record: dict[str, Any]) -> str:
    cost = [
        [
            name,
            f"{row['nodes']:,}",
            f"{row['voxels']:,}",
            three_digits(row["one"]),
            three_digits(row["two"]),
            f"{row['may_take']:g}" if row["may_take"] else "–",
            three_digits(gigabytes(row["peak_mb"])),
        ]
        for name, row in record["cases"].items()
    ]
    growth = [[f"{row['nodes']:,}", three_digits(row["seconds"])] for row in record["growth"]]
    finer = [
        [f"{row['voxels']:,}", f"{row['nodes']:,}", str(row["most"]), str(row["released"])]
        for row in record["iterations"]
    ]
    return "\n\n".join(
        [
            table(
                [
                    "A tube, benchmark mode",
                    "nodes",
                    "voxels",
                    "seconds, 1 thread",
                    "seconds, 2 threads",
                    "may take",
                    "GB",
                ],
                cost,
            ),
            table(["Growth: nodes, 5 groups", "seconds, 2 threads"], growth),
            f"Time grows as nodes to the power {record['exponent']:.2f}. 50,000 nodes may take {MEMORY_GB:g} GB.",
            table(["One block refined: voxels", "nodes", "iterations, most of any group", "at release"], finer),
            origin(record),
        ]
    )


def main(arguments: list[str]) -> None:
    if arguments:
        raise SystemExit("benchmarks/lpbf.py takes no arguments")
    record: dict[str, Any] = {"others_percent": others_percent(), "cases": {}}
    for name, (tube, may_take) in CASES.items():
        one, two = measure(tube, 1), measure(tube, 2)
        facts = {"one": one["seconds"], "two": two["seconds"], "may_take": may_take, "peak_mb": alone(peak, tube)}
        record["cases"][name] = {**two, **facts}
        print(f"{name}: {two['nodes']:,} nodes, {one['seconds']:.1f} s and {two['seconds']:.1f} s", flush=True)
    record["growth"] = [measure(tube, 2) for tube in GROWTH]
    record["exponent"] = exponent(record["growth"])
    record["iterations"] = [iterations(divided) for divided in REFINEMENTS]
    save("lpbf", record, RESULTS)
    put_between(PAGE, BEGIN, END, tables(load("lpbf") or {}))


if __name__ == "__main__":
    main(sys.argv[1:])
