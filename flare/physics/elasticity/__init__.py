"""A square rubber sheet with a random hole, clamped at the bottom and pulled at the top, in plane stress.

    void = random_void(np.random.default_rng(0))
    mesh = OGrid(void.radius).mesh()                    # 108 quadratic elements
    solution = solve(mesh)                              # or solve(mesh, material="rubber")
    points, stress = mesh.gauss_points(), von_mises(solution.gauss_stress())        # (972, 2), (972,)

The square has side 1 and thickness 1. The traction is 100, in the unit of the material's constants. Strains stay near
1e-3, so the linear solution is within about 0.1 % of the rubber's, and its stress does not depend on the modulus.

Modules: `void` (random hole and O-grid), `elements` (mesh and shape functions), `material`, `equilibrium` (the
solver and the benchmark's generator).
"""

from flare.physics.elasticity.equilibrium import Elasticity, clamped, solve
from flare.physics.elasticity.material import LinearElastic, Rubber, von_mises
from flare.physics.elasticity.void import OGrid, Void, random_void

__all__ = ["Elasticity", "LinearElastic", "OGrid", "Rubber", "Void", "clamped", "random_void", "solve", "von_mises"]
