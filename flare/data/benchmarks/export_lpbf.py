"""Export of an LPBF dataset in the layout of the published files, to share it or to use it with code for that layout.

    train/case00012_<name>.npz     pos, elems, edge_index, disp, vmstr, temp, _metadata of a part; test/ likewise
    data/train.csv                 index, one line per part; also as Parquet if pyarrow is installed
    README.md                      dataset card of the hub
    provenance.json                origin of the data

`flare.data.benchmarks.published_lpbf` reads it back bit for bit.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flare.data.benchmarks.cards import card
from flare.data.dataset import Dataset, partial_folder
from flare.data.sample import Sample
from flare.mesh.octree import edges_of
from flare.utils import __version__
from flare.utils.errors import DataError
from flare.utils.files import check_not_existing, lock, replace_atomically, write_json
from flare.utils.progress import progress

logger = logging.getLogger(__name__)

FIELDS = {
    "points": (("x", "y", "z"), "mm"),
    "displacement": (("z",), "mm"),
    "lateral_displacement": (("x", "y"), "mm"),
    "von_mises": (("von_mises",), "MPa"),
}
"""Fields of the layout: components and unit. Other fields keep their names."""
SPLITS = ("train", "test")
ROOM_TEMPERATURE = 25.0
"""Temperature of the stored parts, °C."""
SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K"}
"""Upper limit of the number of samples -> size category of the hub."""
LAYOUT = """| key | shape | content |
|---|---|---|
| `pos` | (N, 3) float32 | nodes, mm; the build plate is at z = 0 |
| `elems` | (E, 8) int32 | hexahedra in VTK order, nodes counted from 0 |
| `edge_index` | (2, M) int64 | edges of the hexahedra in both directions, each once |
| `disp` | (N, 3) float32 | displacement after release from the plate, mm; the target of the benchmark is z, the last |
| `vmstr` | (N, 1) float32 | von Mises stress, MPa |
| `temp` | (N, 1) float32 | temperature, °C: 25 everywhere, the parts have cooled |
| `_metadata` | (1,) string | JSON: name of the case; under `flare`, notes of the simulator |"""

Row = dict[str, Any]
"""One line of the index."""


def export_lpbf(
    dataset: Dataset, out: str | os.PathLike[str], *, licence: str = "mit", quiet: bool = False
) -> list[Row]:
    """Export a dataset, or resume an export that was interrupted.

    Args:
        dataset: LPBF dataset with the splits train and test.
        out: Folder to write. It must not exist; until it is complete it is called `<out>.partial`.
        licence: License of the data, as the hub abbreviates it.
        quiet: Report no progress.

    Returns:
        The index: `case_id`, `file`, `num_nodes`, `num_edges` (in both directions) and `metadata` of each part.

    Raises:
        DataError: The dataset does not fit the layout, or the folder exists or cannot be written.
    """
    out = Path(out)
    check_not_existing(out)
    _check_layout(dataset)
    partial = partial_folder(out)
    partial.mkdir(parents=True, exist_ok=True)
    try:
        with lock(partial / ".lock", f"another process is writing {partial}; wait for it, or choose another folder"):
            _begin(dataset, partial)
            rows = _write_parts(dataset, partial, quiet=quiet)
            parquet = [_write_index(partial, split, [row for row in rows if row["split"] == split]) for split in SPLITS]
            size = sum(path.stat().st_size for path in partial.rglob("*.npz"))
            text = _hub_card(dataset, rows, size=size, licence=licence, parquet=any(parquet))
            (partial / "README.md").write_text(text, encoding="utf-8")
        (partial / ".lock").unlink()
        with suppress(FileNotFoundError):
            out.rmdir()  # an empty folder may exist
        partial.rename(out)
    except OSError as error:
        raise DataError(
            f"cannot write {partial}: {error.strerror or error}. Written files are kept; free some space and run the "
            f"same command to resume"
        ) from None
    return rows


def part_arrays(sample: Sample, case: str, notes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of a part in the published layout.

    The published `_metadata` is a pickled object, which safe readers refuse; here it is the same text as a string.
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


def _check_layout(dataset: Dataset) -> None:
    schema = dataset.schema
    if schema.name != "lpbf" or schema.cell_type != "hexahedron":
        raise DataError(
            f"{dataset.path} holds {schema.name!r} with {schema.cell_type or 'no'} cells; the layout requires 'lpbf' "
            f"with hexahedron cells"
        )
    for name, (components, unit) in FIELDS.items():
        field = schema.fields.get(name)
        if field is None or field.components != components or field.unit != unit:
            has = f"{field.components} in {field.unit}" if field else "missing"
            raise DataError(f"{dataset.path}: field {name!r} is {has}; the layout requires {components} in {unit}")
    if set(dataset.splits) != set(SPLITS):
        raise DataError(f"{dataset.path} has splits {', '.join(dataset.splits)}; the layout requires train and test")
    if not len(dataset.split("train")):
        raise DataError(f"{dataset.path} has no training parts to export")


def _begin(dataset: Dataset, partial: Path) -> None:
    """Record the origin of the export, or check that an unfinished one is of the same dataset."""
    record = {
        "exported by": f"flare-engine {__version__}",
        "fingerprint": dataset.fingerprint,
        "provenance": dataset.about["provenance"],
    }
    begun = partial / "provenance.json"
    if begun.exists():
        if json.loads(begun.read_text(encoding="utf-8")) != json.loads(json.dumps(record)):
            raise DataError(f"{partial} holds an unfinished export of another dataset; remove it to start from scratch")
        for path in partial.rglob(".*.*"):
            path.unlink()  # temporary file of a killed call
    elif any(path.name != ".lock" for path in partial.iterdir()):
        raise DataError(f"{partial} exists and is not an export; choose another folder or remove it")
    else:
        write_json(begun, record)


def _write_parts(dataset: Dataset, partial: Path, *, quiet: bool) -> list[Row]:
    notes, digits = dataset.notes(), max(5, len(str(len(dataset) - 1)))  # so that files sort like samples
    indices = {split: dataset.split(split) for split in SPLITS}
    rows: list[Row] = []
    with progress("exporting", sum(map(len, indices.values())), unit="parts", quiet=quiet) as update:
        for split, members in indices.items():
            for index in map(int, members):
                case = f"case{index:0{digits}d}_{_plain_name(notes[index])}"
                arrays = part_arrays(dataset[index], case, notes[index])
                path = partial / split / f"{case}.npz"
                if not path.exists():  # otherwise complete, from an earlier call
                    with replace_atomically(path) as temporary:
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
    """Return the name of a part, or of its family, in characters that every file system allows."""
    name = str(notes.get("name") or notes.get("family") or "part")
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")[:80] or "part"


def _write_index(partial: Path, split: str, rows: Sequence[Row]) -> bool:
    """Write the index as CSV and, if pyarrow is installed, as Parquet; return whether it is."""
    if not rows:
        return False
    columns = [key for key in rows[0] if key != "split"]
    path = partial / "data" / f"{split}.csv"
    with replace_atomically(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        logger.info(f"wrote the index of {split} as CSV only; for Parquet, install:  pip install 'flare-engine[hub]'")
        return False
    table = pyarrow.table({key: [row[key] for row in rows] for key in columns})
    with replace_atomically(path.with_name(f"{split}-00000-of-00001.parquet")) as temporary:
        parquet.write_table(table, temporary)
    return True


def _hub_card(dataset: Dataset, rows: Sequence[Mapping[str, Any]], *, size: int, licence: str, parquet: bool) -> str:
    """Return the README.md of an exported dataset.

    Args:
        dataset: Exported dataset.
        rows: Index of the parts.
        size: Bytes of all parts.
        licence: License of the data.
        parquet: Whether the index is written as Parquet, not only as CSV.
    """
    about, provenance = card("lpbf"), dataset.about["provenance"]
    assert about.archive is not None
    splits = list(dict.fromkeys(row["split"] for row in rows))
    nodes = np.array([row["num_nodes"] for row in rows])
    counts = ", ".join(f"{sum(row['split'] == split for row in rows):,} in {split}/" for split in splits)
    header = {
        "license": licence,
        "pretty_name": "Distortion of parts printed by laser powder bed fusion",
        "size_categories": [next((word for most, word in SIZES.items() if len(rows) < most), "100K<n<1M")],
        "tags": ["additive-manufacturing", "lpbf", "finite-elements", "mesh", "simulation", "surrogate"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": split, "path": f"data/{split}-*.parquet" if parquet else f"data/{split}.csv"}
                    for split in splits
                ],
            }
        ],
    }
    return f"""---
{yaml.safe_dump(header, sort_keys=False, allow_unicode=True).strip()}
---

