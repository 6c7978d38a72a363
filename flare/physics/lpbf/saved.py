"""The state of a build on disk: written whole or not at all, read without trust."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from flare.physics.lpbf.build import State
from flare.physics.lpbf.hexahedron import Array
from flare.utils.errors import DataError, numpys_reason
from flare.utils.files import replacing


def save_state(path: Path, state: State, **more: Array) -> None:
    """The state, with other arrays beside it."""
    with replacing(path) as temporary:
        np.savez(temporary, **{**more, **state.arrays()})  # type: ignore[arg-type]


def load_state(path: Path, *more: str) -> tuple[State, list[Array]]:
    """What `save_state` wrote: the state, and the other arrays by their names.

    Raises:
        DataError: the file is damaged.
    """
    try:
        with path.open("rb") as bytes_, np.load(bytes_, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return State.from_arrays(arrays), [arrays[name] for name in more]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is damaged ({numpys_reason(error)}); remove {path.parent} to start anew") from None
