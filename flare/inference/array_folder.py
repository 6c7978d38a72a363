"""Folders with one memory-mapped .npy file per field, for more points than fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from flare.data.dataset import open_array
from flare.data.sample import INPUT_ROLES, Schema
from flare.utils.errors import DataError
from flare.utils.files import check_disk_space, create_folder


def is_array_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder holds arrays of one sample, and is not a dataset."""
    path = Path(path)
    return path.is_dir() and not (path / "dataset.json").exists() and any(path.glob("*.npy"))


def map_inputs(path: Path, schema: Schema) -> dict[str, np.ndarray]:
    """Memory-map the input fields of one sample; other files are ignored.

    Raises:
        DataError: The folder is a dataset, or an input is missing or damaged.
    """
    if (path / "dataset.json").exists():  # its arrays hold all samples
        raise DataError(f"{path} is a dataset; pass one sample, such as a folder of its arrays or a .npz file")
    wanted = schema.named(*INPUT_ROLES)
    for name in wanted:
        if not (path / f"{name}.npy").exists():
            raise DataError(f"{path} has no {name}.npy; the model needs {', '.join(f'{n}.npy' for n in wanted)}")
    return {name: open_array(path / f"{name}.npy", "write it again with numpy.save") for name in wanted}


@contextmanager
def mapped_outputs(path: str | os.PathLike[str], schema: Schema, count: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield memory-mapped arrays for every target, (N, components); the folder gets its name once all is written.

    Files hold (N,) for a field of one component.
    """
    with create_folder(path) as folder:
        # A mapped file is sparse until it is written; running out of space then would kill the process.
        check_disk_space(folder, 4 * count * schema.out_dim, f"the fields at {count:,} points", "use another folder")
        outputs = {}
        for name, width in zip(schema.named("target"), schema.widths("target"), strict=True):
            shape = (count,) if width == 1 else (count, width)
            array = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape)
            outputs[name] = array.reshape(count, width)
        yield outputs
