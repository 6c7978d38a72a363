"""Reader of the published LPBF files: folders train/ and test/ with one NPZ file per part.

    pos (N, 3) mm, elems (E, 8), disp (N, 3) mm, vmstr (N, 1) MPa

`flare.data.benchmarks.export_lpbf` writes the same layout. The published files also hold `_metadata`, a pickled object.
Like every other array that the dataset does not need, it is not read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from flare.data.benchmarks.published import SplitFolders, check_numbers, reading_npz
from flare.data.sample import Sample
from flare.utils.errors import DataError

COLUMNS = {"pos": 3, "disp": 3, "vmstr": 1}
"""Arrays with one row per node -> columns."""
CORNERS = 8
"""Nodes of a hexahedron."""


@dataclass(frozen=True, kw_only=True)
class LPBFFiles(SplitFolders):
    """Parts, sorted by file name and split by folder. The published parts are filtered already."""

    name: ClassVar[str] = "lpbf"

    def origin(self) -> dict[str, Any]:
        """Return the provenance of the files. Exported files keep that of their dataset; others are `published`."""
        path = self.path("provenance.json")
        if not path.is_file():
            return super().origin()
        try:
            made = json.loads(path.read_text(encoding="utf-8"))["provenance"]
            made = made.get("exported", made)
            return {"kind": made["kind"], "departures": made.get("departures", {}), "exported": made}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is damaged ({error!r}); restore it") from None

    def sample(self, index: int) -> Sample:
        file = self.files()[index]
        arrays = read_published_part(self.path(file))
        values = {
            "points": arrays["pos"],
            "displacement": arrays["disp"][:, 2:],
            "lateral_displacement": arrays["disp"][:, :2],
            "von_mises": arrays["vmstr"],
        }
        _, _, name = Path(file).stem.partition("_")
        return Sample(values, arrays["elems"], {"published index": index, "file": file, "name": name})


def read_published_part(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of one part and check their shapes. Nothing is unpickled.

    Raises:
        DataError: The file is damaged, or an array is missing or has another shape or type.
    """
    wanted = {**COLUMNS, "elems": CORNERS}
    with reading_npz(path), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in wanted if key in archive}  # reads these members only
    missing = [key for key in wanted if key not in arrays]
    if missing:
        raise DataError(f"{path} has no array {', '.join(missing)}; a part has {', '.join(wanted)}")
    nodes = arrays["pos"].shape[:1]
    for key, columns in wanted.items():
        array = check_numbers(arrays[key], f"{path}: {key!r}")
        rows = array.shape[:1] if key == "elems" else nodes
        if array.shape != (*rows, columns) or not array.size:
            raise DataError(f"{path}: {key!r} has shape {array.shape}; expected {(*rows, columns)}")
    cells = arrays["elems"]
    if cells.dtype.kind not in "iu" or cells.min() < 0 or cells.max() >= nodes[0]:
        raise DataError(f"{path}: 'elems' of {cells.dtype} must be integers, nodes 0 … {nodes[0] - 1}")
    return arrays
