"""Steady flow through a pipe with a random centre line: incompressible Navier-Stokes in two dimensions.

    points = mesh(random_parameters(np.random.default_rng(0)))     # (129, 129, 2), along the pipe, then across it
    flow = solve(points, viscosity=0.005)                          # flow.u, flow.v, flow.p: (129, 129)

Everything is dimensionless: the pipe has length 10 and width 1, its sections are vertical, the density is 1. `geometry`
draws pipes; `flow` solves for the flow in them, or in another domain, with the elements of `taylor_hood`, eliminated in
the order of `dissection`; `dataset` makes the benchmark.
"""

from flare.physics.pipe.dataset import Pipe as Pipe
from flare.physics.pipe.flow import Flow as Flow
from flare.physics.pipe.flow import navier_stokes as navier_stokes
from flare.physics.pipe.flow import solve as solve
from flare.physics.pipe.geometry import centre_line as centre_line
from flare.physics.pipe.geometry import mesh as mesh
from flare.physics.pipe.geometry import random_parameters as random_parameters
