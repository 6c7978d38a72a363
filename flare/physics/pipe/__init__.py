"""Steady flow through a pipe with a random center line: incompressible Navier-Stokes in two dimensions.

    points = mesh(random_parameters(np.random.default_rng(0)))     # (129, 129, 2), along the pipe, then across it
    flow = solve(points, viscosity=0.005)                          # flow.u, flow.v, flow.p: (129, 129)

Everything is dimensionless: the pipe has length 10 and width 1, its sections are vertical, the density is 1.

Modules: `geometry` (random pipes), `taylor_hood` (finite elements), `flow` (the solver, also for other domains),
`dataset` (the benchmark's generator).
"""

from flare.physics.pipe.dataset import Pipe as Pipe
from flare.physics.pipe.flow import PipeFlow as PipeFlow
from flare.physics.pipe.flow import navier_stokes as navier_stokes
from flare.physics.pipe.flow import solve as solve
from flare.physics.pipe.geometry import center_line as center_line
from flare.physics.pipe.geometry import mesh as mesh
from flare.physics.pipe.geometry import random_parameters as random_parameters