# Distortion of parts printed by laser powder bed fusion

{about.summary}

{len(rows):,} parts ({counts}) of {nodes.min():,} to {nodes.max():,} nodes, {nodes.mean():,.0f} on average;
{size / 1e6:,.1f} MB.

## Origin

{_origin(provenance)}

Complete provenance, also in `provenance.json`:

```json
{json.dumps(provenance, indent=1)}
```

## Layout

The layout is that of the published set,
[{about.archive.repository}](https://huggingface.co/datasets/{about.archive.repository}): one NPZ file per part. The
index in `data/` is what the viewer shows.

{LAYOUT}

```python
import numpy as np

part = np.load("{rows[0]["file"]}")
points, rise = part["pos"], part["disp"][:, 2]
```

Or convert all parts to a dataset of flare-engine to train on:
`flare data read lpbf --folder . --out data/lpbf`.

## Differences from the published set

{_list(_differences(dataset))}
"""


def _origin(provenance: Mapping[str, Any]) -> str:
    provenance = provenance.get("exported", provenance)
    kind = provenance.get("kind")
    if kind == "published":
        return "These parts are copies of the published set; all credit is due to its authors."
    if kind == "recreated":
        version = provenance.get("versions", {}).get("flare", __version__)
        job = {key: provenance[key] for key in ("samples", "test_samples", "seed") if key in provenance}
        options = job | provenance.get("departures", {})
        arguments = " ".join(f"--{key.replace('_', '-')} {_shell_word(value)}" for key, value in options.items())
        return (
            f"**This is not the published set.** It was recreated by the simulator of flare-engine {version} with:\n\n"
            f"```\nflare data make lpbf {arguments}\n```"
        )
    return f"**This is not the published set.** Kind of data: {kind}."


def _shell_word(value: object) -> str:
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def _differences(dataset: Dataset) -> list[str]:
    about, kind = card("lpbf"), dataset.about["provenance"].get("kind")
    more = [f"`{name}`" for name in dataset.schema.fields if name not in about.fields]
    return [
        *(about.differs if kind == "recreated" else ()),
        "`_metadata` is a plain string, not a pickled object: `np.load` needs no `allow_pickle=True` for any key.",
        "Cases are numbered as in the exported dataset.",
        *([f"Additional keys: {', '.join(more)}."] if more else []),
    ]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)
