"""Laser powder bed fusion: from a part to its distortion and residual stress, layer group by layer group.

    part = Voxels(solid, size=(0.47, 0.47, 0.6), origin=(-30, -30, 0))      # mm, standing on z = 0
    result = simulate(part, process_preset("ti64-am250"))
    result.released.displacement                                            # (N, 3) mm at result.positions
    result.interference                                                     # what the recoater meets, per group

Lengths are in mm, stresses in MPa, temperatures in °C, times in s. `process` holds the numbers of machine and material;
`build` runs the sequence; `thermal` and `mechanics` (with `plasticity` in the refined mode) are its two steps, on the
boxes of `grid` and `hexahedron`, solved by `multigrid` with the `loops` of compiled code.
"""

from flare.physics.lpbf.build import Build as Build
from flare.physics.lpbf.build import Frame as Frame
from flare.physics.lpbf.build import Result as Result
from flare.physics.lpbf.build import State as State
from flare.physics.lpbf.build import simulate as simulate
from flare.physics.lpbf.loops import threads as threads
from flare.physics.lpbf.process import Machine as Machine
from flare.physics.lpbf.process import Material as Material
from flare.physics.lpbf.process import Process as Process
from flare.physics.lpbf.process import load_process as load_process
from flare.physics.lpbf.process import process_names as process_names
from flare.physics.lpbf.process import process_preset as process_preset
