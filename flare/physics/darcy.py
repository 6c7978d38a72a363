"""Steady flow through a two-phase porous medium: −∇·(a∇u) = f in the unit square, u = 0 on its boundary.

    rng = np.random.default_rng(0)
    a = random_coefficient(85, rng)         # (85, 85), 3 or 12
    u = solve(a)                            # (85, 85), zero on the border

Everything is dimensionless. Arrays are indexed [row, column]; x follows the column, y the row. The K points per side
are either **nodes** j/(K−1), the border included, or **cell centers** (i+½)/K, as in the published Darcy files.
`solve` works on nodes, for clean new data; `solve_canonical` follows the recipe of those files, resampling included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.fft import dctn, idctn
from scipy.interpolate import make_interp_spline
from scipy.sparse import csc_array, diags_array
from scipy.sparse.linalg import splu

from flare.data.benchmarks.cards import card
from flare.data.sample import Sample, Schema
from flare.physics.grids import every
from flare.utils.errors import ConfigError, DataError, NotConverged, suggest_name

Array = NDArray[np.float64]

GRIDS = ("node", "canonical")
FACE_MEANS = ("arithmetic", "harmonic")
MIN_RESOLUTION = 4  # points per side, for the cubic spline and for a matrix with five distinct diagonals
LOW, HIGH = 3.0, 12.0  # permeability of the two phases
TAU = 3.0  # inverse correlation length of the random field
RESIDUAL_LIMIT = 1e-8  # of ‖Au − b‖ / ‖b‖; usual are 1e-13 at K = 85 and 4e-12 at K = 421


@dataclass(frozen=True, kw_only=True)
class Darcy:
    """The Darcy benchmark: coefficient of a two-phase medium -> pressure. The defaults are its published form."""

    resolution: int = 85
    """Points per side of a sample."""
    stride: int = 5
    """Solve on a grid this many times finer, (resolution - 1) * stride + 1 per side, and keep every stride-th point."""
    grid: Literal["canonical", "node"] = "canonical"
    """canonical: the recipe of the published files, cell centers and resampling; node: clean, exactly zero border."""
    face_mean: Literal["arithmetic", "harmonic"] = "arithmetic"
    """Coefficient between two nodes (node grid only)."""

    def __post_init__(self) -> None:
        if self.resolution < MIN_RESOLUTION or self.stride < 1:
            given = f"resolution={self.resolution}, stride={self.stride}"
            raise ConfigError(f"{given}: must be at least {MIN_RESOLUTION} and 1")
        if self.grid == "canonical" and self.face_mean != "arithmetic":
            raise ConfigError("face_mean='harmonic' is not available with grid='canonical'; use grid='node'")

    def schema(self) -> Schema:
        """Return the fields and grid of a sample."""
        return card("darcy").schema(grid=(self.resolution, self.resolution))

    def sample(self, rng: np.random.Generator) -> Sample:
        """Solve for the pressure in a random medium."""
        a = random_coefficient((self.resolution - 1) * self.stride + 1, rng, grid=self.grid)
        u, residual = _canonical(a) if self.grid == "canonical" else _solve_on_nodes(a, np.ones_like(a), self.face_mean)
        points = np.stack(np.meshgrid(nodes(self.resolution), nodes(self.resolution)), -1).reshape(-1, 2)
        fields = every(self.stride, {"coefficient": a, "pressure": u})
        return Sample({"points": points, **fields}, notes={"residual": residual})

    def provenance(self) -> dict[str, Any]:
        """Return how the dataset was made."""
        return {"kind": "recreated", "generator": "flare.physics.darcy"}


def nodes(resolution: int) -> Array:
    """Return the coordinates j/(K−1) from 0 to 1, shape (K,)."""
    return np.arange(resolution) / (resolution - 1)


def cell_centers(resolution: int) -> Array:
    """Return the coordinates (i+½)/K, half a cell away from both ends, shape (K,)."""
    return (np.arange(resolution) + 0.5) / resolution


def gaussian_random_field(resolution: int, rng: np.random.Generator, *, grid: str = "node") -> Array:
    """Draw g ~ N(0, τ² (−Δ + τ²)^−2), τ = 3, Δ with zero Neumann conditions, without its mean mode.

    The Karhunen-Loève series over the first K × K modes, ξ independent standard normal,

        g(x, y) = τ Σ ξ_kl (π²(k²+l²) + τ²)^(−1) φ_k(y) φ_l(x),   ξ_00 = 0,   φ_0 = 1,  φ_k(t) = √2 cos(πkt),

    is evaluated exactly on either grid by one cosine transform. The same state of `rng` gives the same function g on
    both grids of one resolution; another resolution is another draw.

    Args:
        resolution: K, at least 4.
        rng: Generator, from which K² standard normal numbers are drawn.
        grid: "node" (DCT-I) or "canonical", the cell centers of the published files (inverse orthonormal DCT-II).

    Returns:
        The field, shape (K, K).
    """
    _check_choice("grid", grid, GRIDS)
    if resolution < MIN_RESOLUTION:
        raise ConfigError(f"resolution={resolution} is too small; use at least {MIN_RESOLUTION}")
    k = np.arange(resolution, dtype=np.float64)
    eigenvalue = np.pi**2 * (k[:, None] ** 2 + k**2) + TAU**2
    series = TAU * eigenvalue**-1.0 * rng.standard_normal((resolution, resolution))
    series[0, 0] = 0.0
    if grid == "canonical":
        return np.asarray(resolution * idctn(series, norm="ortho"))
    # DCT-I counts every mode twice except the first and the last: undo that and include the √2 of φ.
    weight = np.full(resolution, np.sqrt(0.5))
    weight[0], weight[-1] = 1.0, np.sqrt(2.0)
    return np.asarray(dctn(weight[:, None] * weight * series, type=1))


def random_coefficient(resolution: int, rng: np.random.Generator, *, grid: str = "node") -> Array:
    """Draw the permeability of a random two-phase medium, shape (K, K).

    It is 12 where a Gaussian random field is ≥ 0, else 3. `grid` is that of `gaussian_random_field`. Each phase fills
    half the square on average, ± 0.06 in one sample.
    """
    return np.where(gaussian_random_field(resolution, rng, grid=grid) >= 0, HIGH, LOW)


def solve(coefficient: ArrayLike, *, source: ArrayLike = 1.0, face_mean: str = "arithmetic") -> Array:
    """Solve for the pressure on the nodes by the five-point scheme, second order for a smooth coefficient.

    Args:
        coefficient: Positive permeability at the nodes, shape (K, K), K at least 4. The corners have no influence.
        source: f, one number or (K, K) at the nodes; its border values have no influence.
        face_mean: Mean of the permeability between two nodes. "arithmetic" is what the published data use; "harmonic"
            is exact for a flow across a jump halfway between nodes.

    Returns:
        Pressure, shape (K, K), exactly zero on the border, positive inside if the source is.

    Raises:
        DataError: An array has the wrong shape, is not finite or (coefficient) not positive.
        NotConverged: The linear residual is above 1e-8, which takes a contrast of about 1e6 at K = 421.
    """
    a = _checked(coefficient, "coefficient", above=0.0)
    if np.shape(source) not in ((), a.shape):
        raise DataError(f"source has shape {np.shape(source)}; it must be {a.shape}, or one number")
    f = _checked(np.broadcast_to(source, a.shape), "source")
    return _solve_on_nodes(a, f, face_mean)[0]


def solve_canonical(coefficient_cells: ArrayLike) -> Array:
    """Solve for the pressure at the cell centers by the recipe of the published files: resample, solve, resample back.

    The source is 1. Both resamplings are tensor-product not-a-knot cubic splines that extrapolate by half a cell. Their
    two side effects are part of the data: the pressure on the array's border is small but not zero, and the spline
    overshoots near a jump, so a few node coefficients are negative and the matrix need not be positive definite.

    Args:
        coefficient_cells: Positive permeability at the cell centers, shape (K, K), K at least 4.

    Returns:
        Pressure at the cell centers, shape (K, K).

    Raises:
        DataError: See `solve`.
    """
    return _canonical(_checked(coefficient_cells, "coefficient_cells", above=0.0))[0]


def _canonical(cells: Array) -> tuple[Array, float]:
    at_cells, at_nodes = cell_centers(len(cells)), nodes(len(cells))
    a = _resample(cells, at_cells, at_nodes)
    u, residual = _solve_on_nodes(a, np.ones_like(a), "arithmetic")
    return _resample(u, at_nodes, at_cells), residual


def _faces(a: Array, face_mean: str) -> tuple[Array, Array]:
    """Return the permeability of the faces of interior nodes: (K−2, K−1) between columns, (K−1, K−2) between rows."""
    _check_choice("face_mean", face_mean, FACE_MEANS)

    def mean(p: Array, q: Array) -> Array:
        return (p + q) / 2 if face_mean == "arithmetic" else 2 / (1 / p + 1 / q)

    return mean(a[1:-1, :-1], a[1:-1, 1:]), mean(a[:-1, 1:-1], a[1:, 1:-1])


def _matrix(a: Array, face_mean: str) -> csc_array:
    """Assemble (n², n²), n = K−2: row P is Σ_N a_PN (u_P − u_N), the flow from node P to its four neighbors N."""
    a_x, a_y = _faces(a, face_mean)
    diagonal = a_x[:, :-1] + a_x[:, 1:] + a_y[:-1] + a_y[1:]
    east = -a_x[:, 1:]
    east[:, -1] = 0.0  # the last node of a row is no neighbor of the first of the next row
    east, north = east.ravel()[:-1], -a_y[1:-1].ravel()
    n = len(a) - 2
    return diags_array([north, east, diagonal.ravel(), east, north], offsets=[-n, -1, 0, 1, n], format="csc")


def _solve_on_nodes(a: Array, f: Array, face_mean: str) -> tuple[Array, float]:
    """Return the pressure at the nodes and the relative residual. `a` may have any sign."""
    n = len(a) - 2
    with np.errstate(over="ignore", divide="ignore"):  # extreme magnitudes are caught by the residual
        matrix, b = _matrix(a, face_mean), f[1:-1, 1:-1].ravel() / (n + 1) ** 2
    try:
        # Minimum degree on A + Aᵀ has half the fill of the default order. SuperLU's SymmetricMode gained nothing.
        interior: Array = splu(matrix, permc_spec="MMD_AT_PLUS_A").solve(b)
    except RuntimeError:  # a pivot is exactly zero
        interior = np.full(n * n, np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = float(np.linalg.norm(matrix @ interior - b)) / (float(np.linalg.norm(b)) or 1.0)
    if not (np.isfinite(interior).all() and residual <= RESIDUAL_LIMIT):
        raise NotConverged(f"residual {residual:.2g} of the linear solve; reduce the contrast of the coefficient")
    return np.pad(interior.reshape(n, n), 1), residual


def _resample(values: Array, source: Array, target: Array) -> Array:
    """Interpolate from one set of coordinates to another, both (K,), by a tensor-product not-a-knot cubic spline."""
    for axis in (0, 1):
        values = make_interp_spline(source, values, k=3, axis=axis)(target)
    return values


def _checked(values: ArrayLike, name: str, *, above: float = -np.inf) -> Array:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or len(array) < MIN_RESOLUTION:
        raise DataError(f"{name} has shape {array.shape}; it must be square, (K, K), with K at least {MIN_RESOLUTION}")
    bad = ~(np.isfinite(array) & (array > above))
    if bad.any():
        row, column = np.argwhere(bad)[0]
        count = f"{bad.sum():,} of {bad.size:,} points (first: [{row}, {column}])"
        raise DataError(f"{name}: {count} are not finite numbers above {above:g}")
    return array


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown; {suggest_name(str(value), known)}")
