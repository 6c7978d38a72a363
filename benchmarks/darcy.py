"""Time per Darcy sample on one core, medium and solve, on the grids people use.

.venv/bin/python benchmarks/darcy.py
"""

from __future__ import annotations

import statistics
import time

import numpy as np
from threadpoolctl import threadpool_limits

from flare.physics.darcy import Darcy

FORMS = {
    "85 x 85, node": Darcy(resolution=85, stride=1, grid="node"),
    "85 x 85, canonical": Darcy(resolution=85, stride=1),
    "421 x 421, node": Darcy(resolution=85, stride=5, grid="node"),
    "421 x 421, canonical (the benchmark)": Darcy(),
}


def main(samples: int = 5) -> None:
    with threadpool_limits(1):
        for name, generator in FORMS.items():
            taken = []
            for index in range(samples):
                begin = time.perf_counter()
                generator.sample(np.random.default_rng(index))
                taken.append(time.perf_counter() - begin)
            print(f"{name:<38} {statistics.median(taken):7.3f} s per sample")


if __name__ == "__main__":
    main()
