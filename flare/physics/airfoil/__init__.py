"""Transonic flow around deformed NACA-0012 airfoils: steady Euler equations on a C-mesh of 221 × 51 nodes.

    rng = np.random.default_rng(0)
    points = c_mesh(random_displacements(rng))     # (221, 51, 2), in chords
    flow = solve(points, mach=0.8, alpha=0.0)      # flow.mach, flow.pressure, ... (221, 51); flow.lift, flow.drag

Modules: `geometry` (airfoil and C-mesh), `dual` (control volumes), `euler` (finite-volume scheme), `newton` (steady
state), `flow` (the public solver and the benchmark's generator).
"""

from flare.physics.airfoil.flow import Airfoil, AirfoilFlow, solve
from flare.physics.airfoil.geometry import c_mesh, naca0012, random_displacements

__all__ = ["Airfoil", "AirfoilFlow", "c_mesh", "naca0012", "random_displacements", "solve"]
