"""Machine, material and discretization: every number of a simulation, with presets.

process = process_preset("ti64-am250")
hotter = process.with_plate_temperature(300.0)
mine = load_process("my-machine.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np
import yaml

from flare.physics.lpbf.hexahedron import Array
from flare.utils.errors import ConfigError, one_line, suggest_name

Curve = tuple[tuple[float, float], ...]
"""(temperature °C, value) pairs with ascending temperatures; linear between them, constant outside."""

_PRESETS = Path(__file__).parent / "presets"

# Values beyond these limits are typing errors or in another unit.
TINY, INF = 1e-12, np.inf
MAX_STRAIN = 0.1
MAX_POWER = 20_000.0  # W, all lasers together; the largest machines have twelve of 1 kW
MAX_TEMPERATURE = 3500.0  # °C; tungsten melts at 3422
LIMITS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("density", "conductivity", "specific_heat", "young", "relaxation_temperature"), (TINY, INF)),
    **dict.fromkeys(("expansion", "hardening", "dwell", "convection"), (0.0, INF)),
    **dict.fromkeys(("hatch", "layer"), (TINY, 5.0)),  # mm
    **dict.fromkeys(("plate_thickness", "build_volume"), (TINY, INF)),
    **dict.fromkeys(("layers_per_voxel", "voxels_per_group"), (1, INF)),
    "poisson": (TINY - 1, 0.5 - TINY),
    "inherent_strain": (-MAX_STRAIN, MAX_STRAIN),
    "solidus": (TINY, MAX_TEMPERATURE),
    "power": (0.0, MAX_POWER),
    "speed": (1.0, 50_000.0),  # mm/s, all lasers together
    "absorptivity": (0.0, 1.0),
    "ambient": (-100.0, MAX_TEMPERATURE),
}
"""Smallest and largest value of each number."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """A metal. Defaults are Ti-6Al-4V: constants are means over 25-250 °C; the refined mode uses the curves."""

    name: str = "Ti-6Al-4V"
    density: float = 4430.0
    """kg/m³."""
    conductivity: float = 8.5
    """W/(m K)."""
    specific_heat: float = 570.0
    """J/(kg K)."""
    young: float = 104_000.0
    """Young's modulus, MPa."""
    poisson: float = 0.34
    expansion: float = 9.0e-6
    """Coefficient of thermal expansion, 1/K."""
    inherent_strain: tuple[float, float, float] = (-0.009, -0.009, 0.0)
    """Strain (x, y, z) that printing leaves in the material, equal in x and y because the scan direction rotates."""
    conductivity_curve: Curve = ()
    specific_heat_curve: Curve = ()
    young_curve: Curve = ()
    expansion_curve: Curve = ()
    """Mean coefficient between the ambient and the given temperature."""
    yield_curve: Curve = ()
    """Yield stress, MPa. Without a curve the material never yields."""
    hardening: float = 1000.0
    """Rise of the yield stress per unit of plastic strain, MPa; refined mode."""
    relaxation_temperature: float = 800.0
    """Temperature above which the metal carries no stress, °C. In refined mode the inherent strain is the
    contraction from here down to the temperature of the layer group, so it is smaller in hot metal."""
    solidus: float = 1604.0
    """Start of melting, °C. The model does not include melting, so higher temperatures are reported."""

    def __post_init__(self) -> None:
        _check_limits(self)
        for item in fields(self):
            if item.name.endswith("_curve"):
                _check_curve(item.name, getattr(self, item.name))

    def without_curves(self) -> Material:
        """Return the material with the same properties at every temperature."""
        constant: dict[str, Any] = {item.name: () for item in fields(self) if item.name.endswith("_curve")}
        return replace(self, **constant)

    def at(self, name: str, temperature: Array) -> Array:
        """Return a property at each temperature: from its curve if there is one, else its constant."""
        curve: Curve = getattr(self, f"{name}_curve")
        if not curve:
            return np.full(temperature.shape, float(getattr(self, name)))
        return np.interp(temperature, *np.array(curve).T)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Laser, powder and plate. Defaults are a Renishaw AM250; its pulsed exposure is given as an equivalent speed."""

    name: str = "Renishaw AM250"
    power: float = 200.0
    """Laser power, W."""
    absorptivity: float = 0.40
    speed: float = 800.0
    """Speed of the laser spot, mm/s."""
    hatch: float = 0.10
    """Distance between neighboring scan lines, mm."""
    layer: float = 0.04
    """Thickness of a powder layer, mm."""
    dwell: float = 20.0
    """Time per layer without laser, s."""
    ambient: float = 25.0
    """Temperature of gas, powder and the finished part, °C."""
    convection: float = 25.0
    """Heat loss of every exposed face, W/(m² K)."""
    plate_thickness: float = 25.0
    """In mm; the plate is of the part's material."""
    plate_temperature: float | None = None
    """Temperature at which a heater holds the plate's bottom, °C. None: no heater; it loses heat like any face."""
    build_volume: tuple[float, float, float] = (250.0, 250.0, 300.0)
    """Largest part (x, y, z), mm. A larger part usually has another unit."""

    def __post_init__(self) -> None:
        _check_limits(self)
        if self.plate_temperature is not None and not self.ambient <= self.plate_temperature < INF:
            raise ConfigError(f"plate_temperature={self.plate_temperature}: must be at least ambient={self.ambient:g}")


