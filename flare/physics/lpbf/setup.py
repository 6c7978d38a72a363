"""Preparation of a part, from a CAD file or voxels: voxels on the plate, and a process that fits them.

setup = prepare("bracket.stl", process_preset("ti64-am250"), up="+y")
result = simulate(setup.voxels, setup.process, mode=setup.mode)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.mesh.parts import USUAL, read_part, unit_hint
from flare.mesh.surface import GeometryError, Surface, Vector, placed, text_by
from flare.mesh.voxelization import benchmark_size, divisions, voxelize
from flare.mesh.voxels import Voxels, one_piece_on_plate, skin, thin_share
from flare.physics.lpbf.build import Mode, check_printable
from flare.physics.lpbf.process import Process, process_preset
from flare.physics.lpbf.thermal import group_heating
from flare.utils.errors import ConfigError, DataError
from flare.utils.text import counted

MAX_VOXELS = 1_500_000  # about 5 kB each, 8 GB in all
THIN_SHARE = 0.01  # share of voxels in walls of one voxel from which on a note is given
VOLUME_ERROR = 0.05  # relative error of the voxels' volume from which on a note is given
MAX_HEIGHT_TO_WIDTH = 3.0  # of a voxel; the benchmark drops parts beyond


@dataclass(frozen=True)
class Setup:
    """A part ready for simulation."""

    name: str
    """Name of the part for titles."""
    part: Surface
    """Surface on the plate in mm. For a part given as voxels, their skin."""
    voxels: Voxels
    process: Process
    """Process with the voxel height of the voxels."""
    mode: Mode
    dropped_voxels: int = 0
    """Number of voxels dropped because walls thinner than a voxel disconnect them."""
    notes: tuple[str, ...] = ()
    """Remarks for the user, one line each."""

    @property
    def groups(self) -> int:
        """Number of layer groups."""
        return -(-self.voxels.solid.shape[2] // self.process.voxels_per_group)

    @property
    def tops(self) -> list[float]:
        """Height of the top of each layer group in mm."""
        top = self.voxels.solid.shape[2] * self.voxels.size[2]
        return [min((group + 1) * self.process.group_height, top) for group in range(self.groups)]

    @property
    def group_seconds(self) -> list[float]:
        """Machine time of each layer group, scanning and dwell."""
        step, height = self.process.voxels_per_group, self.voxels.size[2]
        slabs = [self.voxels.solid[:, :, k : k + step] for k in range(0, self.voxels.solid.shape[2], step)]
        face = self.voxels.size[0] * self.voxels.size[1]
        areas = [(int(slab.sum()) / slab.shape[2] * face, slab.shape[2] * height) for slab in slabs]
        return [group_heating(self.process.machine, area=area, height=high).duration for area, high in areas]

    def record(self) -> dict[str, Any]:
        """Return everything the result depends on. Two setups are equal if their records are."""
        part = {"name": self.name, "fingerprint": _fingerprint(self.part.vertices, self.part.faces)}
        voxels = {
            "shape": list(self.voxels.solid.shape),
            "size": list(self.voxels.size),
            "origin": list(self.voxels.origin),
            "fingerprint": _fingerprint(self.voxels.solid),
        }
        return {"part": part, "mode": self.mode, "voxels": voxels, "process": asdict(self.process)}


def prepare(
    source: str | os.PathLike[str] | Surface | Voxels | Any,
    process: Process | None = None,
    *,
    mode: Mode = "benchmark",
    voxel: float | None = None,
    layers: int | None = None,
    unit: str = "mm",
    longest: float | None = None,
    up: str = "+z",
) -> Setup:
    """Read a part, place it on the plate and voxelize it.

    Args:
        source: A file (see `read_part`), triangles, or voxels. Voxels are used as they are: in mm, one piece standing
            on z = 0, a whole number of powder layers high, and without the settings from `voxel` on.
        process: None is Ti-6Al-4V on the Renishaw AM250. If the voxels have another height than its own, its groups are
            rounded to whole voxels; a note says so.
        mode: See `simulate`.
        voxel: Largest edge of a voxel in mm. The part is divided evenly in x and y; the height is the nearest number of
            powder layers. None is the rule of the benchmark, see `voxel_size`.
        layers: Powder layers in the height of a voxel. None: from `voxel`, or those of the process.
        unit: Unit of the file's coordinates.
        longest: Scale the longest edge of the part to this length in mm, whatever the unit. None keeps the size.
        up: Axis of the part that is the build direction.

    Raises:
        DataError: The part cannot be printed, is larger than the machine, or has too many voxels.
        ConfigError: A setting is invalid.
    """
    given = process or process_preset("ti64-am250")
    name = Path(source).name if isinstance(source, str | os.PathLike) else "part"
    if isinstance(source, Voxels):
        if (voxel, layers, unit, longest, up) != (None, None, "mm", None, "+z"):
            raise ConfigError("voxels are used as they are; voxel, layers, unit, longest and up cannot be set")
        solid, corner = check_printable(source)
        x, y, z = map(float, source.size)
        voxels = filled = Voxels(solid, size=(x, y, z), origin=(*corner, 0.0))
        count = max(1, round(z / given.machine.layer))
        if abs(count * given.machine.layer - z) > 1e-6 * z:
            raise ConfigError(f"voxels of {z:g} mm do not hold whole powder layers of {given.machine.layer:g} mm")
        process = with_voxel_layers(given, count)
        part = skin(voxels)
        hint = "is the size of its voxels in mm?"
        _check_fits(part, process, hint)
    else:
        process = with_voxel_layers(given, _layers(given, voxel, layers))
        part = placed(read_part(source, unit=None if longest is not None else unit), up=up, longest=longest)
        hint = unit_hint(float(part.extents.max()), name, unit)
        _check_fits(part, process, f"{hint}.")
        try:
            filled = voxelize(part, voxel_size(part.extents, process, voxel))
            voxels = one_piece_on_plate(filled)
        except GeometryError as fault:
            longest_edge = float(part.extents.max())
            small = f"{name} is only {longest_edge:.3g} mm long: {hint}. " if longest_edge < USUAL[0] else ""
            raise GeometryError(fault.reason, f"{small}{fault}") from None
    if voxels.count > MAX_VOXELS:
        limit = f"more than {MAX_VOXELS:,}; use a larger `voxel`, or check the unit"
        raise DataError(f"{name} has {voxels.count:,} voxels, {limit}")
    setup = Setup(name, part, voxels, process, mode, filled.count - voxels.count)
    return replace(setup, notes=tuple(_notes(setup, given, hint)))


def voxel_size(extents: np.ndarray, process: Process, voxel: float | None = None) -> Vector:
    """Return the edges of a voxel for a part with bounding box `extents`; the process gives the height.

    Along x and y the part is divided into equal voxels of at most `voxel` mm. None follows the benchmark's rule, or the
    height if the rule would make them more than three times as high as wide, as in thin upright walls.
    """
    height = process.voxel_height
    if voxel is None:
        sizes = benchmark_size(extents, layers=process.layers_per_voxel, layer=process.machine.layer)
        wide = [float(n) if height / n <= MAX_HEIGHT_TO_WIDTH else None for n in sizes[:2]]
    else:
        wide = [None, None]
    x, y = (
        edge or float(length / divisions(length, voxel or height))
        for edge, length in zip(wide, extents[:2], strict=True)
    )
    return x, y, height


def with_voxel_layers(process: Process, layers: int) -> Process:
    """Return the process on voxels of `layers` powder layers, with groups of nearly the same height."""
    group = process.layers_per_voxel * process.voxels_per_group
    if not 1 <= layers <= group:
        high, most = layers * process.machine.layer, process.group_height
        raise ConfigError(f"layers={layers}: voxels of {high:g} mm; must be 1 to {group}, a layer group of {most:g} mm")
    return replace(process, layers_per_voxel=layers, voxels_per_group=round(group / layers))


def _layers(process: Process, voxel: float | None, layers: int | None) -> int:
    thin = process.machine.layer
    if voxel is not None and not thin <= voxel < np.inf:
        raise ConfigError(f"voxel={voxel:g}: must be an edge in mm of at least a powder layer, {thin:g} mm")
    if layers is None:
        return process.layers_per_voxel if voxel is None else round(voxel / thin)
    return layers


def _check_fits(part: Surface, process: Process, hint: str) -> None:
    """Check the part against the build volume; a quarter turn on the plate is allowed."""
    machine = process.machine
    (x, y, z), (wide, deep, high) = part.extents, np.array(machine.build_volume) * (1 + 1e-6)
    if max(x, y) <= max(wide, deep) and min(x, y) <= min(wide, deep) and z <= high:
        return
    limit = f"the build volume of {machine.name}, {text_by(machine.build_volume)} mm"
    raise GeometryError("size", f"the part of {text_by(part.extents)} mm is larger than {limit}; {hint}")


def _notes(setup: Setup, given: Process, hint: str) -> Iterator[str]:
    part, process = setup.part, setup.process
    longest = float(part.extents.max())
    if longest < USUAL[0]:
        yield f"the part is only {longest:.3g} mm long: {hint}"
    if not np.isclose(process.group_height, given.group_height, rtol=1e-9):
        group = given.layers_per_voxel * given.voxels_per_group
        whole = min((n for n in range(1, group + 1) if group % n == 0), key=lambda n: abs(n - process.layers_per_voxel))
        yield f"layer groups are {process.group_height:g} mm high to hold whole voxels; layers={whole} would fit"
    if setup.dropped_voxels:
        yield f"{counted(setup.dropped_voxels, 'voxel')} dropped behind walls thinner than a voxel; use a smaller voxel"
    finer = f"compare with voxel={max(setup.voxels.size) / 2:.2g}"
    thin, volume = thin_share(setup.voxels.solid), setup.voxels.volume / abs(part.volume)
    if thin > THIN_SHARE:
        yield f"{100 * thin:.0f} % of the voxels are in walls one voxel thick: stress depends on their size; {finer}"
    if abs(volume - 1) > VOLUME_ERROR:
        yield f"the voxels have {100 * volume:.0f} % of the part's volume: stress depends on the voxel size; {finer}"


def _fingerprint(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]
