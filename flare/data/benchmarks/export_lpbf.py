"""Export of an LPBF dataset in the layout of the published files, to share it or to use it with code for that layout.

    train/case00012_<name>.npz     pos, elems, edge_index, disp, vmstr, temp, _metadata of a part; test/ likewise
    data/train.csv                 index, one line per part
    README.md                      dataset card of the hub
    provenance.json                origin of the data

`flare.data.benchmarks.published_lpbf` reads it back bit for bit.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flare.data.benchmarks.cards import as_markdown, card
from flare.data.dataset import Dataset
from flare.data.sample import Sample
from flare.mesh.octree import edges_of
from flare.utils import __version__
from flare.utils.errors import DataError
from flare.utils.files import check_not_existing, create_folder, write_json
from flare.utils.progress import progress

FIELDS = ("points", "displacement", "lateral_displacement", "von_mises")
"""Fields of the layout. Other fields keep their names."""
SPLITS = ("train", "test")
ROOM_TEMPERATURE = 25.0
"""Temperature of the stored parts, °C."""
README = """---
{header}---

# Distortion of parts printed by laser powder bed fusion

{parts:,} parts of {nodes:,} nodes on average, kind of data: **{kind}** (see `flare data card lpbf`). flare-engine
{version} has written them; `flare data read lpbf --folder . --out data/lpbf` makes a dataset of them to train on.

The layout is that of the published set, [{repository}](https://huggingface.co/datasets/{repository}): one NPZ file per
part, and an index in `data/`. Fields that are not in this table have keys of their own.

| key | shape | content |
|---|---|---|
| `pos` | (N, 3) float32 | nodes, mm; the build plate is at z = 0 |
| `elems` | (E, 8) int32 | hexahedra in VTK order, nodes counted from 0 |
| `edge_index` | (2, M) int64 | edges of the hexahedra in both directions, each once |
| `disp` | (N, 3) float32 | displacement after release from the plate, mm; the target of the benchmark is z, the last |
| `vmstr` | (N, 1) float32 | von Mises stress, MPa |
| `temp` | (N, 1) float32 | temperature, °C: 25 everywhere, the parts have cooled |
| `_metadata` | (1,) string | JSON: name of the case; under `flare`, notes of the simulator |

Provenance, also in `provenance.json`:

```json
{provenance}
```

{card}"""

Row = dict[str, Any]
"""One line of the index."""


def export_lpbf(
    dataset: Dataset, out: str | os.PathLike[str], *, licence: str = "mit", quiet: bool = False
) -> list[Row]:
    """Export a dataset.

    Args:
        dataset: LPBF dataset with the splits train and test.
        out: Folder to write. It must not exist.
        licence: License of the data, as the hub abbreviates it.
        quiet: Report no progress.

    Returns:
        The index: `case_id`, `file`, `num_nodes`, `num_edges` (in both directions) and `metadata` of each part.

    Raises:
        DataError: The dataset does not fit the layout, or the folder exists or cannot be written.
    """
    check_not_existing(out)
    known = card("lpbf").schema()
    fits = all(
        (field := dataset.schema.fields.get(name)) is not None
        and (field.components, field.unit) == (known.fields[name].components, known.fields[name].unit)
        for name in FIELDS
    )
    if not fits or dataset.schema.cell_type != known.cell_type or set(dataset.splits) != set(SPLITS):
        raise DataError(f"{dataset.path} ({dataset.schema.name!r}) lacks the fields, units or splits of 'lpbf'")
    if not len(dataset.split("train")):
        raise DataError(f"{dataset.path} has no training parts to export")
    provenance = dataset.about["provenance"]
    try:
        with create_folder(out) as folder:
            rows = {split: _write_parts(dataset, split, folder, quiet=quiet) for split in SPLITS}
            for split in SPLITS:
                _write_index(folder / "data" / f"{split}.csv", rows[split])
            record = {"exported by": f"flare-engine {__version__}", "provenance": provenance}
            write_json(folder / "provenance.json", {**record, "fingerprint": dataset.fingerprint})
            (folder / "README.md").write_text(_hub_card(dataset, rows, licence), encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {out}: {error.strerror or error}") from None
    return [row for split in SPLITS for row in rows[split]]


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


def _write_parts(dataset: Dataset, split: str, folder: Path, *, quiet: bool) -> list[Row]:
    notes, digits = dataset.notes(), max(5, len(str(len(dataset) - 1)))  # so that files sort like samples
    rows: list[Row] = []
    (folder / split).mkdir()
    with progress(f"exporting {split}", len(dataset.split(split)), unit="parts", quiet=quiet) as update:
        for index in map(int, dataset.split(split)):
            name = str(notes[index].get("name") or notes[index].get("family") or "part")
            plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._")[:80]  # what every file system allows
            case = f"case{index:0{digits}d}_{plain or 'part'}"
            arrays = part_arrays(dataset[index], case, notes[index])
            np.savez_compressed(folder / split / f"{case}.npz", allow_pickle=False, **arrays)
            row = {"case_id": case, "file": f"{split}/{case}.npz", "num_nodes": len(arrays["pos"])}
            row |= {"num_edges": arrays["edge_index"].shape[1], "metadata": str(arrays["_metadata"][0])}
            rows.append(row)
            update()
    return rows


def _write_index(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, ["case_id", "file", "num_nodes", "num_edges", "metadata"])
        writer.writeheader()
        writer.writerows(rows)


def _hub_card(dataset: Dataset, rows: Mapping[str, Sequence[Row]], licence: str) -> str:
    """Return the README.md of an exported dataset."""
    about, provenance = card("lpbf"), dataset.about["provenance"]
    assert about.archive is not None
    files = [{"split": split, "path": f"data/{split}.csv"} for split in SPLITS if rows[split]]
    header = {
        "license": licence,
        "pretty_name": "Distortion of parts printed by laser powder bed fusion",
        "tags": ["additive-manufacturing", "lpbf", "finite-elements", "mesh", "simulation", "surrogate"],
        "configs": [{"config_name": "default", "data_files": files}],
    }
    return README.format(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        parts=len(dataset),
        nodes=round(dataset.sizes.mean()),
        kind=provenance.get("kind"),
        version=__version__,
        repository=about.archive.repository,
        provenance=json.dumps(provenance, indent=1),
        card=as_markdown(about),
    )
