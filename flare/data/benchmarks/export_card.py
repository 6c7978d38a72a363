"""The card of exported parts: what the hub shows of them, and where they come from."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import yaml

import flare
from flare.data.benchmarks.cards import card
from flare.data.dataset import Dataset

SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K"}
"""Fewer samples than this -> the hub's word for it."""

LAYOUT = """| key | shape | content |
|---|---|---|
| `pos` | (N, 3) float32 | nodes, mm; the build plate is at z = 0 |
| `elems` | (E, 8) int32 | hexahedra in VTK's order, nodes counted from 0 |
| `edge_index` | (2, M) int64 | both directions of the edges of the hexahedra, each once |
| `disp` | (N, 3) float32 | displacement after release from the plate, mm; the target of the benchmark is z, the last |
| `vmstr` | (N, 1) float32 | von Mises stress, MPa |
| `temp` | (N, 1) float32 | temperature, °C: 25 everywhere, the parts are cold |
| `_metadata` | (1,) string | JSON: name of the case; under `flare`, notes of the simulator |"""


def hub_card(dataset: Dataset, rows: Sequence[Mapping[str, Any]], *, size: int, licence: str, parquet: bool) -> str:
    """README.md of an exported dataset.

    Args:
        rows: the index; `split`, `file` and `num_nodes` of each part.
        size: bytes of all parts.
        parquet: whether the index is there as Parquet; else as CSV.
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

## Where they come from

{_origin(provenance)}

The whole of their provenance, also in `provenance.json`:

```json
{json.dumps(provenance, indent=1)}
```

## Layout

That of the published set, [{about.archive.repository}](https://huggingface.co/datasets/{about.archive.repository}): an
NPZ file a part. `data/` has an index of them, which is what the viewer shows.

{LAYOUT}

```python
import numpy as np

part = np.load("{rows[0]["file"]}")
points, rise = part["pos"], part["disp"][:, 2]
```

Or all of them at once as a dataset of flare-engine, to train with:
`flare data read lpbf --folder . --out data/lpbf`.

## How they differ from the published set

{_list(_differences(dataset))}
"""


def _origin(provenance: Mapping[str, Any]) -> str:
    provenance = provenance.get("exported", provenance)
    kind = provenance.get("kind")
    if kind == "published":
        return "These are parts of the published set, read and written again; all credit is due to its authors."
    if kind == "recreated":
        version = provenance.get("versions", {}).get("flare", flare.__version__)
        job = {key: provenance[key] for key in ("samples", "test_samples", "seed") if key in provenance}
        options = job | provenance.get("departures", {})
        words = " ".join(f"--{key.replace('_', '-')} {_word(value)}" for key, value in options.items())
        return (
            f"**This is not the published set.** It was recreated by the simulator of flare-engine {version} with:\n\n"
            f"```\nflare data make lpbf {words}\n```"
        )
    return f"**This is not the published set.** Kind of data: {kind}."


def _word(value: object) -> str:
    return shlex.quote(value if isinstance(value, str) else json.dumps(value))


def _differences(dataset: Dataset) -> list[str]:
    about, kind = card("lpbf"), dataset.about["provenance"].get("kind")
    more = [f"`{name}`" for name in dataset.schema.fields if name not in about.fields]
    return [
        *(about.differs if kind == "recreated" else ()),
        "`_metadata` is a plain string, not a pickled object: `np.load` needs no `allow_pickle=True` for any key.",
        "Cases are numbered as in the dataset that they were exported from.",
        *([f"There are more keys: {', '.join(more)}."] if more else []),
    ]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)
