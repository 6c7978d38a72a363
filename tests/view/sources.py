"""Small runs and datasets with known content for the viewer."""

import numpy as np

from flare.data.sample import Field, Sample, Schema
from flare.data.writer import DatasetWriter
from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.train.config import DataConfig, TrainConfig
from flare.train.run import start

TINY = {"name": "flare", "channels": 16, "blocks": 2, "heads": 4, "latents": 6, "kv_depth": 0, "ffn_depth": 0}


def plate_dataset(path, samples=5, grid=(9, 7)):
    """A curved 2-D grid with two targets; sample i has the speed i + 1."""
    schema = Schema(
        name="plate",
        fields={
            "position": Field(role="points", components=("x", "y"), unit="m"),
            "speed": Field(role="parameter", components=("speed",), unit="m/s"),
            "pressure": Field(role="target", components=("p",), unit="Pa"),
            "velocity": Field(role="target", components=("x", "y"), unit="m/s"),
        },
        grid=grid,
    )
    writer = DatasetWriter(path, schema, {"kind": "user"})
    u, v = (a.reshape(-1) for a in np.meshgrid(np.linspace(0, 1, grid[0]), np.linspace(0, 1, grid[1]), indexing="ij"))
    for i in range(samples):
        points = np.stack([2 * u, v + 0.2 * np.sin(3 * u)], 1)
        pressure = 101_325 + 40 * np.sin(3 * u + i) * np.cos(2 * v)
        values = {"position": points, "speed": np.array([i + 1.0]), "pressure": pressure[:, None]}
        writer.append(Sample({**values, "velocity": np.stack([u * (i + 1), -v], 1)}))
    return writer.finish({"train": [(0, samples - 3)], "test": [(samples - 3, samples)]})


def block_dataset(path, samples=4):
    """Hexahedra with a hole; one target."""
    schema = Schema(
        name="block",
        fields={
            "position": Field(role="points", components=("x", "y", "z"), unit="mm"),
            "stress": Field(role="target", components=("s",), unit="MPa"),
        },
        cell_type="hexahedron",
    )
    writer = DatasetWriter(path, schema, {"kind": "user"})
    for i in range(samples):
        solid = np.ones((6, 4, 3 + i), bool)
        solid[2:4, 1:3, :] = False
        mesh = merged(Voxels(solid, (1.0, 1.0, 1.0), (10.0, 0.0, 0.0)), levels=0)
        stress = mesh.points @ [1.0, 0.3, 7.0] + i
        writer.append(Sample({"position": mesh.points, "stress": stress[:, None]}, mesh.hexahedra))
    return writer.finish({"train": [(0, samples - 1)], "test": [(samples - 1, samples)]})


def trained(dataset, run, model=TINY):
    start(TrainConfig(data=DataConfig(path=str(dataset.path), batch_size=1), model=model, epochs=1, device="cpu"), run)
    return run
