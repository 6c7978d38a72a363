"""Processor time per sample on one core, of every solver in the forms people use.

.venv/bin/python benchmarks/solvers.py            all
.venv/bin/python benchmarks/solvers.py pipe       of one dataset
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np
from threadpoolctl import threadpool_limits

from flare.physics import generator_class
from measure import RESULTS, save

FORMS: list[tuple[str, dict[str, object], int]] = [
    ("darcy", {"stride": 1, "grid": "node"}, 5),
    ("darcy", {"grid": "node"}, 5),
    ("darcy", {}, 5),
    ("elasticity", {}, 20),
    ("elasticity", {"material": "rubber"}, 5),
    ("elasticity", {"fine": True}, 5),
    ("pipe", {"nodes": 65}, 3),
    ("pipe", {}, 3),
    ("airfoil", {"resolution": "half"}, 3),
    ("airfoil", {}, 3),
]
"""Dataset, options, samples."""


def main(names: list[str]) -> None:
    rows = []
    with threadpool_limits(1):
        for name, options, samples in FORMS:
            if names and name not in names:
                continue
            generator = generator_class(name)(**options)
            generator.sample(np.random.default_rng(0))  # compiled code and matrix patterns are made once
            taken = []
            for seed in range(1, samples + 1):
                begin = time.process_time()
                generator.sample(np.random.default_rng(seed))
                taken.append(time.process_time() - begin)
            median = statistics.median(taken)
            form = ", ".join(f"{key}={value}" for key, value in options.items()) or "the benchmark's form"
            print(f"{name:<12} {form:<28} {median:8.3f} s per sample, at most {max(taken):.3f}", flush=True)
            rows.append({"dataset": name, "options": options, "samples": samples, "median": median, "most": max(taken)})
    if not names:
        save("solvers", {"rows": rows}, RESULTS)


if __name__ == "__main__":
    main(sys.argv[1:])
