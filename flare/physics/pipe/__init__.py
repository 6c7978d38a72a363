"""Steady flow through a pipe with a random center line: incompressible Navier-Stokes in two dimensions.

    points = mesh(random_parameters(np.random.default_rng(0)))     # (129, 129, 2), along the pipe, then across it
    flow = solve(points, viscosity=0.005)                          # flow.u, flow.v, flow.p: (129, 129)

Everything is dimensionless: the pipe has length 10 and width 1, its sections are vertical, the density is 1.

Modules: `geometry` (random pipes), `taylor_hood` (finite elements), `flow` (the solver, also for other domains, and the
benchmark's generator).
"""

from flare.physics.pipe.flow import Pipe, PipeFlow, navier_stokes, solve
from flare.physics.pipe.geometry import center_line, mesh, random_parameters

__all__ = ["Pipe", "PipeFlow", "center_line", "mesh", "navier_stokes", "random_parameters", "solve"]
