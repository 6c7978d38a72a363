"""Copy what prediction needs from a finished run folder into this folder.

    .venv/bin/python pretrained/pack.py runs/elasticity elasticity

The result is a run folder without optimizer state, training log and calibration (some 17 MB; `flare calibrate` makes it
again from the dataset). `flare.load("elasticity")` and all commands that take a run read it. Its `README.md` is written
by hand.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path

from flare.train.run_folder import RunFolder


def pack(run: Path, target: Path) -> None:
    """Copy configuration, result, learning curve and weights of a finished run."""
    source = RunFolder(run)
    config = source.config()
    dataset = f"data/{Path(config.data.path).name}"
    last = target / "checkpoints" / "last"
    last.mkdir(parents=True, exist_ok=True)
    RunFolder(target).write_config(replace(config, data=replace(config.data, path=dataset)))
    for name in ("result.json", "test_errors.json"):
        shutil.copyfile(run / name, target / name)
    for name in ("model.safetensors", "model.json"):
        shutil.copyfile(run / "checkpoints" / "last" / name, last / name)
    curve = [json.dumps(record) + "\n" for record in source.records() if record["kind"] == "evaluate"]
    (target / "metrics.jsonl").write_text("".join(curve), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="finished run folder")
    parser.add_argument("name", help="name of the model")
    chosen = parser.parse_args()
    pack(chosen.run, Path(__file__).parent / chosen.name)
