"""Exported files beside the model they came from: the time of one prediction, and how far the answers are apart.

    .venv/bin/python benchmarks/export.py              some minutes; the table goes into `PAGE`
    .venv/bin/python benchmarks/export.py --quick      small sizes, to try out

One thread, in turns, CPU time: the model with its native kernels, the same on PyTorch's, and the two files.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flare.inference.export import export
from flare.inference.surrogate import Surrogate
from flare.models import use_backend
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, interleaved, load, save, threads
from stream import surrogate_of_points
from table import origin, table, three_digits

PAGE = PERFORMANCE
BEGIN, END = "<!-- export table -->", "<!-- end of export -->"
ROUNDS = 3
WAYS = {
    "native": "flare, native kernels",
    "sdpa": "flare, PyTorch's kernels",
    "torch": "torch.export",
    "onnx": "ONNX Runtime",
}


def ways(model: Surrogate, folder: Path) -> dict[str, Callable[[Tensor], Tensor]]:
    """Name -> how to predict."""
    import onnxruntime

    export(model, folder / "m.pt2", trials=0)
    export(model, folder / "m.onnx", trials=0)
    program: Any = torch.export.load(folder / "m.pt2").module()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "m.onnx", options, providers=["CPUExecutionProvider"])
    plain = use_backend(copy.deepcopy(model), "sdpa")
    return {
        "native": lambda x: model(x),
        "sdpa": lambda x: plain(x),
        "torch": lambda x: program(x, None),
        "onnx": lambda x: torch.from_numpy(session.run(["outputs"], {"inputs": x.numpy()})[0]),
    }


def measure(sizes: list[int]) -> list[dict[str, Any]]:
    rows, model = [], surrogate_of_points()
    shift = model.target_norm.shift
    with tempfile.TemporaryDirectory() as folder, threads(1), torch.no_grad():
        calls = ways(model, Path(folder))
        for points in sizes:
            x = torch.rand(1, points, 3, generator=torch.Generator().manual_seed(0))
            answers = {name: call(x) for name, call in calls.items()}  # and now they are warm
            seconds = interleaved({name: partial(call, x) for name, call in calls.items()}, ROUNDS, time.process_time)
            truth = answers["native"]
            spread = (truth - shift).abs().max()  # as the export measures it
            apart = {name: float((y - truth).abs().max() / spread) for name, y in answers.items()}
            rows.append({"points": points, "seconds": seconds, "apart": apart})
            print(f"{points:,} points: " + ", ".join(f"{name} {t:.3g} s" for name, t in seconds.items()), flush=True)
    return rows


def tables(record: dict[str, Any]) -> str:
    head = ["points", *WAYS.values(), "ONNX apart from flare"]
    rows = []
    for row in record["rows"]:
        seconds = [f"{three_digits(row['seconds'][name])} s" for name in WAYS]
        rows.append([f"{row['points']:,}", *seconds, f"{row['apart']['onnx']:.0e}"])
    return "\n\n".join([table(head, rows), origin(record)])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    rows = measure([100, 500] if chosen.quick else [1000, 10_000])
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("export", {"rows": rows}, out)
    if out == RESULTS:
        replace_between_marks(PAGE, BEGIN, END, tables(load("export", RESULTS) or {}))


if __name__ == "__main__":
    main()
