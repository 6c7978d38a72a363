"""Laser powder bed fusion: distortion and residual stress of a part, layer group by layer group.

    part = Voxels(solid, size=(0.47, 0.47, 0.6), origin=(-30, -30, 0))      # mm, on the plate z = 0
    result = simulate(part, process_preset("ti64-am250"))
    result.released.displacement                                            # (N, 3) mm at result.positions
    result.interference                                                     # height under the recoater, per group

Lengths are in mm, stresses in MPa, temperatures in °C, times in s.

Modules: `process` (machine and material), `setup` (CAD file -> voxels), `build` (the sequence of layer groups),
`thermal` and `mechanics` (its two steps; `plasticity` in refined mode), `grid` and `hexahedron` (elements), `multigrid`
and `loops` (solver), `job` (resumable simulation), `results` (files and summary), `plates` (heated plates), `parts`
(random parts), `dataset` (the benchmark's generator).
"""

from flare.physics.lpbf.build import Build, BuildState, Frame, Result, simulate
from flare.physics.lpbf.loops import numba_threads
from flare.physics.lpbf.process import Machine, Material, Process, load_process, process_names, process_preset

__all__ = ["Build", "BuildState", "Frame", "Machine", "Material", "Process", "Result"]
__all__ += ["load_process", "numba_threads", "process_names", "process_preset", "simulate"]
