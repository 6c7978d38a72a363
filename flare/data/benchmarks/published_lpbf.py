"""Reader of the published LPBF files: folders train/ and test/ with an NPZ file a part.

    pos (N, 3) mm, elems (E, 8), disp (N, 3) mm, vmstr (N, 1) MPa

`flare.data.benchmarks.export_lpbf` writes the same layout. The published files also hold `_metadata`, a pickled object;
it is left alone, as is everything else that the dataset does not need.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flare.data.benchmarks.published_folders import SplitFolders
from flare.data.sample import Sample
from flare.utils.errors import DataError, numpys_reason

COLUMNS = {"pos": 3, "disp": 3, "vmstr": 1}
"""Arrays with a row a node -> their columns."""
CORNERS = 8


@dataclass(frozen=True, kw_only=True)
class LPBFFiles(SplitFolders):
    """Parts in order of their file names, split by folder. They were filtered before, and are taken as they are."""

    name: ClassVar[str] = "lpbf"

    def origin(self) -> dict[str, Any]:
        """Files that we exported are what they were before: only those of the authors are `published`."""
        path = self.path("provenance.json")
        if not path.is_file():
            return super().origin()
        try:
            made = json.loads(path.read_text(encoding="utf-8"))["provenance"]
            made = made.get("exported", made)
            return {"kind": made["kind"], "departures": made.get("departures", {}), "exported": made}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is damaged ({error!r}); restore it, or remove it if the files are not ours"
            ) from None

    def sample(self, index: int) -> Sample:
        file = self.files()[index]
        arrays = read_part(self.path(file))
        values = {
            "points": arrays["pos"],
            "displacement": arrays["disp"][:, 2:],
            "lateral_displacement": arrays["disp"][:, :2],
            "von_mises": arrays["vmstr"],
        }
        _, _, name = Path(file).stem.partition("_")
        return Sample(values, arrays["elems"], {"published index": index, "file": file, "name": name})


def read_part(path: Path) -> dict[str, np.ndarray]:
    """The arrays of one part, each checked; nothing is unpickled."""
    wanted = [*COLUMNS, "elems"]
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in wanted if key in archive}  # a member is read when it is asked for
    except (OSError, ValueError, TypeError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is damaged or no NPZ file of numbers: {numpys_reason(error)}") from None
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise DataError(f"{path} has no array {', '.join(missing)}; a part has {', '.join(wanted)}")
    nodes = len(arrays["pos"]) if arrays["pos"].ndim else 0
    for key, columns in COLUMNS.items():
        _check_field(path, key, arrays[key], (nodes, columns))
    _check_cells(path, arrays["elems"], nodes)
    return arrays


def _check_field(path: Path, key: str, array: np.ndarray, shape: tuple[int, int]) -> None:
    if array.shape != shape or not array.size:
        expected = f"(N, {shape[1]})" if key == "pos" else f"{shape}, as there are {shape[0]:,} rows of pos"
        raise DataError(f"{path}: {key!r} has shape {array.shape}; expected {expected}")
    if array.dtype.kind not in "fiu":
        raise DataError(f"{path}: {key!r} holds {array.dtype}; real numbers are expected")
    with np.errstate(over="ignore"):
        bad = ~np.isfinite(array.astype(np.float32))  # as it is stored
    if bad.any():
        raise DataError(
            f"{path}: {key!r} has NaN or infinity at {bad.sum():,} of {bad.size:,} places (first: "
            f"{np.argwhere(bad)[0].tolist()})"
        )


def _check_cells(path: Path, cells: np.ndarray, nodes: int) -> None:
    if cells.ndim != 2 or cells.shape[1] != CORNERS or not len(cells) or cells.dtype.kind not in "iu":
        raise DataError(
            f"{path}: 'elems' has shape {cells.shape} of {cells.dtype}; expected (E, {CORNERS}) whole numbers"
        )
    outside = (cells < 0) | (cells >= nodes)
    if outside.any():
        raise DataError(
            f"{path}: 'elems' refers to nodes outside 0 … {nodes - 1} in {outside.any(1).sum():,} of {len(cells):,} "
            f"hexahedra (first: {int(np.argmax(outside.any(1)))})"
        )