@dataclass(frozen=True, kw_only=True)
class Process:
    """Machine, material and discretization of a simulation."""

    machine: Machine = field(default_factory=Machine)
    material: Material = field(default_factory=Material)
    layers_per_voxel: int = 15
    """Powder layers in the height of a voxel: 0.6 mm at 0.04 mm."""
    voxels_per_group: int = 4
    """Voxel layers that are added at once, a layer group: 2.4 mm."""

    incompatible_modes: bool = True
    """Use elements that bend correctly in thin walls. False: plain trilinear ones, too stiff in bending, for
    comparison."""

    def __post_init__(self) -> None:
        _check_limits(self)
        relaxed, machine = self.material.relaxation_temperature, self.machine
        hottest = machine.ambient if machine.plate_temperature is None else machine.plate_temperature
        if hottest >= relaxed:
            raise ConfigError(f"relaxation_temperature={relaxed:g}: must be above gas and plate, {hottest:g}")

    @property
    def voxel_height(self) -> float:
        """Height of a voxel in mm."""
        return self.layers_per_voxel * self.machine.layer

    @property
    def group_height(self) -> float:
        """Height of a layer group in mm, independent of the voxels in use."""
        return self.voxels_per_group * self.voxel_height

    def with_plate_temperature(self, temperature: float) -> Process:
        """Return the process with a heated plate."""
        return replace(self, machine=replace(self.machine, plate_temperature=temperature))

    def with_inherent_strain(self, in_plane: float, vertical: float = 0.0) -> Process:
        """Return the process with another inherent strain."""
        strain = (in_plane, in_plane, vertical)
        return replace(self, material=replace(self.material, inherent_strain=strain))


def process_names() -> list[str]:
    """Return the names of the presets."""
    return sorted(path.stem for path in _PRESETS.glob("*.yaml"))


def process_preset(name: str) -> Process:
    """Load a preset; see `process_names()`."""
    return load_process(process_file(name))


def process_file(name: str) -> Path:
    """Return the YAML file of a preset."""
    if name not in process_names():
        raise ConfigError(f"there is no process {name!r}; {suggest_name(name, process_names())}, or give a .yaml file")
    return _PRESETS / f"{name}.yaml"


def find_process(name: str) -> Process:
    """Load a preset by name, or a YAML file by path."""
    return load_process(name) if Path(name).suffix.lower() in (".yaml", ".yml") else process_preset(name)


