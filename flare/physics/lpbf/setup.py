"""From a file with a part to what `Build` takes: voxels on the plate, and a process that fits them.

setup = prepare("bracket.stl", process_preset("ti64-am250"), up="+y")
result = simulate(setup.voxels, setup.process, mode=setup.mode)
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.errors import ConfigError, DataError, nearest
from flare.mesh.pieces import one_piece_on_plate
from flare.mesh.read import read_part
from flare.mesh.surface import Surface, placed
from flare.mesh.voxelise import benchmark_size, voxelise
from flare.mesh.voxels import Vector, Voxels
from flare.physics.lpbf.build import MODES, Mode
from flare.physics.lpbf.process import Process, process_preset
from flare.physics.lpbf.thermal import heating

MOST_VOXELS = 1_500_000  # solid ones: some 5 kB each, 8 GB in all
SLENDEREST = 3.0  # height of a voxel over its width: the benchmark drops parts beyond


@dataclass(frozen=True)
class Setup:
    """A part ready to be printed."""

    name: str
    """Of the part, for titles."""
    part: Surface
    """In its place on the plate, mm."""
    voxels: Voxels
    process: Process
    """Its voxel height is that of the voxels."""
    mode: Mode
    crumbs: int = 0
    """Voxels left out because walls thinner than a voxel cut them off."""

    @property
    def groups(self) -> int:
        return -(-self.voxels.solid.shape[2] // self.process.voxels_per_group)

    @property
    def tops(self) -> list[float]:
        """Height of the top of each layer group, mm."""
        top = self.voxels.solid.shape[2] * self.voxels.size[2]
        return [min((group + 1) * self.process.group_height, top) for group in range(self.groups)]

    @property
    def seconds(self) -> list[float]:
        """What each layer group takes on the machine, scanning and dwell."""
        step, height = self.process.voxels_per_group, self.voxels.size[2]
        slabs = [self.voxels.solid[:, :, k : k + step] for k in range(0, self.voxels.solid.shape[2], step)]
        face = self.voxels.size[0] * self.voxels.size[1]
        areas = [(int(slab.sum()) / slab.shape[2] * face, slab.shape[2] * height) for slab in slabs]
        return [heating(self.process.machine, area=area, height=high).duration for area, high in areas]

    def record(self) -> dict[str, Any]:
        """All that the result depends on, as plain values: two setups are one if their records are equal."""
        part = {"name": self.name, "fingerprint": _fingerprint(self.part.vertices, self.part.faces)}
        voxels = {
            "shape": list(self.voxels.solid.shape),
            "size": list(self.voxels.size),
            "origin": list(self.voxels.origin),
            "fingerprint": _fingerprint(self.voxels.solid),
        }
        return {"part": part, "mode": self.mode, "voxels": voxels, "process": _plain(asdict(self.process))}


def prepare(
    source: str | os.PathLike[str] | Surface | Any,
    process: Process | None = None,
    *,
    mode: Mode = "benchmark",
    voxel: float | None = None,
    layers: int | None = None,
    unit: str = "mm",
    longest: float | None = None,
    up: str = "+z",
) -> Setup:
    """Read a part, put it on the plate, and fill it with voxels.

    Args:
        source: a file, as in `read_part`, or the triangles themselves.
        process: None is Ti-6Al-4V on the Renishaw AM250. Where the voxels are to have another height than its own, it
            is changed to groups of voxels that are as high as before, or nearly.
        mode: as in `simulate`.
        voxel: largest edge of a voxel, mm: the part is divided evenly in x and y; the height is the nearest number of
            whole powder layers. None: the rule of the benchmark, see `voxel_size`.
        layers: powder layers in the height of a voxel. None: those of `voxel`, or of the process.
        unit: of the file's coordinates.
        longest: scale the longest edge of the part to so many mm; the unit then does not matter. None keeps the size.
        up: axis of the part that is the build direction.

    Raises:
        DataError: the part cannot be printed, or has too many voxels.
        ConfigError: a setting makes no sense.
    """
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is unknown; {nearest(str(mode), MODES)}")
    process = process or process_preset("ti64-am250")
    layers = _layers(process, voxel, layers)
    part = placed(read_part(source, unit=None if longest is not None else unit), up=up, longest=longest)
    process = with_voxel_layers(process, layers)
    filled = voxelise(part, voxel_size(part.extents, process, voxel))
    voxels = one_piece_on_plate(filled)
    if voxels.count > MOST_VOXELS:
        larger = process.voxel_height * (voxels.count / (0.8 * MOST_VOXELS)) ** (1 / 3)
        raise DataError(
            f"the part has {voxels.count:,} voxels, which would take some {voxels.count * 5e-6:.0f} GB; the limit is "
            f"{MOST_VOXELS:,}: use larger ones with --voxel {larger:.2g}, or check the part's unit"
        )
    name = Path(source).name if isinstance(source, str | os.PathLike) else "part"
    return Setup(name, part, voxels, process, mode, filled.count - voxels.count)


def voxel_size(extents: np.ndarray, process: Process, voxel: float | None = None) -> Vector:
    """Edges of a voxel for a part with bounding box `extents`, as high as the process says.

    Along x and y the part is divided into equal voxels of at most `voxel` mm. None: by the benchmark's rule, but where
    that would make them more than three times as high as wide, as in thin upright walls, by their height.
    """
    height = process.voxel_height
    if voxel is None:
        sizes = benchmark_size(extents, layers=process.layers_per_voxel, layer=process.machine.layer)
        wide = [float(n) if height / n <= SLENDEREST else None for n in sizes[:2]]
    else:
        wide = [None, None]
    x, y = (
        edge or float(length / np.ceil(length / (voxel or height) - 1e-9))
        for edge, length in zip(wide, extents[:2], strict=True)
    )
    return x, y, height


def with_voxel_layers(process: Process, layers: int) -> Process:
    """The process on voxels of so many powder layers, its groups as high as before, or nearly."""
    per_group = max(1, round(process.group_height / (layers * process.machine.layer)))
    return replace(process, layers_per_voxel=layers, voxels_per_group=per_group)


def _layers(process: Process, voxel: float | None, layers: int | None) -> int:
    thin = process.machine.layer
    if voxel is not None and not thin <= voxel < np.inf:
        raise ConfigError(f"voxel={voxel:g}: give an edge in mm, at least a powder layer of {thin:g} mm")
    if layers is not None and layers < 1:
        raise ConfigError(f"layers={layers}: a voxel is at least one powder layer high")
    if layers is not None:
        return layers
    return process.layers_per_voxel if voxel is None else round(voxel / thin)


def _fingerprint(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _plain(value: Any) -> Any:
    """As JSON gives it back."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
