"""Machine, material and discretization: every number of a simulation, with presets.

process = process_preset("ti64-am250")
hotter = process.with_plate_temperature(300.0)
mine = load_process("my-machine.yaml")
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import numpy as np
import yaml

from flare.physics.lpbf.hexahedron import Array
from flare.utils.errors import ConfigError, suggest_name

Curve = tuple[tuple[float, float], ...]
"""(temperature °C, value) pairs with ascending temperatures; linear between them, constant outside."""

_PRESETS = Path(__file__).parent / "presets"

# Values beyond these limits are typing errors or in another unit.
MAX_STRAIN = 0.1
MAX_POWER = 20_000.0  # W, all lasers together; the largest machines have twelve of 1 kW
MIN_SPEED, MAX_SPEED = 1.0, 50_000.0  # mm/s, all lasers together
MAX_TEMPERATURE = 3500.0  # °C; tungsten melts at 3422
MIN_AMBIENT = -100.0  # °C


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
    """Start of melting, °C. The model has no melting, so higher temperatures are reported."""

    def __post_init__(self) -> None:
        for name in ("density", "conductivity", "specific_heat", "young"):
            _check(f"material.{name}", getattr(self, name), above=0.0)
        _check("material.poisson", self.poisson, above=-1.0, below=0.5)
        for name in ("expansion", "hardening"):
            _check(f"material.{name}", getattr(self, name), at_least=0.0)
        _check_vector("material.inherent_strain", self.inherent_strain, above=-MAX_STRAIN, below=MAX_STRAIN)
        _check("material.solidus", self.solidus, above=0.0, at_most=MAX_TEMPERATURE)
        _check(
            "material.relaxation_temperature", self.relaxation_temperature, above=0.0
        )  # no upper limit: a huge one never relaxes
        for item in fields(self):
            if item.name.endswith("_curve"):
                _check_curve(f"material.{item.name}", getattr(self, item.name))

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
        _check("machine.power", self.power, at_least=0.0, at_most=MAX_POWER)
        _check("machine.speed", self.speed, at_least=MIN_SPEED, at_most=MAX_SPEED)
        for name in ("hatch", "layer"):
            _check(f"machine.{name}", getattr(self, name), above=0.0, at_most=5.0)
        _check("machine.plate_thickness", self.plate_thickness, above=0.0)
        for name in ("dwell", "convection"):
            _check(f"machine.{name}", getattr(self, name), at_least=0.0)
        _check("machine.absorptivity", self.absorptivity, at_least=0.0, at_most=1.0)
        _check("machine.ambient", self.ambient, at_least=MIN_AMBIENT)
        _check_vector("machine.build_volume", self.build_volume, above=0.0)
        if self.plate_temperature is not None:
            _check("machine.plate_temperature", self.plate_temperature, at_least=self.ambient)


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
        for name in ("layers_per_voxel", "voxels_per_group"):
            _check(name, getattr(self, name), at_least=1)
        relaxed, plate = self.material.relaxation_temperature, self.machine.plate_temperature
        _check("material.relaxation_temperature", relaxed, above=self.machine.ambient)
        if plate is not None and plate >= relaxed:
            raise ConfigError(
                f"machine.plate_temperature={plate:g} must be below material.relaxation_temperature={relaxed:g}, above "
                f"which {self.material.name} carries no stress"
            )

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
    path = Path(path)
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text (byte {error.object[error.start]:#04x} at {error.start:,}); save it as UTF-8"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML ({' '.join(str(error).split())})") from error
    try:
        return _build(Process, record or {}, "")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _build(cls: type[Any], record: Any, prefix: str) -> Any:
    if not isinstance(record, Mapping):
        raise ConfigError(f"{prefix or 'the file'} must hold names and values, got {record!r}")
    types = get_type_hints(cls)
    record = {str(key).replace("-", "_"): value for key, value in record.items()}  # accept the spelling of options
    for key in record:
        if key not in types:
            raise ConfigError(f"{prefix}{key} is unknown; {suggest_name(str(key), types)}")
    values = {}
    for key, value in record.items():
        kind = types[key]
        if is_dataclass(kind):
            values[key] = _build(kind, value, f"{prefix}{key}.")  # type: ignore[arg-type]
        else:
            values[key] = _converted(value, kind, f"{prefix}{key}")
    return cls(**values)


def _converted(value: Any, kind: Any, name: str) -> Any:
    """Convert a YAML value to the type of its field. (YAML reads 1e-6 as text.)"""
    try:
        if kind is str:
            return str(value)
        if kind is bool:
            if not isinstance(value, bool):
                raise ValueError
            return value
        if isinstance(value, list) != (get_origin(kind) is tuple):
            raise ValueError
        if isinstance(value, list):
            return tuple(tuple(map(float, item)) if isinstance(item, list) else float(item) for item in value)
        if value is None and kind == float | None:
            return None
        if isinstance(value, bool):
            raise ValueError
        return int(str(value)) if kind is int else float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{name}={value!r}: must be {_wanted(kind, name)}") from None


def _wanted(kind: Any, name: str) -> str:
    if kind == tuple[float, float, float]:
        usual = getattr(Material() if name.startswith("material.") else Machine(), name.rsplit(".")[-1])
        return f"a list of three numbers, along x, y and z, such as [{', '.join(f'{number:g}' for number in usual)}]"
    names = {bool: "true or false", int: "a whole number", Curve: "a list of [temperature, value] pairs"}
    return names.get(kind, "a number")


def _check(
    name: str,
    value: float,
    *,
    above: float = -np.inf,
    at_least: float = -np.inf,
    below: float = np.inf,
    at_most: float = np.inf,
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not np.isfinite(value):
        raise ConfigError(f"{name}={value!r} must be a finite number")
    if not (value > above and value >= at_least and value < below and value <= at_most):
        limits = [f"above {above:g}"] * (above > -np.inf) + [f"at least {at_least:g}"] * (at_least > -np.inf)
        limits += [f"below {below:g}"] * (below < np.inf) + [f"at most {at_most:g}"] * (at_most < np.inf)
        raise ConfigError(f"{name}={value:g} must be {' and '.join(limits)}")


def _check_vector(name: str, values: tuple[float, ...], *, above: float = -np.inf, below: float = np.inf) -> None:
    if len(values) != 3 or not np.isfinite(values).all():
        raise ConfigError(f"{name}={values}: must be three finite numbers")
    for axis, value in zip("xyz", values, strict=True):
        _check(f"{name}.{axis}", value, above=above, below=below)


def _check_curve(name: str, curve: Curve) -> None:
    if not curve:
        return
    try:
        table = np.array(curve, dtype=np.float64).reshape(len(curve), 2)
    except (TypeError, ValueError):
        raise ConfigError(f"{name} must be a list of (temperature, value) pairs") from None
    if not np.isfinite(table).all() or (np.diff(table[:, 0]) <= 0).any() or (table[:, 1] <= 0).any():
        raise ConfigError(f"{name}: temperatures must ascend and values be positive, all finite")
