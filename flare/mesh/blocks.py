"""Several blocks of a VTK file as one mesh, end to end: no point merged, no field lost."""

from __future__ import annotations

from typing import Any

import numpy as np

from flare.mesh.readers import pyvista

NUMBERS = "fiub"
"""Kinds of arrays that hold them."""
MARKS = ("ElementBlockIds", "ispatch", "issurface")
"""What VTK's readers of Exodus and CGNS tell of each block."""


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
            why = _cannot_be_joined(there, len(blocks))
            if why:
                remarks.append(f"{name!r} {why}: left out")
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


def _cannot_be_joined(there: list[np.ndarray], blocks: int) -> str:
    """Why the arrays of a name, of so many blocks, are not one field; empty where they are."""
    numbers = {values.dtype.kind in NUMBERS for values in there}
    if len(numbers) == 2:
        return "is text in some blocks and numbers in others"
    if numbers == {False}:
        return f"is text that only {len(there)} of {blocks} blocks have"
    if len({values.shape[1:] for values in there}) > 1:
        return "has more components in some blocks than in others"
    return ""


def share_field_data(root: Any, grid: Any) -> list[str]:
    """Give the mesh of all blocks the field data of their root, and what is the same in each block.

    Other numbers of single blocks are remarked on, for they are no parameters of the whole; texts are names, mostly.
    """
    whole, own, blocks, remarks = grid.GetFieldData(), root.GetFieldData(), leaves(root), list[str]()
    whole.Initialize()  # VTK has put there what any of the blocks has
    parts = [block.field_data for block in blocks]
    for name in dict.fromkeys(name for part in parts for name in part.keys()):  # noqa: SIM118
        known = [np.asarray(part[name]) for part in parts if name in part]
        if own.HasArray(name) or name in MARKS or name.startswith("vtk"):
            continue
        if len(known) == len(parts) and all(np.array_equal(known[0], values) for values in known):
            whole.AddArray(blocks[0].GetFieldData().GetAbstractArray(name))
        elif known[0].dtype.kind in NUMBERS:
            some = f"{len(known)} of {len(parts)} blocks have" if len(known) < len(parts) else "blocks differ in"
            remarks.append(f"{some} field data {name!r}: no parameter of the file")
    for index in range(own.GetNumberOfArrays()):
        whole.AddArray(own.GetAbstractArray(index))
    return remarks
