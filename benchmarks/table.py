"""Write the tables of the CPU kernels into `PAGE`, between their marks, from the records of the other benchmarks.

.venv/bin/python benchmarks/table.py
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, gigabytes, load

PAGE = PERFORMANCE
BEGIN, END = "<!-- kernels table -->", "<!-- end of kernels -->"
PICTURE = "../images/kernels.png"
LEVELS = {
    "model": "Whole model, 8 blocks",
    "block": "One block",
    "mixer": "Mixer",
    "safe mixer": "Mixer, scores beyond the bound",
    "residual MLP": "Residual MLP",
}
SIZES = ("batch", "points", "heads", "latents")
TARGETS = {
    ("Elasticity", "inference"): 3.0,
    ("Darcy", "inference"): 4.0,
    ("Pipe", "inference"): 3.3,
    ("Elasticity", "training step"): 2.8,
    ("Darcy", "training step"): 3.5,
    ("Pipe", "training step"): 2.5,
}
"""What the kernels set out to reach: what a prototype had shown, on another machine."""
CAPTION = (
    "Speedup over eager PyTorch: CPU time with 1 thread / wall time with 2 threads. "
    "GFLOP/s, Gexp/s and the share of the peak are those of the native kernels."
)
Record = dict[str, Any]


def speed(native: Record) -> str:
    """The sizes, then a table per level, one line per size and mode."""
    sizes = ([name, *(f"{size[key]:,}" for key in SIZES)] for name, size in native["sizes"].items())
    parts = [table(["", "batch", "points", "heads", "latents"], sizes), CAPTION]
    for level, title in LEVELS.items():
        rows = [row for row in native["rows"] if row["level"] == level]
        cases = dict.fromkeys((row["size"], row["mode"]) for row in rows)
        if cases:
            head = [title, "eager, ms", "torch.compile", "native", "GFLOP/s", "Gexp/s", "of peak"]
            lines = (speed_line(rows, size, mode) for size, mode in cases)
            if level == "model":
                head = [*head, "target"]
                lines = ([*line, target(*case)] for line, case in zip(lines, cases, strict=True))
            parts.append(table(head, lines))
    return "\n\n".join([*parts, origin(native)])


def speed_line(rows: list[Record], size: str, mode: str) -> list[str]:
    here = sorted((row for row in rows if (row["size"], row["mode"]) == (size, mode)), key=lambda row: row["threads"])

    def cell(contender: str, key: str, look: Callable[[float], str]) -> str:
        mine = [row for row in here if row["contender"] == contender]
        return " / ".join(look(row[key]) if key in row else "failed" for row in mine) or "–"

    return [
        f"{size}, {mode}",
        cell("eager", "seconds", lambda s: three_digits(1e3 * s)),
        cell("compiled", "ratio", "{:.2f}×".format),
        cell("native", "ratio", "**{:.2f}×**".format),
        cell("native", "gflops", three_digits),
        cell("native", "gexps", "{:.2f}".format),
        cell("native", "of_peak", "{:.0%}".format),
    ]


def target(size: str, mode: str) -> str:
    return f"{TARGETS[size, mode]:.1f}×" if (size, mode) in TARGETS else "–"


def peak(record: Record) -> str:
    lines = (
        [str(row["threads"]), *(three_digits(row[key]) for key in ("gflops", "gexps", "gb_per_s"))]
        for row in record["rows"]
    )
    return f"{table(['Peak, threads', 'GFLOP/s, fp32', 'Gexp/s', 'GB/s'], lines)}\n\n{origin(record)}"


def memory(record: Record) -> str:
    """Peaks of one step, then its growth with N."""
    lines = []
    for level, size in dict.fromkeys((row["level"], row["size"]) for row in record["steps"]):
        found = {row["contender"]: row for row in record["steps"] if (row["level"], row["size"]) == (level, size)}
        megabytes = {name: three_digits(1e3 * gigabytes(row["peak_mb"])) for name, row in found.items()}
        cells = [megabytes.get(name, "–") for name in ("reference", "eager", "native")]
        lines.append([f"{level}, {size}", *cells, f"{found['native']['of_eager']:.2f}"])
    steps = table(["Peak memory of a training step, MB", "reference", "eager", "native", "native / eager"], lines)
    head = ["One training step, native, N", "seconds", "µs per point", "GB", "GB of the whole process"]
    return "\n\n".join([steps, table(head, map(growth_line, record["scaling"])), verdict(record), origin(record)])


def accuracy(record: Record) -> str:
    """Largest errors against float64, eager and native side by side."""
    lines = []
    for points in dict.fromkeys(row["points"] for row in record["rows"]):
        found = {row["contender"]: row for row in record["rows"] if row["points"] == points}
        pairs = ((found["eager"][key], found["native"][key]) for key in ("output", "gradient"))
        lines.append([f"{points:,}", *(f"{value:.0e}" for pair in pairs for value in pair)])
    head = ["Error against float64, N", "output, eager", "output, native", "gradients, eager", "gradients, native"]
    return f"{table(head, lines)}\n\n{origin(record)}"


def growth_line(row: Record) -> list[str]:
    sizes = (gigabytes(row["peak_mb"]), gigabytes(row["process_mb"]))
    values = (row["seconds"], 1e6 * row["seconds"] / row["points"], *sizes)
    return [f"{row['points']:,}", *map(three_digits, values)]


def verdict(record: Record) -> str:
    largest = record["scaling"][-1]["points"]
    fits = "stays below" if record["largest_fits"] else "does not stay below"
    growth = f"Time grows as N to the power {record['exponent']:.2f}"
    return f"{growth}; a step of {largest:,} points {fits} {record['limit_gb']} GB."


def origin(record: Record) -> str:
    facts = record["environment"]
    processor = facts["processor"].rsplit(",", 1)[0]  # the tables state the threads
    return f"*{processor}, {facts['memory']}, torch {facts['torch']}, commit {facts['commit']}.*"


def table(head: list[str], lines: Iterable[list[str]]) -> str:
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *lines])


def three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--records", type=Path, default=RESULTS, help="folder of native.json, memory.json, peak.json, accuracy.json"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="the page with the marks")
    chosen = parser.parse_args(arguments)
    parts = [f"![Speed, time and memory]({PICTURE})"] if (chosen.page.parent / PICTURE).exists() else []
    for name, write in {"native": speed, "peak": peak, "memory": memory, "accuracy": accuracy}.items():
        record = load(name, chosen.records)
        parts += [write(record)] if record else []
    replace_between_marks(chosen.page, BEGIN, END, "\n\n".join(parts) or "No record yet: `make bench` makes one.")
    print(f"Written into {chosen.page}")


if __name__ == "__main__":
    main()
