"""The LPBF benchmark: distortion of printed parts, made by our simulator of parts of our own or of a user's."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Field, Sample, Schema
from flare.mesh.folder import PartFolder
from flare.mesh.octree import HexMesh
from flare.mesh.surface import placed
from flare.mesh.unfit import Unfit
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Frame, Result, simulate
from flare.physics.lpbf.corners import Corners
from flare.physics.lpbf.loops import threads
from flare.physics.lpbf.parts import draw_part, meshed
from flare.physics.lpbf.process import Process, named_process
from flare.utils.errors import ConfigError, Exhausted, NotConverged, nearest

LEAST_DISPLACEMENT = 0.01
"""mm upwards: a part of one layer group stays flat to rounding, one of hardly more to a micrometre. A relative error of
such a part means nothing, and a few of them drown the mean of all. The published parts begin at 4.85e-4."""
MOST_DISPLACEMENT = 1.0
"""mm upwards: the benchmark drops parts that rise more."""
MOST_STRESS = 2000.0
"""MPa, von Mises at any node: likewise."""
BENCHMARK_STRAIN = -0.0065
"""Tuned once, on two dozen random parts at two strains, so that the quartiles of the largest rise and of the largest
stress come near the published ones; docs/lpbf.md has them beside each other. The preset's own -0.009, which others read
off seven shapes, gives more of both and would drop a third of the parts."""
STEPS = 27
"""Of a history: 25 layer groups of 2.4 mm fill the build volume; then cooled, then released."""


@dataclass(frozen=True, kw_only=True)
class LPBF:
    """The LPBF benchmark: a printed part -> vertical displacement. Defaults are its published form, of other parts."""

    parts: str = ""
    """Folder of STL or STEP files, such as the Fusion 360 Gallery, to draw parts from; empty: random CAD-like parts."""
    part: str = ""
    """One part of that folder by its name; empty: all of them, each at most once."""
    process: str = "ti64-am250"
    """Machine and material: a name that `flare lpbf processes` lists, or a YAML file."""
    mode: Literal["benchmark", "refined"] = "benchmark"
    """benchmark: linear, with an inherent strain; refined: properties that depend on temperature, and plasticity."""
    inherent_strain: float | None = None
    """In-plane; negative, as material shrinks. Unless given: -0.0065 for the benchmark itself, tuned to the published
    parts; of another process or mode the material's own."""
    layers: int = 15
    """Powder layers to a voxel, or the nearest number that fills a layer group: 15 are 0.6 mm."""
    tolerance: float | None = None
    """Of the force left over in each equilibrium, relative to the load: looser is faster and less exact. None: 1e-8, or
    1e-6 in refined mode."""
    history: bool = False
    """Also keep displacement, von Mises stress and temperature after every layer group."""

    def __post_init__(self) -> None:
        named_process(self.process)  # refuse an unknown one now
        if self.mode not in ("benchmark", "refined"):
            raise ConfigError(f"mode={self.mode!r} is unknown; known: benchmark, refined")
        if self.layers < 1:
            raise ConfigError(f"layers={self.layers}: at least 1, please")
        if self.tolerance is not None and not 0 < self.tolerance <= 1e-2:
            raise ConfigError(f"tolerance={self.tolerance}: above 0, and at most 0.01, please")
        if self.inherent_strain is not None and not -0.1 < self.inherent_strain < 0.1:
            raise ConfigError(f"inherent_strain={self.inherent_strain}: a strain of a few thousandths is meant")
        known = PartFolder(self.parts).files if self.parts else {}  # refuse a missing folder before anything is made
        if self.part and self.part not in known:
            raise ConfigError(f"part={self.part!r} is not in parts={self.parts!r}; {nearest(self.part, known)}")

    def schema(self) -> Schema:
        schema = card("lpbf").schema()
        if not self.history:
            return schema
        steps = (*(f"group_{g + 1}" for g in range(STEPS - 2)), "cooled", "released")
        along = tuple(f"{step}_{axis}" for step in steps for axis in "xyz")
        more = {
            "first_group": Field(
                role="extra", components=("group",), description="that has the node; 0 in histories before"
            ),
            "displacement_history": Field(role="extra", components=along, unit="mm", description="step by step"),
            "von_mises_history": Field(role="extra", components=steps, unit="MPa"),
            "temperature_history": Field(role="extra", components=steps, unit="°C"),
        }
        return Schema(name=schema.name, fields={**schema.fields, **more}, cell_type=schema.cell_type)

    def sample(self, rng: np.random.Generator) -> Sample:
        voxels, mesh, notes = self._draw(rng)
        with threads(1):  # the other cores have parts of their own
            result = simulate(voxels, self._process, mode=self.mode, keep_frames=self.history, tolerance=self.tolerance)
        corners = Corners(voxels, mesh, result.positions)
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

    def choose(self, *, seed: int, index: int, draw: int, samples: int) -> LPBF:
        """With one part of the folder: no part is in two samples, so none is in training and test."""
        if not self.parts or self.part:
            return self
        names = list(PartFolder(self.parts).files)
        place = index + draw * samples
        if place >= len(names):
            raise Exhausted(
                f"{self.parts} has {len(names):,} files; all its parts have been tried. Ask for fewer samples"
            )
        return replace(self, part=names[np.random.default_rng(seed).permutation(len(names))[place]])

    def prepare(self) -> None:
        bar = Voxels(
            np.ones((6, 3, 8), dtype=bool), size=(0.6, 0.6, self._process.voxel_height), origin=(0.0, 0.0, 0.0)
        )
        with threads(1):
            simulate(bar, self._process, mode=self.mode, keep_frames=False)

    def provenance(self) -> dict[str, Any]:
        """With every number of the process, since options name it only, and the inherent strain may be the default."""
        return {"kind": "recreated", "generator": "flare.physics.lpbf", "process": asdict(self._process)}

    @cached_property
    def _process(self) -> Process:
        process, strain = named_process(self.process), self.inherent_strain
        if strain is None and self.mode == "benchmark" and self.process == "ti64-am250":
            strain = BENCHMARK_STRAIN
        process = process if strain is None else process.with_inherent_strain(strain)
        group = process.layers_per_voxel * process.voxels_per_group
        layers = min((n for n in range(1, group + 1) if group % n == 0), key=lambda n: (abs(n - self.layers), n))
        return replace(process, layers_per_voxel=layers, voxels_per_group=group // layers)

    def _draw(self, rng: np.random.Generator) -> tuple[Voxels, HexMesh, dict[str, Any]]:
        if not self.parts:
            drawn = draw_part(rng, layers=self._process.layers_per_voxel)
            about = {"family": drawn.part.family, "description": drawn.part.description, "rejected": drawn.rejected}
            return drawn.voxels, drawn.mesh, about
        name = self.part or str(rng.choice(list(PartFolder(self.parts).files)))
        try:
            surface = placed(PartFolder(self.parts).read(name), longest=60.0)
            voxels, mesh = meshed(surface, layers=self._process.layers_per_voxel, name=name)
        except Unfit as fault:
            raise NotConverged(f"{fault.reason}: {fault}") from None
        return voxels, mesh, {"name": name}


def _history(result: Result, corners: Corners) -> dict[str, np.ndarray]:
    """After every group, cooled and released; groups beyond the part's last repeat it."""
    frames: list[Frame] = [*result.frames, *[result.frames[-1]] * (STEPS - 2 - len(result.frames))]
    frames += [result.cooled, result.released]
    reached = np.array([corners(np.ones(len(frame.displacement))) for frame in result.frames])
    return {
        "first_group": 1.0 + reached.argmax(axis=0)[:, None],
        "displacement_history": np.concatenate([corners(frame.displacement) for frame in frames], axis=1),
        "von_mises_history": np.stack([corners(frame.von_mises) for frame in frames], axis=1),
        "temperature_history": np.stack([corners(frame.temperature) for frame in frames], axis=1),
    }
