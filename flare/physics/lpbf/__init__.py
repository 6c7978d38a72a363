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

from flare.physics.lpbf.build import Build as Build
from flare.physics.lpbf.build import BuildState as BuildState
from flare.physics.lpbf.build import Frame as Frame
from flare.physics.lpbf.build import Result as Result
from flare.physics.lpbf.build import simulate as simulate
from flare.physics.lpbf.loops import threads as threads
from flare.physics.lpbf.process import Machine as Machine
from flare.physics.lpbf.process import Material as Material
from flare.physics.lpbf.process import Process as Process
from flare.physics.lpbf.process import load_process as load_process
from flare.physics.lpbf.process import process_names as process_names
from flare.physics.lpbf.process import process_preset as process_preset
