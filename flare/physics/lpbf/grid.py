"""Boxes of a part on its plate, at one resolution and at all coarser ones of the multigrid solver.

The part is made of equal voxels on z ≥ 0. Under its bounding box lies the plate, whose boxes double in size on the way
down: two layers of thickness t, then 2t, 4t, ... to the bottom, each layer twice as coarse in x and y as the one above.

    z = 0     ┬─┬─┬─┬─┬─┬─┬─┬   lines of level 0
    −t        ├─┼─┼─┼─┼─┼─┼─┼   lines of level 0
    −2t       ├───┼───┼───┼──   lines of level 1: the boxes above hang on its corners
    −4t       ├───────┼──────   lines of level 2

A box above a coarser plane uses the four corners of the coarse face as its bottom corners (its own four are
interpolated from them), so it still has eight nodes and no hanging ones. Merging 2 × 2 × 2 boxes of level l gives level
l + 1, which has the same plate: the hierarchy is nested, and a coarse box is the sum of its children.

Nodes are numbered in the order of their first box, boxes from the bottom up, so the nodes and boxes after any layer
group are a prefix of the whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from flare.physics.lpbf.hexahedron import CORNERS, Array, Size, shape, stiffness, strain_matrix

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
Index = NDArray[np.intp]
LatticePoints = Callable[[Index, Index], Ints]
"""Function from (row, column) of a plane to its nodes."""

LOWER, UPPER, LOWER_ON_COARSE = range(3)  # vertical place of a child in its parent
POWDER = 1e-4  # stiffness of the hold of powder on floating voxels, relative to a voxel's own
MAX_GAP = 3  # level l + 1 keeps every second line of level l, except for one gap of 1 or 3 in the middle


def plate_depths(thickness: float, height: float) -> Array:
    """Return the depths of the planes of a plate, one per layer, at least two.

    Plane l has the lines of level l. The first layer is nearest to the height of a voxel, as a ratio.
    """
    layers = max(2, 1 + round(np.log2(thickness / height)))
    return thickness / 2.0 ** np.arange(layers - 1, -1, -1)


@dataclass(frozen=True)
class PlateLayer:
    """Boxes of one layer of the plate."""

    boxes: NDArray[np.int64]
    """Numbers, shape (ny, nx)."""
    x: Array
    """Widths, shape (nx,)."""
    y: Array
    height: float
    row_below: Index
    """Row of the next layer under each row, shape (ny,)."""
    column_below: Index


@dataclass
class Level:
    """One resolution: nodes, boxes, and their relation to the next coarser one."""

    cells: Ints
    """Nodes of every box, plate first, from the bottom up, shape (E, 8)."""
    positions: Array
    """Shape (N, 3)."""
    fixed: Bools
    """Whether a displacement is held at zero, shape (N, 3)."""
    plate_cells: int
    plate_nodes: int
    """Number of nodes below z = 0, which come first."""
    upper: Ints
    """Node of every lattice point z ≥ 0, −1 where there is none, shape (nz + 1, ny + 1, nx + 1)."""
    kinds: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    """Row of `matrices` with the stiffness of each box, shape (E,)."""
    matrices: Array = field(default_factory=lambda: np.zeros((0, 24, 24)))
    strains: Array = field(default_factory=lambda: np.zeros((0, 6, 24)))
    """Mean strain of each kind of box per displacement of its nodes (level 0 only), shape (kinds, 6, 24)."""
    volumes: Array = field(default_factory=lambda: np.zeros(0))
    parent_nodes: Ints = field(default_factory=lambda: np.zeros((0, 8), np.int32))
    """Nodes of the next level that a node interpolates, shape (N, 8); unused ones have weight 0."""
    parent_weights: Array = field(default_factory=lambda: np.zeros((0, 8)))


def coarse_lines(count: int) -> Index:
    """Return which of the lines 0 … count remain: every second, mirror-symmetric, with a middle gap of 1 or 3 if
    odd."""
    pairs = count // 2 if count % 2 == 0 else count // 4 * 2 if (count // 2) % 2 == 0 else (count // 2 - 1)
    gaps = [2] * pairs
    if count % 2:
        gaps[pairs // 2 : pairs // 2] = [count - 2 * pairs]
    return np.concatenate([[0], np.cumsum(gaps, dtype=np.intp)])


class Hierarchy:
    """All levels of a part, with or without its plate; `levels[0]` is the computational mesh.

    Args:
        solid: Voxels, shape (nx, ny, nz), at least one True; the array is their bounding box in x and y.
        size: Edges of a voxel.
        origin: x and y of the low corner.
        plate: Result of `plate_depths`; None for a part that has been cut off.
        young: Young's modulus of part and plate.
        poisson: Poisson's ratio of part and plate.
        floating: Voxels not yet connected to the plate, shape (nx, ny, nz); powder holds them weakly.
        incompatible: Use boxes with incompatible modes.
    """

    def __init__(
        self,
        solid: Bools,
        size: Size,
        origin: tuple[float, float],
        *,
        plate: Array | None,
        young: float,
        poisson: float,
        floating: Bools | None = None,
        incompatible: bool = True,
    ) -> None:
        nx, ny, nz = solid.shape
        self.depths, self.size = np.zeros(0) if plate is None else plate, size
        depth = len(self.depths) or _levels_without_plate(max(nx, ny, nz))
        self.young, self.poisson = young, poisson
        self.x = [origin[0] + size[0] * np.arange(nx + 1)]
        self.y = [origin[1] + size[1] * np.arange(ny + 1)]
        self.keep_x, self.keep_y = [], []
        for _ in range(depth):
            self.keep_x.append(coarse_lines(len(self.x[-1]) - 1))
            self.keep_y.append(coarse_lines(len(self.y[-1]) - 1))
            self.x.append(self.x[-1][self.keep_x[-1]])
            self.y.append(self.y[-1][self.keep_y[-1]])
        solids = [np.ascontiguousarray(solid.transpose(2, 1, 0))]  # z first: the order of building
        self.solid = solids[0]
        """(nz, ny, nx)."""
        for level in range(depth - 1):
            solids.append(self._coarsen(solids[-1], level))
        self.levels = [self._level(level, solids[level]) for level in range(depth)]
        matrix = partial(stiffness, young=young, poisson=poisson, incompatible=incompatible)
        self._base_matrices(solids[0], matrix, floating)
        for level in range(depth - 1):
            self._interpolate(level)
            self._merge(level, solids[level], solids[level + 1])

    def _coarsen(self, solid: Bools, level: int) -> Bools:
        solid = np.pad(solid, ((0, len(solid) % 2), (0, 0), (0, 0)))
        solid = solid[::2] | solid[1::2]
        solid = np.logical_or.reduceat(solid, self.keep_y[level][:-1], axis=1)
        return np.logical_or.reduceat(solid, self.keep_x[level][:-1], axis=2)

    def plate_layers(self) -> list[PlateLayer]:
        """Return the plate's boxes of level 0 from the top down; none without a plate."""
        layers: list[PlateLayer] = []
        end = self.levels[0].plate_cells
        for number, height in enumerate(np.diff(self.depths, prepend=0.0)):
            lines = max(number - 1, 0)
            x, y = np.diff(self.x[lines]), np.diff(self.y[lines])
            boxes = np.arange(end - y.size * x.size, end).reshape(y.size, x.size)
            row = parent_interval(self.keep_y[lines]) if number else np.arange(y.size)
            column = parent_interval(self.keep_x[lines]) if number else np.arange(x.size)
            layers.append(PlateLayer(boxes, x, y, float(height), row, column))
            end -= boxes.size
        return layers

    def _level(self, level: int, solid: Bools) -> Level:
        x, y = self.x[level], self.y[level]
        used = corners_of(solid)
        planes, positions, fixed, count = list[Ints](), list[Array](), list[Bools](), 0
        if len(self.depths):
            used[0] = True
            planes = [np.zeros((0, 0), np.int32)] * len(self.depths)
            for plane in reversed(range(level, len(self.depths))):
                px, py = self.x[plane], self.y[plane]
                planes[plane] = np.arange(count, count + px.size * py.size, dtype=np.int32).reshape(py.size, px.size)
                count += px.size * py.size
                positions.append(_grid_points(px, py, np.array([-self.depths[plane]])))
                fixed.append(_rollers(px.size, py.size) | (plane == len(self.depths) - 1))
        below = count
        order = np.argsort(_birth(solid, used, len(self.depths) > 0)[used], kind="stable")
        numbers = np.empty(order.size, np.int32)
        numbers[order] = np.arange(count, count + order.size, dtype=np.int32)
        upper = np.full(used.shape, -1, np.int32)
        upper[used] = numbers
        z = self.size[2] * 2.0**level * np.arange(len(solid) + 1.0)
        positions.append(_grid_points(x, y, z)[used.ravel()][order])
        held = np.zeros((int(used.sum()), 3), bool)
        if len(self.depths):
            held[: x.size * y.size] = _rollers(x.size, y.size)
        fixed.append(held)

        cells = []
        if len(self.depths):
            for plane in reversed(range(level, len(self.depths) - 1)):
                top, bottom = _faces(planes[plane]), _faces(planes[plane + 1])
                row, column = parent_interval(self.keep_y[plane]), parent_interval(self.keep_x[plane])
                cells.append(np.concatenate([bottom[row[:, None], column], top], -1).reshape(-1, 8))
            cells.append(np.concatenate([_faces(planes[level]), _faces(upper[0])], -1).reshape(-1, 8))
        plate_cells = sum(map(len, cells))
        k, j, i = np.nonzero(solid)
        cells.append(np.stack([upper[k + c, j + b, i + a] for a, b, c in CORNERS], -1))
        return Level(np.concatenate(cells), np.concatenate(positions), np.concatenate(fixed), plate_cells, below, upper)

    def _base_matrices(self, solid: Bools, matrix_of: Callable[[Size], Array], floating: Bools | None) -> None:
        """Set the stiffness of the boxes of level 0: one matrix for all voxels, a few for the plate."""
        finest = self.levels[0]
        voxel = matrix_of(self.size)
        matrices, kinds = [voxel, voxel + POWDER * np.trace(voxel) / 24 * np.eye(24)], []
        strains, volumes = [strain_matrix(self.size)] * 2, [float(np.prod(self.size))] * 2
        if len(self.depths):
            for plane in reversed(range(len(self.depths) - 1)):
                height = self.depths[plane + 1] - self.depths[plane]
                x_kind, x_widths, x_spans = _spans(self.x[plane], self.keep_x[plane])
                y_kind, y_widths, y_spans = _spans(self.y[plane], self.keep_y[plane])
                kinds.append((len(matrices) + y_kind[:, None] * len(x_widths) + x_kind).ravel())
                for width_y, span_y in zip(y_widths, y_spans, strict=True):
                    for width_x, span_x in zip(x_widths, x_spans, strict=True):
                        box = (width_x, width_y, height)
                        hang = np.eye(8)
                        hang[:4] = _corner_weights(span_x, span_y, LOWER)[:4]
                        matrices.append(_congruent(matrix_of(box), hang))
                        strains.append(strain_matrix(box) @ np.kron(hang, np.eye(3)))
                        volumes.append(float(np.prod(box)))
            box = (self.size[0], self.size[1], self.depths[0])
            kinds.append(np.full((self.x[0].size - 1) * (self.y[0].size - 1), len(matrices)))
            matrices.append(matrix_of(box))
            strains.append(strain_matrix(box))
            volumes.append(float(np.prod(box)))
        loose = np.zeros(solid.shape, np.int32) if floating is None else floating.transpose(2, 1, 0).astype(np.int32)
        kinds.append(loose[solid])
        finest.kinds, finest.matrices = np.concatenate(kinds).astype(np.int32), np.stack(matrices)
        finest.strains, finest.volumes = np.stack(strains), np.array(volumes)

    def _interpolate(self, level: int) -> None:
        """Set the trilinear interpolation of the nodes of a level from those of the next."""
        fine, coarse = self.levels[level], self.levels[level + 1]
        count = len(fine.positions)
        fine.parent_nodes, fine.parent_weights = np.zeros((count, 8), np.int32), np.zeros((count, 8))
        row, row_share = _interval(self.y[level], self.keep_y[level])
        column, column_share = _interval(self.x[level], self.keep_x[level])

        def between(
            own: Ints, j: Index, i: Index, high: Array, low_plane: LatticePoints, high_plane: LatticePoints
        ) -> None:
            """Interpolate nodes `own` on lines (j, i), a share `high` of the way from a low plane of coarse nodes to
            a high one."""
            for corner, (a, b, c) in enumerate(CORNERS):
                x_weight = column_share[i] if a else 1 - column_share[i]
                y_weight = row_share[j] if b else 1 - row_share[j]
                weight = x_weight * y_weight * (high if c else 1 - high)
                source = (high_plane if c else low_plane)(row[j] + b, column[i] + a)
                fine.parent_nodes[own, corner] = np.where(weight > 0, source, 0)
                fine.parent_weights[own, corner] = weight

        k, j, i = np.nonzero(fine.upper >= 0)
        top = len(coarse.upper) - 1  # a plane above it has weight 0
        between(
            fine.upper[k, j, i],
            j,
            i,
            k % 2 / 2,
            lambda j, i: coarse.upper[k // 2, j, i],
            lambda j, i: coarse.upper[np.minimum(k // 2 + 1, top), j, i],
        )
        if len(self.depths):
            # Planes from −2t down are common to both levels. The one at −t lies halfway between those at 0 and −2t.
            common = coarse.plate_nodes
            fine.parent_nodes[:common, 0], fine.parent_weights[:common, 0] = np.arange(common), 1.0
            lines = self.y[level + 1].size, self.x[level + 1].size
            below = np.arange(common - lines[0] * lines[1], common, dtype=np.int32).reshape(lines)
            j, i = (index.ravel() for index in np.indices((self.y[level].size, self.x[level].size)))
            own = np.arange(common, common + i.size, dtype=np.int32)
            half = np.full(i.size, 0.5)
            between(own, j, i, half, lambda j, i: below[j, i], lambda j, i: coarse.upper[0, j, i])

    def _merge(self, level: int, solid: Bools, coarse_solid: Bools) -> None:
        """Set the stiffness of the next level's boxes: Σ Wᵀ K W over children, one matrix per pattern of children."""
        fine, coarse = self.levels[level], self.levels[level + 1]
        keep_x, keep_y = self.keep_x[level], self.keep_y[level]
        owner_x, owner_y = parent_interval(keep_x), parent_interval(keep_y)
        x_kind, _, x_spans = _spans(self.x[level], keep_x)
        y_kind, _, y_spans = _spans(self.y[level], keep_y)
        place_x, place_y = np.arange(owner_x.size) - keep_x[owner_x], np.arange(owner_y.size) - keep_y[owner_y]
        slots = np.stack(
            [_corner_weights(sx, sy, z) for z in (LOWER, UPPER, LOWER_ON_COARSE) for sy in y_spans for sx in x_spans]
            + [np.eye(8)]
        )

        def places(vertical: Index | int, upper: Index, j: Index, i: Index) -> tuple[Index, Index]:
            """Return the place of boxes in column (j, i) among the children of their parent, and their slot."""
            place = (upper * MAX_GAP + place_y[j]) * MAX_GAP + place_x[i]
            return place, (vertical * len(y_spans) + y_kind[j]) * len(x_spans) + x_kind[i]

        found = []  # (parent, place, slot) of all boxes, in their order: from the bottom up
        if len(self.depths):
            j, i = (a.ravel() for a in np.indices((owner_y.size, owner_x.size)))
            common = coarse.plate_cells - (keep_y.size - 1) * (keep_x.size - 1)
            found.append((np.arange(common), np.zeros(common, np.intp), np.full(common, len(slots) - 1)))
            parent = common + owner_y[j] * (keep_x.size - 1) + owner_x[i]
            found.append((parent, *places(LOWER_ON_COARSE, np.zeros_like(j), j, i)))
            found.append((parent, *places(UPPER, np.ones_like(j), j, i)))
        k, j, i = np.nonzero(solid)
        number = np.full(coarse_solid.shape, -1, np.intp)
        number[coarse_solid] = coarse.plate_cells + np.arange(coarse_solid.sum())
        found.append((number[k // 2, owner_y[j], owner_x[i]], *places(np.where(k % 2, UPPER, LOWER), k % 2, j, i)))
        parent, place, slot = (np.concatenate(column) for column in zip(*found, strict=True))

        pairs, pair = np.unique(fine.kinds.astype(np.int64) * len(slots) + slot, return_inverse=True)
        terms = _congruent(fine.matrices[pairs // len(slots)], slots[pairs % len(slots)])
        terms = np.concatenate([np.zeros((1, 24, 24)), terms])
        pattern = np.zeros((len(coarse.cells), 2 * MAX_GAP**2), np.int32)
        pattern[parent, place] = pair + 1
        pattern = pattern[:, pattern.any(0)]
        unique, kinds = np.unique(pattern, axis=0, return_inverse=True)
        coarse.kinds = kinds.ravel().astype(np.int32)
        coarse.matrices = np.zeros((len(unique), 24, 24))
        for column in unique.T:
            coarse.matrices += terms[column]


def corners_of(solid: Bools) -> Bools:
    """Return which lattice points are corners of solid boxes: (nz, ny, nx) -> (nz + 1, ny + 1, nx + 1)."""
    nz, ny, nx = solid.shape
    used = np.zeros((nz + 1, ny + 1, nx + 1), bool)
    for a, b, c in CORNERS:
        used[c : c + nz, b : b + ny, a : a + nx] |= solid
    return used


def _birth(solid: Bools, used: Bools, on_plate: bool) -> NDArray[np.int64]:
    """Return the layer of the lowest voxel at each lattice point.

    A point above powder is born a layer after its neighbors.
    """
    layer = np.broadcast_to(np.arange(len(used))[:, None, None], used.shape).copy()
    for a, b, c in CORNERS[4:]:
        view = layer[c:, b : b + solid.shape[1], a : a + solid.shape[2]]
        view[solid] = np.arange(len(solid))[np.nonzero(solid)[0]]
    if on_plate:
        layer[0] = -1
    return layer


def _levels_without_plate(cells: int) -> int:
    return max(1, int(np.ceil(np.log2(cells / 4))) + 1) if cells > 4 else 1


def _grid_points(x: Array, y: Array, z: Array) -> Array:
    """Return lattice points, x fastest, shape (len z · len y · len x, 3)."""
    zz, yy, xx = np.meshgrid(z, y, x, indexing="ij")
    return np.stack([xx, yy, zz], -1).reshape(-1, 3)


def _rollers(nx: int, ny: int) -> Bools:
    """Fix the normal displacement at the sides, because the plate continues outside, shape (ny · nx, 3)."""
    held = np.zeros((ny, nx, 3), bool)
    held[:, [0, -1], 0] = True
    held[[0, -1], :, 1] = True
    return held.reshape(-1, 3)


def _faces(nodes: Ints) -> Ints:
    """Return the corners of the quadrilaterals of a plane of nodes, counterclockwise, shape (ny, nx, 4)."""
    return np.stack([nodes[:-1, :-1], nodes[:-1, 1:], nodes[1:, 1:], nodes[1:, :-1]], -1)


def parent_interval(keep: Index) -> Index:
    """Return the coarse interval of each fine interval."""
    return np.repeat(np.arange(keep.size - 1), np.diff(keep))


def _interval(lines: Array, keep: Index) -> tuple[Index, Array]:
    """Return the low coarse line and the weight of the high one for each fine line; the last line is in the last
    interval."""
    low = np.minimum(np.searchsorted(keep, np.arange(lines.size), side="right") - 1, keep.size - 2)
    start, end = lines[keep[low]], lines[keep[low + 1]]
    return low, (lines - start) / (end - start)


def _spans(lines: Array, keep: Index) -> tuple[Index, Array, Array]:
    """Return the kind of each fine interval; per kind its width, and its (low, high) as fractions of its coarse
    interval."""
    owner, width = parent_interval(keep), np.diff(lines)
    start, length = lines[keep[:-1]][owner], np.diff(lines[keep])[owner]
    features = np.stack([width, (lines[:-1] - start) / length, (lines[1:] - start) / length], 1)
    _, first, kind = np.unique(np.round(features, 9), axis=0, return_index=True, return_inverse=True)
    return kind.ravel(), features[first, 0], features[first, 1:]


def _corner_weights(span_x: Array, span_y: Array, vertical: int) -> Array:
    """Return the weights of a parent's corners at the corners of a child, shape (8, 8)."""
    ends = np.array([span_x, span_y, (0.5, 1.0) if vertical == UPPER else (0.0, 0.5)])
    weights = shape(np.stack([ends[axis][CORNERS[:, axis]] for axis in range(3)], -1))
    if vertical == LOWER_ON_COARSE:
        weights[:4] = np.eye(8)[:4]
    return weights


def _congruent(matrix: Array, weights: Array) -> Array:
    """Return Wᵀ K W with W = weights ⊗ I₃, on the last two axes."""
    full = np.einsum("...ab,ij->...aibj", weights, np.eye(3)).reshape(*weights.shape[:-2], 24, 24)
    return np.swapaxes(full, -1, -2) @ matrix @ full
