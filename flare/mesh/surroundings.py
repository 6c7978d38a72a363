"""What a node of a solid has around it: how much stands below and above, how thick the wall is, how full the space.

A cloud of nodes tells where the solid is; whether a node hangs or stands, in a rib or in a block, a network must first
find out from all the others. These numbers tell it. None of them changes when the solid is mirrored in x or y, or its
two horizontal axes are exchanged.
"""

from __future__ import annotations

import numpy as np
from scipy.ndimage import distance_transform_edt, gaussian_filter

from flare.data.sample import Field
from flare.mesh.octree import unmerged
from flare.mesh.surface import Array, Indices

WIDTHS = (2.0, 5.0, 12.0)
"""mm: standard deviations of the Gaussian weights."""
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
    """(N, 1) each of `FIELDS`, float32, at the nodes (N, 3) of axis-aligned hexahedra (E, 8), in millimetres.

    Found for every voxel; a node has the mean of the solid ones at it. What is below z = 0 of the mesh is the plate.
    """
    voxels, corners = unmerged(points, hexahedra)
    solid, size = voxels.solid, np.asarray(voxels.size)
    below, above, gap = columns(solid)
    padded = np.pad(solid, 1)  # beyond the grid there is nothing
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
    return {name: _at_nodes(fields[name], solid, corners) for name in FIELDS}


def columns(solid: np.ndarray) -> tuple[Indices, Indices, Indices]:
    """In voxels, along the last axis: those of a voxel's own run up to itself, from itself on, and the void under it.

    All are 0 where there is no solid; the void is 0 under what stands on the plate.
    """
    up_to, from_on = _runs(solid), _runs(solid[..., ::-1])[..., ::-1]
    under = np.arange(solid.shape[-1]) - up_to  # the place below the run; -1 is the plate
    void = np.take_along_axis(_runs(~solid), under.clip(0), axis=-1)
    return up_to, from_on, np.where(solid & (under >= 0), void, 0)


def _runs(solid: np.ndarray) -> Indices:
    """How many follow one another up to each place of the last axis."""
    place = np.arange(solid.shape[-1])
    last_void = np.maximum.accumulate(np.where(solid, -1, place), axis=-1)
    return (place - last_void).astype(np.int64)


def _at_nodes(field: np.ndarray, solid: np.ndarray, corners: Indices) -> np.ndarray:
    """(N, 1) mean over the solid voxels that have the corner."""
    values, known = np.pad(np.where(solid, field, 0), 1), np.pad(solid, 1)
    total, count = np.zeros(len(corners)), np.zeros(len(corners))
    for offset in np.ndindex(2, 2, 2):
        place = tuple((corners + offset).T)
        total += values[place]
        count += known[place]
    return (total / count)[:, None].astype(np.float32)
