"""Linear solves for Newton's method: incomplete LU factors of a matrix of 4 × 4 blocks, and GMRES."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flare.physics.airfoil.dual import Array, Indices
from flare.utils.numba_cache import compiled


class Pattern(NamedTuple):
    """Where a symmetric sparse matrix has blocks: row by row, columns in order."""

    start: Indices
    """(P+1,) first block of each row, and the end."""
    column: Indices
    """(B,)."""
    diagonal: Indices
    """(P,) block on the diagonal of each row."""
    slots: Indices
    """(E, 2) blocks of the edges: row of the first node, column of the second; and the transposed place."""


def pattern_of(nodes: int, edges: Indices) -> Pattern:
    """Blocks for every node and for both directions of every edge, (E, 2)."""
    a, b = edges.T
    itself = np.arange(nodes)
    row, column = np.concatenate([itself, a, b]), np.concatenate([itself, b, a])
    order = np.lexsort([column, row])
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=nodes))])
    return Pattern(start, column[order], place[:nodes], place[nodes:].reshape(2, -1).T.copy())


@compiled
def factorise(pattern: Pattern, blocks: Array) -> None:
    """Replace the blocks (B, 4, 4) of a matrix by its incomplete factors without fill, diagonal blocks by inverses."""
    nodes = len(pattern.diagonal)
    place = np.full(nodes, -1)  # of each column in the present row
    for i in range(nodes):
        for s in range(pattern.start[i], pattern.start[i + 1]):
            place[pattern.column[s]] = s
        for s in range(pattern.start[i], pattern.diagonal[i]):
            k = pattern.column[s]
            blocks[s] = _product(blocks[s], blocks[pattern.diagonal[k]])
            for t in range(pattern.diagonal[k] + 1, pattern.start[k + 1]):
                target = place[pattern.column[t]]
                if target >= 0:
                    blocks[target] -= _product(blocks[s], blocks[t])
        for s in range(pattern.start[i], pattern.start[i + 1]):
            place[pattern.column[s]] = -1
        blocks[pattern.diagonal[i]] = np.linalg.inv(blocks[pattern.diagonal[i]])


@compiled
def solve_factorised(pattern: Pattern, factors: Array, b: Array) -> Array:
    """(P, 4) solution for the right-hand side b, (P, 4)."""
    x = b.copy()
    for i in range(len(x)):
        for s in range(pattern.start[i], pattern.diagonal[i]):
            _subtract_product(x[i], factors[s], x[pattern.column[s]])
    for i in range(len(x) - 1, -1, -1):
        for s in range(pattern.diagonal[i] + 1, pattern.start[i + 1]):
            _subtract_product(x[i], factors[s], x[pattern.column[s]])
        y0, y1, y2, y3 = x[i, 0], x[i, 1], x[i, 2], x[i, 3]
        inverse = factors[pattern.diagonal[i]]
        for k in range(4):
            x[i, k] = inverse[k, 0] * y0 + inverse[k, 1] * y1 + inverse[k, 2] * y2 + inverse[k, 3] * y3
    return x


@compiled
def _product(a: Array, b: Array) -> Array:
    c = np.empty((4, 4))
    for i in range(4):
        for j in range(4):
            c[i, j] = a[i, 0] * b[0, j] + a[i, 1] * b[1, j] + a[i, 2] * b[2, j] + a[i, 3] * b[3, j]
    return c


@compiled
def _subtract_product(y: Array, a: Array, x: Array) -> None:
    for i in range(4):
        y[i] -= a[i, 0] * x[0] + a[i, 1] * x[1] + a[i, 2] * x[2] + a[i, 3] * x[3]


def gmres(
    apply: Callable[[Array], Array], precondition: Callable[[Array], Array], b: Array, *, reduction: float, most: int
) -> tuple[Array, int]:
    """Solve A x = b from x = 0, preconditioned from the right, until ‖b − A x‖ ≤ reduction · ‖b‖.

    Args:
        apply: v ↦ A v.
        precondition: v ↦ M⁻¹ v, M near A.
        b: of any shape, which x has too.
        most: the number of iterations at most; their result is then returned as it is.

    Returns:
        x, and the number of iterations.
    """
    norm = float(np.linalg.norm(b))
    basis = np.empty((most + 1, b.size))
    hessenberg = np.zeros((most + 1, most))
    rhs = np.zeros(most + 1)
    rhs[0] = norm
    basis[0] = b.ravel() / norm
    y: Array = np.zeros(0)
    k = 0
    for k in range(1, most + 1):
        v = apply(precondition(basis[k - 1].reshape(b.shape))).ravel()
        for _ in range(2):  # the second pass removes what rounding left of the first
            along = basis[:k] @ v
            v = v - along @ basis[:k]
            hessenberg[:k, k - 1] += along
        hessenberg[k, k - 1] = np.linalg.norm(v)
        y = np.asarray(np.linalg.lstsq(hessenberg[: k + 1, :k], rhs[: k + 1])[0], dtype=np.float64)
        left = float(np.linalg.norm(hessenberg[: k + 1, :k] @ y - rhs[: k + 1]))
        if left <= reduction * norm or hessenberg[k, k - 1] == 0.0:
            break
        basis[k] = v / hessenberg[k, k - 1]
    return precondition((y @ basis[:k]).reshape(b.shape)), k
