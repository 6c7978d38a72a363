"""Generator of the LPBF benchmark: distortion of printed parts, random or from a user's folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from flare.data.benchmarks.cards import card
from flare.data.sample import Field, Sample, Schema
from flare.mesh.benchmark_mesh import mesh_part
from flare.mesh.octree import HexMesh
from flare.mesh.parts import part_files, read_part
from flare.mesh.surface import GeometryError, placed
from flare.mesh.voxels import Voxels
from flare.physics.lpbf.build import Frame, Result, simulate
from flare.physics.lpbf.loops import numba_threads
from flare.physics.lpbf.parts import draw_part
from flare.physics.lpbf.process import Process, find_process
from flare.physics.lpbf.results import NodeMap
from flare.utils.errors import ConfigError, Exhausted, NotConverged, suggest_name

MIN_DISPLACEMENT = 0.01
"""Smallest rise in mm. A part of one layer group stays flat to rounding, a slightly higher one to a micrometer.
Relative errors of such parts are meaningless, and a few of them dominate the mean. The published parts begin at
4.85e-4."""
MAX_DISPLACEMENT = 1.0
"""Largest rise in mm; the benchmark drops parts that rise more."""
MAX_STRESS = 2000.0
"""Largest von Mises stress at a node in MPa; the benchmark drops parts beyond."""
BENCHMARK_STRAIN = -0.0065
"""Inherent strain of the benchmark, fitted on two dozen random parts at two strains so that the quartiles of the
largest rise and of the largest stress approach the published ones; docs/applications/metal-printing.md
compares them. The preset's -0.009, which was read off seven shapes, gives more of both and would drop a third of the
parts."""
STEPS = 27
"""Steps of a history: 25 layer groups of 2.4 mm fill the build volume; then cooled and released."""


@dataclass(frozen=True, kw_only=True)
class LPBF:
    """The LPBF benchmark: a printed part -> vertical displacement. The defaults are its published form."""

    parts: str = ""
    """Folder of STL or STEP files, such as the Fusion 360 Gallery, to draw parts from; empty: random CAD-like parts."""
    part: str = ""
    """One part of that folder by its name; empty: all of them, each at most once."""
    process: str = "ti64-am250"
    """Machine and material: a name that `flare lpbf processes` lists, or a YAML file."""
    mode: Literal["benchmark", "refined"] = "benchmark"
    """benchmark: linear, with an inherent strain; refined: temperature-dependent properties and plasticity."""
    inherent_strain: float | None = None
    """In-plane; negative, as material shrinks. Default: -0.0065 for the benchmark itself, fitted to the published
    parts; with another process or mode the material's own."""
    layers: int = 15
    """Powder layers per voxel, or the nearest number that fills a layer group: 15 are 0.6 mm."""
    tolerance: float | None = None
    """Residual force of each equilibrium, relative to the load: larger is faster and less accurate. None: 1e-8, or
    1e-6 in refined mode."""
    history: bool = False
    """Also keep displacement, von Mises stress and temperature after every layer group."""

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ConfigError(f"layers={self.layers}: must be at least 1")
        if self.tolerance is not None and not 0 < self.tolerance <= 1e-2:
            raise ConfigError(f"tolerance={self.tolerance}: must be above 0 and at most 0.01")
        _ = self._process  # fails early for an unknown process and an impossible strain
        known = part_files(self.parts) if self.parts else {}  # fails early for a missing folder
        if self.part and self.part not in known:
            raise ConfigError(f"part={self.part!r} is not in parts={self.parts!r}; {suggest_name(self.part, known)}")

    def schema(self) -> Schema:
        """Return the fields of a sample."""
        schema = card("lpbf").schema()
        if not self.history:
            return schema
        steps = (*(f"group_{g + 1}" for g in range(STEPS - 2)), "cooled", "released")
        along = tuple(f"{step}_{axis}" for step in steps for axis in "xyz")
        more = {
            "first_group": Field(
                role="extra", components=("group",), description="first group with the node; histories are 0 before"
            ),
            "displacement_history": Field(role="extra", components=along, unit="mm", description="step by step"),
            "von_mises_history": Field(role="extra", components=steps, unit="MPa"),
            "temperature_history": Field(role="extra", components=steps, unit="°C"),
        }
        return Schema(name=schema.name, fields={**schema.fields, **more}, cell_type=schema.cell_type)

    def sample(self, rng: np.random.Generator) -> Sample:
        """Simulate a part.

        Raises:
            NotConverged: The part is outside the limits of the benchmark, or a solver failed.
        """
        voxels, mesh, notes = self._draw(rng)
        with numba_threads(1):  # other cores simulate other parts
            result = simulate(voxels, self._process, mode=self.mode, keep_frames=self.history, tolerance=self.tolerance)
        node_map = NodeMap(voxels, mesh, result.positions)
        moved, stress = node_map(result.released.displacement), node_map(result.released.von_mises)
        rise, peak = float(moved[:, 2].max()), float(stress.max())
        if not MIN_DISPLACEMENT <= rise <= MAX_DISPLACEMENT:
            raise NotConverged(f"filtered: the part rises {rise:.2g} mm")
        if peak > MAX_STRESS:
            raise NotConverged(f"filtered: the largest von Mises stress is {peak:.4g} MPa")
        values = {
            "points": mesh.points,
            "displacement": moved[:, 2:],
            "lateral_displacement": moved[:, :2],
            "von_mises": stress[:, None],
        }
        if self.history:
            values |= _history(result, node_map)
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
        """Return the generator with one part of the folder, so that no part is in two samples (training and test).

        Raises:
            Exhausted: All parts have been used.
        """
        if not self.parts or self.part:
            return self
        names = list(part_files(self.parts))
        place = index + draw * samples
        if place >= len(names):
            raise Exhausted(f"parts={self.parts}: all {len(names):,} files have been tried; ask for fewer samples")
        return replace(self, part=names[np.random.default_rng(seed).permutation(len(names))[place]])

    def prepare(self) -> None:
        """Compile the solver's loops before worker processes start."""
        bar = Voxels(
            np.ones((6, 3, 8), dtype=bool), size=(0.6, 0.6, self._process.voxel_height), origin=(0.0, 0.0, 0.0)
        )
        with numba_threads(1):
            simulate(bar, self._process, mode=self.mode, keep_frames=False)

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made, with all numbers of the process."""
        return {"kind": "recreated", "generator": "flare.physics.lpbf", "process": asdict(self._process)}

    @cached_property
    def _process(self) -> Process:
        process, strain = find_process(self.process), self.inherent_strain
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
        name = self.part or str(rng.choice(list(part_files(self.parts))))
        try:
            surface = placed(read_part(part_files(self.parts)[name], unit=None), longest=60.0)
            voxels, mesh = mesh_part(surface, layers=self._process.layers_per_voxel, name=name)
        except GeometryError as fault:
            raise NotConverged(f"{fault.reason}: {fault}") from None
        return voxels, mesh, {"name": name}


def _history(result: Result, node_map: NodeMap) -> dict[str, np.ndarray]:
    """Return the fields after every group, cooled and released; steps after the part's last group repeat it."""
    frames: list[Frame] = [*result.frames, *[result.frames[-1]] * (STEPS - 2 - len(result.frames))]
    frames += [result.cooled, result.released]
    reached = np.array([node_map(np.ones(len(frame.displacement))) for frame in result.frames])
    return {
        "first_group": 1.0 + reached.argmax(axis=0)[:, None],
        "displacement_history": np.concatenate([node_map(frame.displacement) for frame in frames], axis=1),
        "von_mises_history": np.stack([node_map(frame.von_mises) for frame in frames], axis=1),
        "temperature_history": np.stack([node_map(frame.temperature) for frame in frames], axis=1),
    }
