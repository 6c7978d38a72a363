"""Small datasets of known content, and run folders, for the tests."""

import hashlib
from pathlib import Path

import numpy as np

from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.inference.surrogate import save_model
from flare.physics.darcy import Darcy
from flare.physics.elasticity import Elasticity


def ragged_schema(cells=True):
    fields = {
        "position": Field(role="points", components=("x", "y"), unit="m"),
        "speed": Field(role="parameter", components=("speed",), unit="m/s"),
        "thickness": Field(role="feature", components=("t",), unit="mm"),
        "force": Field(role="target", components=("x", "y"), unit="N"),
        "heat": Field(role="target", components=("q",), unit="W"),
    }
    return Schema(name="ragged", fields=fields, cell_type="triangle" if cells else None)


def ragged_sample(index, size, cells=True):
    """Smooth fields of position, thickness and speed, so that a model can learn them."""
    rng = np.random.default_rng([7, index])
    points = rng.uniform(-1, 1, (size, 2)) * [2.0, 1.0]
    speed, thickness = rng.uniform(1, 3), rng.uniform(0.5, 1.5, (size, 1))
    wave = np.sin(points.sum(1, keepdims=True) + speed)
    values = {
        "position": points,
        "speed": np.array([speed]),
        "thickness": thickness,
        "force": 100 * np.concatenate([wave, points[:, :1] * thickness], axis=1) + 20,
        "heat": 1e-3 * (thickness + speed + wave),
    }
    return Sample(values, rng.integers(0, size, (size // 2 + 1, 3)) if cells else None, {"redrawn": index % 2})


def ragged_dataset(path, sizes=(5, 12, 1, 30, 8, 17), test=2, cells=True) -> Dataset:
    writer = DatasetWriter(path, ragged_schema(cells), {"kind": "user"})
    for index, size in enumerate(sizes):
        writer.append(ragged_sample(index, size, cells))
    return writer.finish({"train": [(0, len(sizes) - test)], "test": [(len(sizes) - test, len(sizes))]})


def darcy_dataset(path, samples=12, test=4, resolution=8) -> Dataset:
    from flare.data.generation.generate import generate

    generator = Darcy(resolution=resolution, stride=1, grid="node")
    return generate(generator, path, samples=samples, test_samples=test, quiet=True)


def elasticity_dataset(path, samples=24, test=12) -> Dataset:
    from flare.data.generation.generate import generate

    return generate(Elasticity(), path, samples=samples, test_samples=test, quiet=True)


def content(folder) -> dict[str, str]:
    """File name -> digest of every file below a folder, but for how long it took and what it looks like."""
    root = Path(folder)
    files = sorted(
        p for p in root.rglob("*") if p.is_file() and p.name not in ("making.jsonl", "gallery.png", "statistics.html")
    )
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def saved_run(surrogate, folder):
    """A run folder with nothing but these weights."""
    last = folder / "checkpoints" / "last"
    last.mkdir(parents=True)
    save_model(surrogate.state_dict(), surrogate.about, last)
    return folder
