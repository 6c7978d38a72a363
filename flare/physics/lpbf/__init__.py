"""Laser powder bed fusion: distortion and residual stress of a printed part."""

from flare.physics.lpbf.build import Build as Build
from flare.physics.lpbf.build import Frame as Frame
from flare.physics.lpbf.build import Result as Result
from flare.physics.lpbf.build import State as State
from flare.physics.lpbf.build import simulate as simulate
from flare.physics.lpbf.process import Machine as Machine
from flare.physics.lpbf.process import Material as Material
from flare.physics.lpbf.process import Process as Process
from flare.physics.lpbf.process import load_process as load_process
from flare.physics.lpbf.process import process_names as process_names
from flare.physics.lpbf.process import process_preset as process_preset
