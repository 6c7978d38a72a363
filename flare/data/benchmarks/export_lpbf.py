"""A dataset of printed parts in the layout of the published LPBF files, to share it or to feed code written for them.

    train/case00012_<name>.npz     pos, elems, edge_index, disp, vmstr, temp, _metadata of a part; test/ likewise
    data/train.csv                 an index, a line a part; the same as Parquet where pyarrow is installed
    README.md                      the card that the hub shows
    provenance.json                where the data come from

`flare.data.benchmarks.published_lpbf` reads it back, the same to the last bit.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import flare
from flare.data.benchmarks.export_card import hub_card
from flare.data.dataset import Dataset, partial_folder
from flare.data.sample import Sample
from flare.mesh.octree import edges_of
from flare.utils.errors import DataError
from flare.utils.files import lock, refuse_existing, replacing, write_json
from flare.utils.progress import progress

logger = logging.getLogger(__name__)

FIELDS = {
    "points": (("x", "y", "z"), "mm"),
    "displacement": (("z",), "mm"),
    "lateral_displacement": (("x", "y"), "mm"),
    "von_mises": (("von_mises",), "MPa"),
}
"""What the layout has room for: components and unit. Other fields are kept under their own names."""
SPLITS = ("train", "test")
ROOM_TEMPERATURE = 25.0
"""°C: parts are stored cold."""

Row = dict[str, Any]
"""A line of the index."""


def export_lpbf(
    dataset: Dataset, out: str | os.PathLike[str], *, licence: str = "mit", quiet: bool = False
) -> list[Row]:
    """Write the dataset into the new folder `out`, or go on where an earlier call was stopped.

    While it is being written the folder is called `<out>.partial`.

    Args:
        licence: of the data, as the hub abbreviates it.

    Returns:
        The index: `case_id`, `file`, `num_nodes`, `num_edges` (in both directions) and `metadata` of each part.
    """
    out = Path(out)
    refuse_existing(out)
    _refuse_other_layouts(dataset)
    partial = partial_folder(out)
    partial.mkdir(parents=True, exist_ok=True)
    try:
        with lock(partial / ".lock", f"another process is writing {partial}; wait for it, or choose another folder"):
            _begin(dataset, partial)
            rows = _write_parts(dataset, partial, quiet=quiet)
            parquet = [_write_index(partial, split, [row for row in rows if row["split"] == split]) for split in SPLITS]
            size = sum(path.stat().st_size for path in partial.rglob("*.npz"))
            card = hub_card(dataset, rows, size=size, licence=licence, parquet=any(parquet))
            (partial / "README.md").write_text(card, encoding="utf-8")
        (partial / ".lock").unlink()
        with suppress(FileNotFoundError):
            out.rmdir()  # an empty folder may be in the way
        partial.rename(out)
    except OSError as error:
        raise DataError(
            f"cannot write {partial}: {error.strerror or error}. What is written is kept; make room and run the same "
            f"command to go on"
        ) from None
    return rows


def part_arrays(sample: Sample, case: str, notes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """A part as the published files have it.

    Their `_metadata` is a pickled object, which a careful reader refuses; ours is the same text as a plain string.
    """
    values, cells = sample.values, np.asarray(sample.cells)
    count = len(values["points"])
    about = {"metadata": {"case_name": case, "zmax": None, "time_steps": 1}, "flare": dict(notes)}
    others = {name: values[name] for name in values if name not in FIELDS}
    return {
        **others,
        "pos": values["points"],
        "elems": cells.astype(np.int32),
        "edge_index": edges_of(cells, count),
        "disp": np.concatenate([values["lateral_displacement"], values["displacement"]], axis=1),
        "vmstr": values["von_mises"],
        "temp": np.full((count, 1), ROOM_TEMPERATURE, dtype=np.float32),
        "_metadata": np.array([json.dumps(about)]),
    }


def _refuse_other_layouts(dataset: Dataset) -> None:
    schema = dataset.schema
    if schema.name != "lpbf" or schema.cell_type != "hexahedron":
        raise DataError(
            f"{dataset.path} holds {schema.name!r} with {schema.cell_type or 'no'} cells; the layout is "
            f"for 'lpbf' with hexahedron cells"
        )
    for name, (components, unit) in FIELDS.items():
        field = schema.fields.get(name)
        if field is None or field.components != components or field.unit != unit:
            has = f"{field.components} in {field.unit}" if field else "missing"
            raise DataError(f"{dataset.path}: field {name!r} is {has}; the layout has {components} in {unit}")
    if set(dataset.splits) != set(SPLITS):
        raise DataError(f"{dataset.path} has splits {', '.join(dataset.splits)}; the layout has train and test")
    if not len(dataset.split("train")):
        raise DataError(f"{dataset.path} has no parts to train with; there is nothing to export")


def _begin(dataset: Dataset, partial: Path) -> None:
    """Note whose files these are, or refuse those of another export."""
    record = {
        "exported by": f"flare-engine {flare.__version__}",
        "fingerprint": dataset.fingerprint,
        "provenance": dataset.about["provenance"],
    }
    begun = partial / "provenance.json"
    if begun.exists():
        if json.loads(begun.read_text(encoding="utf-8")) != json.loads(json.dumps(record)):
            raise DataError(f"{partial} holds an unfinished export of another dataset; remove it to start afresh")
        for path in partial.rglob(".*.*"):
            path.unlink()  # half a file, of a call that was killed
    elif any(path.name != ".lock" for path in partial.iterdir()):
        raise DataError(f"{partial} exists and is no export; choose another folder or remove it")
    else:
        write_json(begun, record)


def _write_parts(dataset: Dataset, partial: Path, *, quiet: bool) -> list[Row]:
    notes, digits = dataset.notes(), max(5, len(str(len(dataset) - 1)))  # files sort as the samples do
    indices = {split: dataset.split(split) for split in SPLITS}
    rows: list[Row] = []
    with progress("exporting", sum(map(len, indices.values())), unit="parts", quiet=quiet) as update:
        for split, members in indices.items():
            for index in map(int, members):
                case = f"case{index:0{digits}d}_{_plain_name(notes[index])}"
                arrays = part_arrays(dataset[index], case, notes[index])
                path = partial / split / f"{case}.npz"
                if not path.exists():  # else it is whole, from an earlier call
                    with replacing(path) as temporary:
                        np.savez_compressed(temporary, allow_pickle=False, **arrays)
                rows.append(
                    {
                        "case_id": case,
                        "file": f"{split}/{case}.npz",
                        "num_nodes": len(arrays["pos"]),
                        "num_edges": arrays["edge_index"].shape[1],
                        "metadata": str(arrays["_metadata"][0]),
                        "split": split,
                    }
                )
                update()
    return rows


def _plain_name(notes: Mapping[str, Any]) -> str:
    """Of a part, or of its family where it has none, in letters that any file system takes."""
    name = str(notes.get("name") or notes.get("family") or "part")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")[:80] or "part"


def _write_index(partial: Path, split: str, rows: Sequence[Row]) -> bool:
    """As CSV, and as Parquet where that can be written; whether it could."""
    if not rows:
        return False
    columns = [key for key in rows[0] if key != "split"]
    path = partial / "data" / f"{split}.csv"
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        logger.info(
            f"the index of {split} is written as CSV alone; Parquet needs the extra:  pip install 'flare-engine[hub]'"
        )
        return False
    table = pyarrow.table({key: [row[key] for row in rows] for key in columns})
    with replacing(path.with_name(f"{split}-00000-of-00001.parquet")) as temporary:
        parquet.write_table(table, temporary)
    return True
