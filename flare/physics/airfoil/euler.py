"""Compressible Euler equations in two dimensions: a second-order finite-volume scheme on dual volumes, compiled.

    w = (ρ, u, v, p)   primitive,   q = (ρ, ρu, ρv, ρE)   conserved,   ρE = p/(γ−1) + ρ(u²+v²)/2

`residual` is the outflow of each volume, Σ F(w_left, w_right) · n over its faces, which is zero in steady state. F is
Roe's flux. w_left and w_right are extrapolated along the edge from its two nodes with least-squares gradients and van
Albada's limiter. The limiter ignores variations below (softness · edge length)^{3/2}: smooth flow is hardly limited,
and the residual is differentiable, as Newton's method requires. The flux through a wall is the pressure of its node; at
an open boundary it is Roe's flux against the given far state.

With a the speed of sound, n the unit normal, uₙ = u·n, and as columns and rows

    r = (1, u, v, H)ᵀ,   t = (0, n, uₙ)ᵀ,   dm = (−uₙ, n, 0),   dp = (γ−1) ((u²+v²)/2, −u, −v, 1),

every function of the flux Jacobian A is  f(A) = f₂ 1 + r (α dp + β dm) + t (β dp + α a² dm)  with
f₁, f₂, f₃ = f(uₙ−a), f(uₙ), f(uₙ+a),  α = ((f₁+f₃)/2 − f₂) / a²,  β = (f₃−f₁) / 2a.
A itself has f₂ = uₙ, α = 0, β = 1; |A| is the damping of Roe's flux.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from flare.physics.airfoil.dual import Array, DualMesh, Indices
from flare.utils.numba_cache import compiled

Four = tuple[float, float, float, float]

GAMMA = 1.4
ENTROPY_FIX = 0.05
"""Width, relative to the speed of sound, below which |uₙ ± a| is rounded; it rules out expansion shocks."""
CONTACT_FIX = 0.01
"""The same for |uₙ|; smaller, because it only makes the absolute value differentiable."""


def conserved(w: Array) -> Array:
    """Convert primitive to conserved values, shape (..., 4)."""
    rho, u, v, p = np.moveaxis(w, -1, 0)
    return np.stack([rho, rho * u, rho * v, p / (GAMMA - 1) + rho * (u**2 + v**2) / 2], axis=-1)


def primitive(q: Array) -> Array:
    """Convert conserved to primitive values, shape (..., 4)."""
    rho, m, n, e = np.moveaxis(q, -1, 0)
    return np.stack([rho, m / rho, n / rho, (GAMMA - 1) * (e - (m**2 + n**2) / (2 * rho))], axis=-1)


def mach_number(w: Array) -> Array:
    """Return the Mach number of primitive values (..., 4), shape (...)."""
    return np.hypot(w[..., 1], w[..., 2]) / np.sqrt(GAMMA * w[..., 3] / w[..., 0])


def free_stream(mach: float, alpha: float = 0.0) -> Array:
    """Return primitive values with ρ = 1 and p = 1, shape (4,); `alpha` is the angle to the x axis in degrees."""
    speed, angle = mach * np.sqrt(GAMMA), np.deg2rad(alpha)
    return np.array([1.0, speed * np.cos(angle), speed * np.sin(angle), 1.0])


@compiled
def residual(mesh: DualMesh, far: Array, softness: float, q: Array) -> Array:
    """Return the outflow of mass, momentum and energy from the volume of each node, shape (P, 4)."""
    w, out = _primitive(q), np.zeros_like(q)
    gradient = _gradient(mesh, w)
    left, right = np.empty(4), np.empty(4)
    for e in range(len(mesh.edges)):
        a, b = mesh.edges[e, 0], mesh.edges[e, 1]
        dx, dy = mesh.points[b, 0] - mesh.points[a, 0], mesh.points[b, 1] - mesh.points[a, 1]
        soft = (softness * sqrt(dx * dx + dy * dy)) ** 3
        for k in range(4):
            jump = w[b, k] - w[a, k]
            left[k] = w[a, k] + _half_step(jump, gradient[a, k, 0] * dx + gradient[a, k, 1] * dy, soft)
            right[k] = w[b, k] - _half_step(jump, gradient[b, k, 0] * dx + gradient[b, k, 1] * dy, soft)
        flux = _roe_flux(_four(left), _four(right), mesh.normals[e, 0], mesh.normals[e, 1])
        for k in range(4):
            out[a, k] += flux[k]
            out[b, k] -= flux[k]
    for f in range(len(mesh.far)):
        a = mesh.far[f]
        flux = _roe_flux(_four(w[a]), _four(far), mesh.far_normals[f, 0], mesh.far_normals[f, 1])
        for k in range(4):
            out[a, k] += flux[k]
    for f in range(len(mesh.wall)):
        a = mesh.wall[f]
        out[a, 1] += w[a, 3] * mesh.wall_normals[f, 0]
        out[a, 2] += w[a, 3] * mesh.wall_normals[f, 1]
    return out


@compiled
def wave_speeds(mesh: DualMesh, q: Array) -> Array:
    """Sum (|uₙ| + a) · length over the faces of each node, shape (P,). Volume over this sum is a safe time step."""
    w, out = _primitive(q), np.zeros(len(q))
    for e in range(len(mesh.edges)):
        for end in range(2):
            a = mesh.edges[e, end]
            out[a] += _wave_speed(w[a], mesh.normals[e])
    for f in range(len(mesh.far)):
        out[mesh.far[f]] += _wave_speed(w[mesh.far[f]], mesh.far_normals[f])
    for f in range(len(mesh.wall)):
        out[mesh.wall[f]] += _wave_speed(w[mesh.wall[f]], mesh.wall_normals[f])
    return out


@compiled
def add_first_order_jacobian(
    mesh: DualMesh, far: Array, q: Array, blocks: Array, diagonal: Indices, slots: Indices
) -> None:
    """Add the derivative of the first-order residual, with |A| taken as constant, to a sparse matrix.

    Args:
        mesh: Dual mesh.
        far: Primitive far state, shape (4,).
        q: Conserved values, shape (P, 4).
        blocks: Blocks of the matrix, shape (B, 4, 4), changed in place.
        diagonal: Diagonal block of each node, shape (P,).
        slots: Blocks of each edge, shape (E, 2): (row of the first node, column of the second) and its transpose.
    """
    w = _primitive(q)
    by_left, by_right = np.empty((4, 4)), np.empty((4, 4))
    for e in range(len(mesh.edges)):
        a, b = mesh.edges[e, 0], mesh.edges[e, 1]
        _roe_flux_derivatives(by_left, by_right, _four(w[a]), _four(w[b]), mesh.normals[e, 0], mesh.normals[e, 1])
        blocks[diagonal[a]] += by_left
        blocks[slots[e, 0]] += by_right
        blocks[slots[e, 1]] -= by_left
        blocks[diagonal[b]] -= by_right
    for f in range(len(mesh.far)):
        a = mesh.far[f]
        nx, ny = mesh.far_normals[f, 0], mesh.far_normals[f, 1]
        _roe_flux_derivatives(by_left, by_right, _four(w[a]), _four(far), nx, ny)
        blocks[diagonal[a]] += by_left
    for f in range(len(mesh.wall)):
        a = mesh.wall[f]
        dp = _pressure_derivative(w[a, 1], w[a, 2])
        for k in range(4):
            blocks[diagonal[a], 1, k] += mesh.wall_normals[f, 0] * dp[k]
            blocks[diagonal[a], 2, k] += mesh.wall_normals[f, 1] * dp[k]


@compiled
def _primitive(q: Array) -> Array:
    w = np.empty_like(q)
    for a in range(len(q)):
        rho = q[a, 0]
        u, v = q[a, 1] / rho, q[a, 2] / rho
        w[a, 0], w[a, 1], w[a, 2], w[a, 3] = rho, u, v, (GAMMA - 1) * (q[a, 3] - rho * (u * u + v * v) / 2)
    return w


@compiled
def _gradient(mesh: DualMesh, w: Array) -> Array:
    """Fit gradients by least squares over the edges of each node, shape (P, 4, 2)."""
    gradient = np.zeros((len(w), 4, 2))
    for e in range(len(mesh.edges)):
        a, b = mesh.edges[e, 0], mesh.edges[e, 1]
        for k in range(4):
            jump = w[b, k] - w[a, k]
            for axis in range(2):
                gradient[a, k, axis] += mesh.slopes[e, 0, axis] * jump
                gradient[b, k, axis] += mesh.slopes[e, 1, axis] * jump
    return gradient


@compiled
def _half_step(jump: float, central: float, soft: float) -> float:
    """Return half of van Albada's mean of the jump along an edge and the one behind it, 2 · central − jump."""
    behind = 2 * central - jump
    a, b = jump * jump + soft, behind * behind + soft
    return 0.5 * (b * jump + a * behind) / (a + b)


