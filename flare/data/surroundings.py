"""Geometric features of the nodes of a solid: material below and above, wall thickness, local fill.

A network that sees only node coordinates must infer from all other nodes whether a node overhangs, or belongs to a rib
or a block. These features state it directly. They do not change if the solid is mirrored in x or y, or if its two
horizontal axes are swapped.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_filter

from flare.data.sample import Field
from flare.mesh.octree import unmerged
from flare.mesh.surface import Array, Indices

WIDTHS = (2.0, 5.0, 12.0)
"""Standard deviations of the Gaussian weights, mm."""
FIELDS = {
    "below": Field(role="feature", components=("below",), unit="mm", description="solid straight below, without a gap"),
    "above": Field(role="feature", components=("above",), unit="mm", description="solid straight above, without a gap"),
    "gap": Field(role="feature", components=("gap",), unit="mm", description="empty under that; 0 on the plate"),
    "depth": Field(role="feature", components=("depth",), unit="mm", description="to the nearest void"),
    "wall": Field(role="feature", components=("wall",), unit="mm", description="to the nearest void of the same layer"),
    **{
        f"fill_{width:g}": Field(
            role="feature", components=("share",), description=f"solid around, Gaussian weights of {width:g} mm"
        )
        for width in WIDTHS
    },
    **{
        f"slope_{width:g}": Field(
            role="feature", components=("share",), description=f"growth of fill_{width:g} over {width:g} mm upwards"
        )
        for width in WIDTHS[1:]
    },
}


def surroundings(points: Array, hexahedra: Indices) -> dict[str, np.ndarray]:
    """Compute the features of `FIELDS` at the nodes of a mesh of axis-aligned hexahedra.

    Features are computed per voxel; a node gets the mean over the solid voxels around it. The build plate is below
    the lowest layer.

    Args:
        points: Nodes, shape (N, 3), mm.
        hexahedra: Node indices, shape (E, 8).

    Returns:
        Feature name -> values, shape (N, 1), float32.

    Raises:
        DataError: The hexahedra are not axis-aligned boxes of a grid.
    """
    voxels, corners = unmerged(points, hexahedra)
    solid, size = voxels.solid, np.asarray(voxels.size)
    below, above, gap = columns(solid)
    padded = np.pad(solid, 1)  # void around the grid
    fields = {
        "below": below * size[2],
        "above": above * size[2],
        "gap": gap * size[2],
        "depth": distance_transform_edt(padded, sampling=size)[1:-1, 1:-1, 1:-1],
        "wall": np.stack([distance_transform_edt(layer, sampling=size[:2]) for layer in np.moveaxis(padded, 2, 0)], 2)[
            1:-1, 1:-1, 1:-1
        ],
    }
    share = solid.astype(np.float32)
    for width in WIDTHS:
        fields[f"fill_{width:g}"] = gaussian_filter(share, width / size, mode="constant")
    for width in WIDTHS[1:]:
        slope = gaussian_filter(share, width / size, order=(0, 0, 1), mode="constant")
        fields[f"slope_{width:g}"] = slope * width / size[2]
    return {name: _average_at_nodes(fields[name], solid, corners) for name in FIELDS}


def columns(solid: np.ndarray) -> tuple[Indices, Indices, Indices]:
    """Measure the runs of solid voxels along the last axis, in voxels.

    Returns:
        For each voxel, the length of its run up to and including it, the length from it on, and the length of the void
        under the run. All are 0 in void; the third is 0 for runs that stand on the plate.
    """
    up_to, from_on = _runs(solid), _runs(solid[..., ::-1])[..., ::-1]
    under = np.arange(solid.shape[-1]) - up_to  # index of the voxel below the run; -1 is the plate
    void = np.take_along_axis(_runs(~solid), under.clip(0), axis=-1)
    return up_to, from_on, np.where(solid & (under >= 0), void, 0)


def _runs(solid: np.ndarray) -> Indices:
    """Return the number of consecutive True values up to each index of the last axis."""
    place = np.arange(solid.shape[-1])
    last_void = np.maximum.accumulate(np.where(solid, -1, place), axis=-1)
    return (place - last_void).astype(np.int64)


def _average_at_nodes(field: np.ndarray, solid: np.ndarray, corners: Indices) -> np.ndarray:
    """Average a voxel field over the solid voxels around each node, shape (N, 1)."""
    values, known = np.pad(np.where(solid, field, 0), 1), np.pad(solid, 1)
    total, count = np.zeros(len(corners)), np.zeros(len(corners))
    for offset in np.ndindex(2, 2, 2):
        place = tuple((corners + offset).T)
        total += values[place]
        count += known[place]
    return (total / count)[:, None].astype(np.float32)
