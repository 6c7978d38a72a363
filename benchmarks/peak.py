"""What this machine can do at best, in arithmetic, exponentials and bytes: the measure of the other benchmarks.

    .venv/bin/python benchmarks/peak.py

`peak.cpp` is compiled as the kernels are and uses their vectors, so the peak is that of the same instructions.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from flare.mixer.native.build import find_compiler
from flare.mixer.native.cache import SOURCES, flags
from measure import CLOCKS, RESULTS, save

ATTEMPTS = 20
"""The best counts: a neighbour can only slow the machine down."""


def measure() -> list[dict[str, Any]]:
    """One row per number of threads: `gflops` of fp32 multiply-adds, `gexps`, and `gb_per_s` of a = b + c in memory."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "peak"
        source = Path(__file__).with_suffix(".cpp")
        command = [*shlex.split(find_compiler()), *flags(), "-pthread", f"-I{SOURCES}", str(source), "-o", str(program)]
        subprocess.run(command, check=True)
        return [_row(program, threads) for threads in CLOCKS]


def _row(program: Path, threads: int) -> dict[str, Any]:
    done = subprocess.run([str(program), str(threads), str(ATTEMPTS)], check=True, capture_output=True, text=True)
    gflops, gexps, gb_per_s = map(float, done.stdout.split())
    return {"threads": threads, "gflops": gflops, "gexps": gexps, "gb_per_s": gb_per_s}


def report() -> list[dict[str, Any]]:
    """Measure the peak and print it."""
    print("Measuring the machine's peak ...", flush=True)
    rows = measure()
    for row in rows:
        numbers = f"{row['gflops']:6.1f} GFLOP/s fp32, {row['gexps']:5.1f} Gexp/s, {row['gb_per_s']:5.1f} GB/s"
        print(f"{row['threads']} thread{'s' if row['threads'] > 1 else ' '}  {numbers}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    save("peak", {"rows": report()}, parser.parse_args().out)


if __name__ == "__main__":
    main()
