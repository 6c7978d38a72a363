"""From a part, as a file or as voxels, to what `Build` takes: voxels on the plate, and a process that fits them.

setup = prepare("bracket.stl", process_preset("ti64-am250"), up="+y")
result = simulate(setup.voxels, setup.process, mode=setup.mode)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from flare.mesh.pieces import one_piece_on_plate
from flare.mesh.read import USUAL, read_part, unit_hint
from flare.mesh.skin import skin
from flare.mesh.surface import Surface, placed
from flare.mesh.unfit import Unfit
from flare.mesh.voxelise import benchmark_size, divisions, voxelise
from flare.mesh.voxels import Vector, Voxels
from flare.mesh.walls import thin_share
from flare.physics.lpbf.build import MODES, Mode, printable
from flare.physics.lpbf.process import Process, process_preset
from flare.physics.lpbf.thermal import heating
from flare.utils.errors import ConfigError, DataError, nearest
from flare.utils.text import counted

MOST_VOXELS = 1_500_000  # solid ones: some 5 kB each, 8 GB in all
THIN_SHARE = 0.01  # of the voxels: fewer in walls of one voxel are not worth a note
VOLUME_OFF = 0.05  # likewise, the voxels' volume against the part's
SLENDEREST = 3.0  # height of a voxel over its width: the benchmark drops parts beyond


@dataclass(frozen=True)
class Setup:
    """A part ready to be printed."""

    name: str
    """Of the part, for titles."""
    part: Surface
    """In its place on the plate, mm. Of a part that came as voxels, their skin."""
    voxels: Voxels
    process: Process
    """Its voxel height is that of the voxels."""
    mode: Mode
    crumbs: int = 0
    """Voxels left out because walls thinner than a voxel cut them off."""
    notes: tuple[str, ...] = ()
    """What the user should know before the work, a line each."""

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
    """Read a part, put it on the plate, and fill it with voxels.

    Args:
        source: a file, as in `read_part`, the triangles themselves, or voxels, which are taken as they are: in mm, one
            piece standing on z = 0, a whole number of powder layers high, with none of the settings from `voxel` on.
        process: None is Ti-6Al-4V on the Renishaw AM250. Where the voxels are to have another height than its own, it
            is changed to groups of voxels that are as high as before, or nearly; a note says so.
        mode: as in `simulate`.
        voxel: largest edge of a voxel, mm: the part is divided evenly in x and y; the height is the nearest number of
            whole powder layers. None: the rule of the benchmark, see `voxel_size`.
        layers: powder layers in the height of a voxel. None: those of `voxel`, or of the process.
        unit: of the file's coordinates.
        longest: scale the longest edge of the part to so many mm; the unit then does not matter. None keeps the size.
        up: axis of the part that is the build direction.

    Raises:
        DataError: the part cannot be printed, is larger than the machine, or has too many voxels.
        ConfigError: a setting makes no sense.
    """
    if mode not in MODES:
        raise ConfigError(f"mode={mode!r} is unknown; {nearest(str(mode), MODES)}")
    given = process or process_preset("ti64-am250")
    name = Path(source).name if isinstance(source, str | os.PathLike) else "part"
    if isinstance(source, Voxels):
        _refuse_settings(voxel=voxel, layers=layers, unit=None if unit == "mm" else unit, longest=longest, up=up)
        solid, corner = printable(source)
        x, y, z = map(float, source.size)
        voxels = filled = Voxels(solid, size=(x, y, z), origin=(*corner, 0.0))
        process = with_voxel_layers(given, _whole_layers(given, z))
        part = skin(voxels)
        hint = "is the size of its voxels in mm?"
        _check_fits(part, process, hint)
    else:
        process = with_voxel_layers(given, _layers(given, voxel, layers))
        part = placed(read_part(source, unit=None if longest is not None else unit), up=up, longest=longest)
        hint = unit_hint(float(part.extents.max()), name, unit)
        _check_fits(part, process, f"{hint}.")
        with _unit_first(part, name, hint):
            filled = voxelise(part, voxel_size(part.extents, process, voxel))
            voxels = one_piece_on_plate(filled)
    if voxels.count > MOST_VOXELS:
        raise DataError(
            f"the part has {voxels.count:,} voxels, which would take some {voxels.count * 5e-6:.0f} GB; the limit is "
            f"{MOST_VOXELS:,}: use larger ones with {_larger(voxels.volume, process)}, or check the part's unit"
        )
    crumbs = filled.count - voxels.count
    setup = Setup(name, part, voxels, process, mode, crumbs)
    return replace(setup, notes=tuple(_notes(setup, given, hint)))


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
        edge or float(length / divisions(length, voxel or height))
        for edge, length in zip(wide, extents[:2], strict=True)
    )
    return x, y, height


def with_voxel_layers(process: Process, layers: int) -> Process:
    """The process on voxels of so many powder layers, its groups as high as before, or nearly."""
    group = process.layers_per_voxel * process.voxels_per_group
    if layers > group:
        raise ConfigError(
            f"voxels {layers * process.machine.layer:g} mm high are higher than a layer group of "
            f"{process.group_height:g} mm; use --voxel {process.group_height:g} or less, --layers {group} for flat "
            f"ones, or a process file with higher groups"
        )
    return replace(process, layers_per_voxel=layers, voxels_per_group=round(group / layers))


def _layers(process: Process, voxel: float | None, layers: int | None) -> int:
    thin = process.machine.layer
    if voxel is not None and not thin <= voxel < np.inf:
        raise ConfigError(f"voxel={voxel:g}: give an edge in mm, at least a powder layer of {thin:g} mm")
    if layers is not None and layers < 1:
        raise ConfigError(f"layers={layers}: a voxel is at least one powder layer high")
    if layers is not None:
        return layers
    return process.layers_per_voxel if voxel is None else round(voxel / thin)


def _larger(volume: float, process: Process) -> str:
    """Options with which a part of so many mm³ has few enough voxels: cubes, or flat ones as high as a group."""
    each, high = volume / (0.8 * MOST_VOXELS), process.group_height
    if each <= high**3:
        return f"--voxel {each ** (1 / 3):.2g}"
    return f"--voxel {(each / high) ** 0.5:.2g} --layers {process.layers_per_voxel * process.voxels_per_group}"


def _whole_layers(process: Process, height: float) -> int:
    layer = process.machine.layer
    layers = max(1, round(height / layer))
    if abs(layers * layer - height) > 1e-6 * height:
        raise ConfigError(
            f"voxels {height:g} mm high are no whole number of powder layers of {layer:g} mm; make them "
            f"{layers * layer:g} mm high, or use a process with other layers"
        )
    return layers


def _refuse_settings(*, up: str, **settings: object) -> None:
    given = [name for name, value in settings.items() if value is not None] + ["up"] * (up != "+z")
    if given:
        raise ConfigError(f"{given[0]}: voxels are taken as they are; leave it out")


def _check_fits(part: Surface, process: Process, hint: str) -> None:
    """A quarter turn on the plate is free."""
    machine = process.machine
    (x, y, z), (wide, deep, high) = part.extents, np.array(machine.build_volume) * (1 + 1e-6)
    if max(x, y) <= max(wide, deep) and min(x, y) <= min(wide, deep) and z <= high:
        return
    raise Unfit(
        "size",
        f"the part is {_by(part.extents)} mm as it stands, but the build volume of {machine.name} is "
        f"{_by(machine.build_volume)} mm; {hint} A larger machine is machine.build_volume in a process file",
    )


@contextmanager
def _unit_first(part: Surface, name: str, hint: str) -> Iterator[None]:
    """A part that is too small for voxels has another unit, most often: say that before all else."""
    try:
        yield
    except Unfit as fault:
        longest = float(part.extents.max())
        if longest >= USUAL[0]:
            raise
        message = f"{name} is only {longest:.3g} mm long: {hint}. As it is, {fault}"
        raise Unfit(fault.reason, message) from None


def _notes(setup: Setup, given: Process, hint: str) -> Iterator[str]:
    part, process, crumbs = setup.part, setup.process, setup.crumbs
    longest = float(part.extents.max())
    if longest < USUAL[0]:
        yield f"the part is only {longest:.3g} mm long: {hint}"
    if not np.isclose(process.group_height, given.group_height, rtol=1e-9):
        group = given.layers_per_voxel * given.voxels_per_group
        whole = min((n for n in range(1, group + 1) if group % n == 0), key=lambda n: abs(n - process.layers_per_voxel))
        yield (
            f"layer groups are {process.group_height:g} mm high, not {given.group_height:g} mm, because they are of "
            f"whole voxels; those of {whole * given.machine.layer:g} mm (--layers {whole}) would fill them"
        )
    if crumbs:
        yield f"{counted(crumbs, 'voxel')} behind walls thinner than a voxel left out; use a smaller --voxel"
    finer = f"finer ones tell how much: --voxel {max(setup.voxels.size) / 2:.2g}"
    thin, volume = thin_share(setup.voxels.solid), setup.voxels.volume / abs(part.volume)
    if thin > THIN_SHARE:
        yield (
            f"{100 * thin:.0f} % of the voxels are in walls one voxel thick: there, peak stress and bending depend on "
            f"the voxels; {finer}"
        )
    if abs(volume - 1) > VOLUME_OFF:
        yield f"the voxels have {100 * volume:.0f} % of the part's volume, so stress depends on the voxels; {finer}"


def _by(lengths: Iterable[float]) -> str:
    return " × ".join(f"{length:.4g}" for length in lengths)


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