@compiled
def _four(w: Array) -> Four:
    return w[0], w[1], w[2], w[3]


@compiled
def _wave_speed(w: Array, normal: Array) -> float:
    length = sqrt(normal[0] ** 2 + normal[1] ** 2)
    return abs(w[1] * normal[0] + w[2] * normal[1]) + sqrt(GAMMA * w[3] / w[0]) * length


@compiled
def _enthalpy(w: Four) -> float:
    rho, u, v, p = w
    return GAMMA / (GAMMA - 1) * p / rho + (u * u + v * v) / 2


@compiled
def _pressure_derivative(u: float, v: float) -> Four:
    """Differentiate the pressure by the conserved values."""
    return (GAMMA - 1) * (u * u + v * v) / 2, -(GAMMA - 1) * u, -(GAMMA - 1) * v, GAMMA - 1


@compiled
def _roe_mean(left: Four, right: Four) -> Four:
    """Return u, v, H and speed of sound for which A (q_right − q_left) is the difference of the fluxes."""
    share = 1 / (1 + sqrt(right[0] / left[0]))
    u, v = share * left[1] + (1 - share) * right[1], share * left[2] + (1 - share) * right[2]
    h = share * _enthalpy(left) + (1 - share) * _enthalpy(right)
    return u, v, h, sqrt((GAMMA - 1) * (h - (u * u + v * v) / 2))