def describe_process(process: Process) -> dict[str, str]:
    """Return the numbers of a process with their units by topic."""
    machine, metal = process.machine, process.material
    heater = machine.plate_temperature
    return {
        "laser": f"{machine.power:g} W, {machine.absorptivity:g} of it absorbed, {machine.speed:g} mm/s, "
        f"hatch {machine.hatch:g} mm",
        "layers": f"{machine.layer:g} mm, {machine.dwell:g} s without laser for each",
        "voxels": f"{process.voxel_height:g} mm high, in layer groups of {process.group_height:g} mm",
        "gas": f"{machine.ambient:g} °C, {machine.convection:g} W/(m² K)",
        "plate": f"{machine.plate_thickness:g} mm, {'not heated' if heater is None else f'heated to {heater:g} °C'}",
        "largest part": f"{' × '.join(f'{length:g}' for length in machine.build_volume)} mm",
        "heat": f"{metal.conductivity:g} W/(m K), {metal.specific_heat:g} J/(kg K), {metal.density:g} kg/m³",
        "elastic": f"E {metal.young / 1000:g} GPa, ν {metal.poisson:g}, expansion {metal.expansion:g} 1/K",
        "inherent strain": f"{', '.join(f'{strain:g}' for strain in metal.inherent_strain)} along x, y, z",
        "yield stress": f"{metal.yield_curve[0][1]:g} MPa cold, in refined mode" if metal.yield_curve else "never",
    }


def load_process(path: str | Path) -> Process:
    """Load a process from a YAML file with the fields of `Process`; missing ones keep their defaults.

    Raises:
        ConfigError: The file cannot be read, or a field is unknown or out of range.
    """
    try:
        record = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
        return _build(Process, record or {})
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {one_line(error)}") from error


def _build(cls: type[Any], record: Any) -> Any:
    """Build a dataclass from names and values. (YAML reads 1e-6 as text.)"""
    if not isinstance(record, Mapping):
        raise ConfigError(f"{cls.__name__.lower()} must hold names and values, got {record!r}")
    types, values = get_type_hints(cls), {}
    for key, value in record.items():
        name = str(key).replace("-", "_")  # accept the spelling of options
        if name not in types:
            raise ConfigError(f"{key} is unknown; {suggest_name(name, types)}")
        kind = types[name]
        if is_dataclass(kind):
            values[name] = _build(cast(type[Any], kind), value)
        elif kind in (str, bool):
            values[name] = value
        else:
            values[name] = _numbers(value, name, int if kind is int else float)
    return cls(**values)


def _numbers(value: Any, name: str, kind: type[int] | type[float]) -> Any:
    """Convert a number, or lists of numbers to tuples."""
    if isinstance(value, list):
        return tuple(_numbers(item, name, kind) for item in value)
    try:
        return None if value is None else kind(str(value))
    except ValueError:
        raise ConfigError(f"{name}={value!r}: must be {'a whole number' if kind is int else 'a number'}") from None


def _check_limits(record: Material | Machine | Process) -> None:
    for item in fields(record):
        value: Any = getattr(record, item.name)
        default: Any = item.default
        if isinstance(default, bool) and not isinstance(value, bool):
            raise ConfigError(f"{item.name}={value!r}: must be true or false")
        if item.name not in LIMITS:
            continue
        low, high = LIMITS[item.name]
        array = np.array(value, dtype=np.float64)  # NaN for None
        finite = np.isfinite(array) & (low <= array) & (array <= high)
        if array.shape != np.shape(default) or not finite.all():
            count = "three numbers" if np.ndim(default) else "a number"
            raise ConfigError(f"{item.name}={value}: must be {count} from {low:g} to {high:g}")


def _check_curve(name: str, curve: Curve) -> None:
    table = np.array(curve or np.empty((0, 2)), dtype=np.float64)
    valid = table.shape[1:] == (2,) and np.isfinite(table).all()
    if not valid or (np.diff(table[:, 0]) <= 0).any() or (table[:, 1] <= 0).any():
        raise ConfigError(f"{name}={curve}: must be (temperature, value) pairs of ascending, positive values")
