"""Materials in plane stress: stress of a displacement gradient H = ∂u/∂X (..., 2, 2), and its derivative.

`stress` is the force per undeformed length and thickness (first Piola–Kirchhoff, P), `cauchy` the force per deformed
length and thickness (σ). Both are the same in linear theory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flare.physics.elasticity.elements import Array
from flare.utils.errors import NotConverged

C1, C2 = 1.863e5, 9.79e3
"""Constants of the benchmark's rubber."""
IDENTITY = np.eye(2)
TURN = np.array([[0.0, 1.0], [-1.0, 0.0]])  # cofactor of F: G_ij = TURN_ik TURN_jl F_kl
SAME = np.einsum("ik,jl->ijkl", IDENTITY, IDENTITY)  # ∂F_ij/∂F_kl
COFACTOR = np.einsum("ik,jl->ijkl", TURN, TURN)  # ∂G_ij/∂F_kl


@dataclass(frozen=True, kw_only=True)
class LinearElastic:
    """Hooke's law: σ = E/(1 + ν) (ε + ν/(1 − ν) tr ε I). The defaults are the benchmark's rubber at small strain."""

    youngs_modulus: float = 6 * (C1 + C2)
    """E, in the unit of stress."""
    poisson: float = 0.5
    """ν; ½ is incompressible, which plane stress allows."""

    def stress(self, gradient: Array) -> Array:
        """Return P_ij, shape (..., 2, 2)."""
        return np.einsum("ijkl,...kl->...ij", self.tangent(gradient), gradient)

    def tangent(self, gradient: Array) -> Array:
        """Return ∂P_ij/∂H_kl, the same at all points, shape (2, 2, 2, 2)."""
        symmetric = (SAME + SAME.swapaxes(2, 3)) / 2
        volume = self.poisson / (1 - self.poisson) * np.einsum("ij,kl->ijkl", IDENTITY, IDENTITY)
        return self.youngs_modulus / (1 + self.poisson) * (symmetric + volume)

    def cauchy(self, gradient: Array) -> Array:
        """Return σ_ij, shape (..., 2, 2)."""
        return self.stress(gradient)


@dataclass(frozen=True, kw_only=True)
class Rubber:
    """Incompressible Rivlin–Saunders (Mooney–Rivlin) rubber at finite strain, w = C1 (I1 − 3) + C2 (I2 − 3).

    With F = I + H and J = det F, constant volume makes the thickness shrink by J, so C33 = 1/J², and the free faces
    determine the pressure. The energy then depends on the plane only, with t = F : F,

        W = C1 (t + J⁻² − 3) + C2 (J² + t J⁻² − 3).

    Its derivative is P = 2 (C1 + C2/J²) F + 2 (C2 J − (C1 + C2 t)/J³) G, with G = ∂J/∂F the cofactor of F. At small
    strain this is `LinearElastic` with E = 6 (C1 + C2), ν = ½.
    """

    c1: float = C1
    c2: float = C2

    def stress(self, gradient: Array) -> Array:
        """Return P_ij, shape (..., 2, 2)."""
        # Regrouped to avoid cancellation at small strain: P = 2 (C1 + C2/J²) (F − G) + 2 (…) G, both small with H.
        _, g, growth = _kinematics(gradient)
        j = 1 + growth
        f_less_g = gradient - np.einsum("ijkl,...kl->...ij", COFACTOR, gradient)
        stretch = 2 * _trace(gradient) + (gradient**2).sum((-2, -1), keepdims=True)  # t − 2
        cube = growth * (3 + growth * (3 + growth))  # J³ − 1
        fourth = growth * (4 + growth * (6 + growth * (4 + growth)))  # J⁴ − 1
        return 2 * (
            (self.c1 + self.c2 / j**2) * f_less_g + (self.c1 * cube + self.c2 * (growth + fourth - stretch)) / j**3 * g
        )

    def tangent(self, gradient: Array) -> Array:
        """Return ∂P_ij/∂H_kl, shape (..., 2, 2, 2, 2)."""
        f, g, growth = _kinematics(gradient)
        j, t = 1 + growth[..., None, None], (f**2).sum((-2, -1))[..., None, None, None, None]
        fg = np.einsum("...ij,...kl->...ijkl", f, g)
        gg = np.einsum("...ij,...kl->...ijkl", g, g)
        return 2 * (
            (self.c1 + self.c2 / j**2) * SAME
            + (self.c2 * j - (self.c1 + self.c2 * t) / j**3) * COFACTOR
            - 2 * self.c2 / j**3 * (fg + np.einsum("...ijkl->...klij", fg))
            + (self.c2 + 3 * (self.c1 + self.c2 * t) / j**4) * gg
        )

    def cauchy(self, gradient: Array) -> Array:
        """Return σ_ij, shape (..., 2, 2)."""
        return self.stress(gradient) @ (IDENTITY + gradient).swapaxes(-2, -1)  # the volume does not change


SheetMaterial = LinearElastic | Rubber


def von_mises(stress: Array) -> Array:
    """Return √(σx² − σx σy + σy² + 3τ²) of plane stress (..., 2, 2)."""
    x, y, shear = stress[..., 0, 0], stress[..., 1, 1], stress[..., 0, 1]
    return np.sqrt(x**2 - x * y + y**2 + 3 * shear**2)


def _trace(tensor: Array) -> Array:
    """Return the trace, shape (..., 1, 1)."""
    return tensor[..., :1, :1] + tensor[..., 1:, 1:]


def _kinematics(gradient: Array) -> tuple[Array, Array, Array]:
    """Return F and its cofactor G, both (..., 2, 2), and J − 1, (..., 1, 1), which is accurate even if tiny."""
    f = IDENTITY + gradient
    growth = _trace(gradient) + np.linalg.det(gradient)[..., None, None]
    if not (growth > -1).all():
        raise NotConverged("the rubber is inverted; reduce the load or use more load_steps")
    return f, np.einsum("ijkl,...kl->...ij", COFACTOR, f), growth
