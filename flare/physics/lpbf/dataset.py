"""The LPBF benchmark: distortion of printed parts, made by our simulator of parts of our own or of a user's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from flare.data.cards import card
from flare.data.sample import Field, Sample, Schema
from flare.errors import ConfigError, NotConverged, nearest
from flare.mesh.folder import PartFolder
from flare.mesh.octree import HexMesh
from flare.mesh.surface import placed
from flare.mesh.unfit import Unfit
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Frame, Result, simulate
from flare.physics.lpbf.loops import threads
from flare.physics.lpbf.parts import draw_part, meshed
from flare.physics.lpbf.process import Process, process_names, process_preset

LEAST_DISPLACEMENT = 4e-4
"""mm upwards: a part of one layer group stays flat to rounding, and has no relative error. Published: 4.85e-4."""
MOST_DISPLACEMENT = 1.0
"""mm upwards: the benchmark drops parts that rise more."""
MOST_STRESS = 2000.0
"""MPa, von Mises at any node: likewise."""
STEPS = 27
"""Of a history: 25 layer groups of 2.4 mm fill the build volume; then cooled, then released."""


@dataclass(frozen=True, kw_only=True)
class LPBF:
    """The LPBF benchmark: a printed part -> vertical displacement. Defaults are its published form, of other parts."""

    parts: str = ""
    """Folder of STL or STEP files, such as the Fusion 360 Gallery, to draw parts from; empty: random CAD-like parts."""
    process: str = "ti64-am250"
    """Machine and material; `flare lpbf processes` lists them."""
    mode: Literal["benchmark", "refined"] = "benchmark"
    """benchmark: linear, with an inherent strain; refined: properties that depend on temperature, and plasticity."""
    inherent_strain: float | None = None
    """In-plane, in place of the material's own; negative, as material shrinks."""
    layers: int = 15
    """Powder layers to a voxel: 15 are 0.6 mm; 30 cost an eighth."""
    history: bool = False
    """Also keep vertical displacement, von Mises stress and temperature after every layer group."""

    def __post_init__(self) -> None:
        if self.process not in process_names():
            raise ConfigError(f"process={self.process!r} is unknown; {nearest(self.process, process_names())}")
        if self.mode not in ("benchmark", "refined"):
            raise ConfigError(f"mode={self.mode!r} is unknown; known: benchmark, refined")
        if self.layers < 1 or 60 % self.layers:
            raise ConfigError(f"layers={self.layers}: voxels must fill a group of 60 layers; use 10, 12, 15, 20, 30 …")
        if self.inherent_strain is not None and not -0.1 < self.inherent_strain < 0.1:
            raise ConfigError(f"inherent_strain={self.inherent_strain}: a strain of a few thousandths is meant")
        if self.parts:
            PartFolder(self.parts)  # refuse an empty or missing folder before anything is made

    def schema(self) -> Schema:
        schema = card("lpbf").schema()
        if not self.history:
            return schema
        steps = (*(f"group_{g + 1}" for g in range(STEPS - 2)), "cooled", "released")
        more = {
            "displacement_history": Field(role="extra", components=steps, unit="mm", description="vertical"),
            "von_mises_history": Field(role="extra", components=steps, unit="MPa"),
            "temperature_history": Field(role="extra", components=steps, unit="°C"),
        }
        return Schema(name=schema.name, fields={**schema.fields, **more}, cell_type=schema.cell_type)

    def sample(self, rng: np.random.Generator) -> Sample:
        voxels, mesh, notes = self._draw(rng)
        with threads(1):  # the other cores have parts of their own
            result = simulate(voxels, self._process, mode=self.mode, keep_frames=self.history)
        corners = _Corners(voxels, mesh, result)
        moved, stress = corners(result.released.displacement), corners(result.released.von_mises)
        rise, peak = float(moved[:, 2].max()), float(stress.max())
        if not LEAST_DISPLACEMENT <= rise <= MOST_DISPLACEMENT:
            raise NotConverged(f"filtered: the part rises {rise:.2g} mm")
        if peak > MOST_STRESS:
            raise NotConverged(f"filtered: the largest von Mises stress is {peak:.4g} MPa")
        values = {
            "points": mesh.points,
            "displacement": moved[:, 2:],
            "lateral_displacement": moved[:, :2],
            "von_mises": stress[:, None],
        }
        if self.history:
            values |= _history(result, corners)
        notes |= {
            "groups": len(result.interference),
            "height": float(mesh.points[:, 2].max()),
            "aspect_ratio": float(mesh.aspect_ratio().max()),
            "edges": int(mesh.edges().shape[1]),
            "voxels": voxels.count,
            "peak_temperature": result.peak_temperature,
            "interference": float(result.interference[:, 0].max()),
            "iterations": result.released.iterations,
            "residual": result.released.residual,
        }
        return Sample(values, cells=mesh.hexahedra, notes=notes)

    def provenance(self) -> dict[str, Any]:
        return {"kind": "recreated", "generator": "flare.physics.lpbf"}

    @cached_property
    def _process(self) -> Process:
        process = process_preset(self.process)
        return process if self.inherent_strain is None else process.with_inherent_strain(self.inherent_strain)

    def _draw(self, rng: np.random.Generator) -> tuple[Voxels, HexMesh, dict[str, Any]]:
        if not self.parts:
            drawn = draw_part(rng, layers=self.layers)
            about = {"family": drawn.part.family, "description": drawn.part.description, "rejected": drawn.rejected}
            return drawn.voxels, drawn.mesh, about
        folder = PartFolder(self.parts)
        name = str(rng.choice(list(folder.files)))
        try:
            voxels, mesh = meshed(placed(folder.read(name), longest=60.0), layers=self.layers, name=name)
        except Unfit as fault:
            raise NotConverged(str(fault)) from None
        return voxels, mesh, {"name": name}


class _Corners:
    """From the nodes of a build, in their own order, to those of the merged mesh."""

    def __init__(self, voxels: Voxels, mesh: HexMesh, result: Result) -> None:
        place = np.rint((result.positions - voxels.origin) / voxels.size).astype(int)
        number = np.full([n + 1 for n in voxels.solid.shape], -1)
        number[tuple(place.T)] = np.arange(len(place))
        self._number = mesh.pick(number)

    def __call__(self, field: np.ndarray) -> np.ndarray:
        """(N, ...) of a field of the first nodes of the build; zero at nodes that do not exist yet."""
        whole = np.zeros((len(self._number), *field.shape[1:]))
        there = self._number < len(field)
        whole[there] = field[self._number[there]]
        return whole


def _history(result: Result, corners: _Corners) -> dict[str, np.ndarray]:
    """After every group, cooled and released; groups beyond the part's last repeat it."""
    frames: list[Frame] = [*result.frames, *[result.frames[-1]] * (STEPS - 2 - len(result.frames))]
    frames += [result.cooled, result.released]
    return {
        "displacement_history": np.stack([corners(frame.displacement)[:, 2] for frame in frames], axis=1),
        "von_mises_history": np.stack([corners(frame.von_mises) for frame in frames], axis=1),
        "temperature_history": np.stack([corners(frame.temperature) for frame in frames], axis=1),
    }
