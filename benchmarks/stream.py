"""Prediction in chunks: ten million points from disk to disk, its memory, and its time and answer beside the whole's.

    .venv/bin/python benchmarks/stream.py              about 10 minutes, 3 GB of disk
    .venv/bin/python benchmarks/stream.py --quick      small sizes, to try out

Memory is the peak above what the process held with the model loaded. The CPU time of one thread is compared.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.data.sample import Field, Sample, Schema
from flare.data.tables import mapped_outputs, read_inputs
from flare.inference import empty_outputs, predict_into
from flare.surrogate import Surrogate
from measure import RESULTS, alone, gigabytes, peak_above, save, threads

MODEL = {"name": "flare", "channels": 64, "blocks": 8, "heads": 8, "latents": 128}
LIMIT_GB = 2
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


def from_disk_to_disk(points: int) -> dict[str, Any]:
    """The peak above the loaded model, and the seconds, of one prediction."""
    with tempfile.TemporaryDirectory() as scratch, threads(1):
        folder = Path(scratch)
        _write_points(folder / "in", points)
        surrogate = surrogate_of_points()
        predict_into(surrogate, Sample({"points": np.zeros((WARM, 3), np.float32)}), empty_outputs(surrogate, WARM))
        sample = Sample(read_inputs(folder / "in", surrogate.schema))
        seconds = [time.process_time(), time.perf_counter()]

        def predict() -> None:
            with mapped_outputs(folder / "out", surrogate.schema, points) as outputs:
                predict_into(surrogate, sample, outputs, chunk="auto", scratch=folder)

        peak = peak_above(predict)
        cpu, wall = time.process_time() - seconds[0], time.perf_counter() - seconds[1]
    return {"points": points, "peak_mb": peak, "cpu_seconds": cpu, "wall_seconds": wall}


def beside_the_whole(points: int) -> dict[str, Any]:
    """Relative difference of the two answers, and the seconds of each."""
    surrogate, sample = (
        surrogate_of_points(),
        Sample({"points": np.random.default_rng(0).random((points, 3), np.float32)}),
    )
    answers, seconds = {}, {}
    with threads(1):
        for chunk in ("whole", "auto", "whole", "auto"):
            outputs, begin = empty_outputs(surrogate, points), time.process_time()
            predict_into(surrogate, sample, outputs, chunk=chunk)
            answers[chunk], seconds[chunk] = outputs["pressure"], time.process_time() - begin
    truth = answers["whole"]
    error = float(np.linalg.norm(answers["auto"] - truth) / np.linalg.norm(truth))
    return {"points": points, "difference": error, "seconds": seconds, "ratio": seconds["auto"] / seconds["whole"]}


def _write_points(folder: Path, points: int) -> None:
    folder.mkdir()
    array = np.lib.format.open_memmap(folder / "points.npy", mode="w+", dtype=np.float32, shape=(points, 3))
    rng = np.random.default_rng(0)
    for start in range(0, points, 1_000_000):
        array[start : start + 1_000_000] = rng.random((min(1_000_000, points - start), 3), np.float32)
    array.flush()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a thousandth of the points, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    factor = 1000 if chosen.quick else 1
    both = alone(beside_the_whole, 400_000 // factor)
    print(
        f"{both['points']:,} points: in chunks {both['ratio']:.2f} of the whole's time, {both['difference']:.1e} apart"
    )
    disk = alone(from_disk_to_disk, 10_000_000 // factor)
    fits = gigabytes(disk["peak_mb"]) < LIMIT_GB
    print(
        f"{disk['points']:,} points from disk to disk: {disk['peak_mb']:.0f} MiB above the loaded model, "
        f"{'below' if fits else 'ABOVE'} {LIMIT_GB} GB, {disk['cpu_seconds']:.0f} s of one thread"
    )
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("stream", {"whole": both, "disk": disk, "limit_gb": LIMIT_GB, "fits": fits}, out)


if __name__ == "__main__":
    main()