@compiled
def _damping(normal_speed: float, sound: float) -> tuple[float, float, float]:
    """Return f₂, α and β of |A|."""
    f1 = _rounded(normal_speed - sound, ENTROPY_FIX * sound)
    f2 = _rounded(normal_speed, CONTACT_FIX * sound)
    f3 = _rounded(normal_speed + sound, ENTROPY_FIX * sound)
    return f2, ((f1 + f3) / 2 - f2) / (sound * sound), (f3 - f1) / (2 * sound)


@compiled
def _rounded(x: float, width: float) -> float:
    """Return |x| with a parabola in place of its corner, Harten's entropy fix."""
    return abs(x) if abs(x) > width else (x * x + width * width) / (2 * width)


@compiled
def _roe_flux(left: Four, right: Four, nx: float, ny: float) -> Four:
    """Return ½ (F(left) + F(right)) − ½ |A| (q_right − q_left), times the length of the normal."""
    length = sqrt(nx * nx + ny * ny)
    half, nx, ny = length / 2, nx / length, ny / length
    (rho_l, u_l, v_l, p_l), (rho_r, u_r, v_r, p_r) = left, right
    h_l, h_r = _enthalpy(left), _enthalpy(right)
    mass_l, mass_r = rho_l * (u_l * nx + v_l * ny), rho_r * (u_r * nx + v_r * ny)
    u, v, h, sound = _roe_mean(left, right)
    normal_speed = u * nx + v * ny
    f2, alpha, beta = _damping(normal_speed, sound)
    dp, dm = p_r - p_l, mass_r - mass_l - normal_speed * (rho_r - rho_l)
    along_r, along_t = alpha * dp + beta * dm, beta * dp + alpha * sound * sound * dm
    # The convective upwind term is merged with the mean flux: mass_l + mass_r − f2 (ρ_r − ρ_l), and so on.
    from_l, from_r = mass_l + f2 * rho_l, mass_r - f2 * rho_r
    return (
        half * (from_l + from_r - along_r),
        half * (from_l * u_l + from_r * u_r + (p_l + p_r) * nx - along_r * u - along_t * nx),
        half * (from_l * v_l + from_r * v_r + (p_l + p_r) * ny - along_r * v - along_t * ny),
        half * (from_l * h_l + from_r * h_r + f2 * (p_r - p_l) - along_r * h - along_t * normal_speed),
    )


@compiled
def _roe_flux_derivatives(by_left: Array, by_right: Array, left: Four, right: Four, nx: float, ny: float) -> None:
    """Overwrite two (4, 4) blocks with ½ (A(left) + |A|) and ½ (A(right) − |A|), times the length of the normal."""
    length = sqrt(nx * nx + ny * ny)
    half, nx, ny = length / 2, nx / length, ny / length
    by_left[:], by_right[:] = 0.0, 0.0
    for block, w in ((by_left, left), (by_right, right)):
        _add_function(block, half, (w[1], w[2], _enthalpy(w), 0.0), nx, ny, (w[1] * nx + w[2] * ny, 0.0, 1.0))
    mean = _roe_mean(left, right)
    damping = _damping(mean[0] * nx + mean[1] * ny, mean[3])
    _add_function(by_left, half, mean, nx, ny, damping)
    _add_function(by_right, -half, mean, nx, ny, damping)


@compiled
def _add_function(
    block: Array, factor: float, at: Four, nx: float, ny: float, function: tuple[float, float, float]
) -> None:
    """Add factor · f(A), given (u, v, H, a) and (f₂, α, β)."""
    u, v, h, sound = at
    f2, alpha, beta = function
    normal_speed = u * nx + v * ny
    r, t = (1.0, u, v, h), (0.0, nx, ny, normal_speed)
    dm, dp = (-normal_speed, nx, ny, 0.0), _pressure_derivative(u, v)
    for row in range(4):
        block[row, row] += factor * f2
        for column in range(4):
            along_r = alpha * dp[column] + beta * dm[column]
            along_t = beta * dp[column] + alpha * sound * sound * dm[column]
            block[row, column] += factor * (r[row] * along_r + t[row] * along_t)
