"""Several blocks of a VTK file as one mesh, end to end: no point merged, no field lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.mesh.readers import pyvista


def leaves(root: Any) -> list[Any]:
    """The meshes of a pyvista.MultiBlock in their order; places that are empty, as CFD output often has, left out."""
    return list(root.recursive_iterator(skip_none=True))


def end_to_end(blocks: list[Any]) -> tuple[Any, list[str]]:
    """One pyvista.UnstructuredGrid, and remarks. VTK would drop a field that a block lacks: there it is NaN."""
    grid, remarks = pyvista().MultiBlock(blocks).combine(merge_points=False), list[str]()
    for place, sizes in (("point_data", [b.n_points for b in blocks]), ("cell_data", [b.n_cells for b in blocks])):
        data = [getattr(block, place) for block in blocks]
        for name in dict.fromkeys(name for own in data for name in own.keys()):  # noqa: SIM118
            if name in getattr(grid, place):
                continue
            known = [np.asarray(own[name]) if name in own else None for own in data]
            there = [values for values in known if values is not None]
            if any(v.dtype.kind not in "fiub" or v.shape[1:] != there[0].shape[1:] for v in there):
                remarks.append(f"{name!r} is not alike in all blocks, and left out")
                continue
            rows = [
                np.full((size, *there[0].shape[1:]), np.nan) if v is None else v
                for v, size in zip(known, sizes, strict=True)
            ]
            getattr(grid, place)[name] = np.concatenate(rows)
            lacking = len(known) - len(there)
            if lacking:
                remarks.append(f"{lacking} of {len(known)} blocks have no {name!r}: NaN there")
    return grid, remarks
