"""Prediction in chunks: ten million points from disk to disk, its memory, and its time and answer beside the whole's.

    .venv/bin/python benchmarks/stream.py              10 minutes, 3 GB of disk; the table goes into `PAGE`
    .venv/bin/python benchmarks/stream.py --quick      small sizes, to try out

Memory is the peak above what the process held with the model loaded. The CPU time of one thread is compared. The exit
code is 1 where a promise is broken: memory below 2 GB, and chunks no farther from float64 than the whole, times 1.25.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.data.sample import Field, Sample, Schema
from flare.inference.array_folder import mapped_outputs
from flare.inference.chunked import Chunk, empty_outputs, predict_into
from flare.inference.mesh_inputs import mesh_inputs
from flare.inference.surrogate import Surrogate
from flare.utils.files import replace_between_marks
from measure import PERFORMANCE, RESULTS, gigabytes, load, peak_above, run_isolated, save, threads
from table import origin, table, three_digits

PAGE = PERFORMANCE
BEGIN, END = "<!-- stream table -->", "<!-- end of stream -->"
MODEL = {"name": "flare", "channels": 64, "blocks": 8, "heads": 8, "latents": 128}
LIMIT_GB = 2
FARTHER = 1.25
"""Times the whole's distance to float64, which chunks may have."""
WARM = 1000


def surrogate_of_points() -> Surrogate:
    """The 8-block model with weights that make points differ."""
    fields = {
        "points": Field(role="points", components=("x", "y", "z"), unit="m"),
        "pressure": Field(role="target", components=("p",), unit="Pa"),
    }
    torch.manual_seed(0)
    surrogate = Surrogate(MODEL, Schema(name="box", fields=fields)).eval()
    with torch.no_grad():
        for parameter in surrogate.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return surrogate


def from_disk_to_disk(points: int, chunk: Chunk) -> dict[str, Any]:
    """The peak above the loaded model, and the seconds, of one prediction."""
    with tempfile.TemporaryDirectory() as scratch, threads(1):
        folder = Path(scratch)
        _write_points(folder / "in", points)
        surrogate = surrogate_of_points()
        predict_into(surrogate, Sample({"points": np.zeros((WARM, 3), np.float32)}), empty_outputs(surrogate, WARM))
        seconds = [time.process_time(), time.perf_counter()]

        def predict() -> None:  # as `flare predict` does it
            sample = mesh_inputs(surrogate, folder / "in").sample
            with mapped_outputs(folder / "out", surrogate.schema, points) as outputs:
                predict_into(surrogate, sample, outputs, chunk=chunk, scratch=folder)

        peak = peak_above(predict)
        cpu, wall = time.process_time() - seconds[0], time.perf_counter() - seconds[1]
    return {"points": points, "peak_mb": peak, "cpu_seconds": cpu, "wall_seconds": wall}


def beside_the_whole(points: int, chunk: Chunk) -> dict[str, Any]:
    """Relative distances of the answers to that in float64 and to each other, and the seconds of each."""
    surrogate = surrogate_of_points()
    sample = Sample({"points": np.random.default_rng(0).random((points, 3), np.float32)})
    answers, seconds = {}, {}
    with threads(1):
        for name in ("whole", "chunks", "whole", "chunks"):  # the second time they are warm
            outputs, begin = empty_outputs(surrogate, points), time.process_time()
            predict_into(surrogate, sample, outputs, chunk=chunk if name == "chunks" else "whole")
            answers[name], seconds[name] = outputs["pressure"], time.process_time() - begin
        outputs = empty_outputs(surrogate.double(), points)
        predict_into(surrogate, sample, outputs, chunk=chunk)
    errors = {name: _distance(answer, outputs["pressure"]) for name, answer in answers.items()}
    apart = _distance(answers["chunks"], answers["whole"])
    about = {"points": points, "errors": errors, "chunks_to_whole": apart, "seconds": seconds}
    return {**about, "ratio": seconds["chunks"] / seconds["whole"]}


def _distance(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.linalg.norm(found - truth) / np.linalg.norm(truth))


def _write_points(folder: Path, points: int) -> None:
    """In float64, as `numpy.save` does by itself."""
    folder.mkdir()
    array = np.lib.format.open_memmap(folder / "points.npy", mode="w+", dtype=np.float64, shape=(points, 3))
    rng = np.random.default_rng(0)
    for start in range(0, points, 1_000_000):
        array[start : start + 1_000_000] = rng.random((min(1_000_000, points - start), 3))
    array.flush()


def tables(record: dict[str, Any]) -> str:
    whole, disk = record["whole"], record["disk"]
    few, many, peak = f"{whole['points']:,}", f"{disk['points']:,}", three_digits(gigabytes(disk["peak_mb"]))
    at_once, in_chunks, by_disk = map(three_digits, (*whole["seconds"].values(), disk["cpu_seconds"]))
    head = ["how", "points", "seconds, one thread", "GB above the loaded model", "from float64", "from the whole"]
    rows = [
        ["all at once", few, at_once, "", f"{whole['errors']['whole']:.1e}", ""],
        ["in chunks", few, in_chunks, "", f"{whole['errors']['chunks']:.1e}", f"{whole['chunks_to_whole']:.1e}"],
        ["in chunks, from disk to disk", many, by_disk, peak, "", ""],
    ]
    return "\n\n".join([table(head, rows), origin(record)])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a thousandth of the points, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    factor, chunk = (1000, 128) if chosen.quick else (1, "auto")
    both = run_isolated(beside_the_whole, 400_000 // factor, chunk)
    whole, chunks = both["errors"]["whole"], both["errors"]["chunks"]
    print(
        f"{both['points']:,} points: in chunks {both['ratio']:.2f} of the whole's time; {chunks:.1e} from float64, "
        f"the whole {whole:.1e}, {both['chunks_to_whole']:.1e} from each other"
    )
    disk = run_isolated(from_disk_to_disk, 10_000_000 // factor, chunk)
    fits, near = gigabytes(disk["peak_mb"]) < LIMIT_GB, chunks <= FARTHER * whole
    print(
        f"{disk['points']:,} points from disk to disk: {disk['peak_mb']:.0f} MiB above the loaded model, "
        f"{'below' if fits else 'ABOVE'} {LIMIT_GB} GB, {disk['cpu_seconds']:.0f} s of one thread"
    )
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("stream", {"whole": both, "disk": disk, "limit_gb": LIMIT_GB, "fits": fits, "near": near}, out)
    if out == RESULTS:
        replace_between_marks(PAGE, BEGIN, END, tables(load("stream", RESULTS) or {}))
    return 0 if fits and near else 1


if __name__ == "__main__":
    sys.exit(main())
