"""Files of meshes with fields of known content, as other programs would write them."""

import numpy as np
import pytest

pv = pytest.importorskip("pyvista", reason="the extra 'mesh' is not installed")


def plate(index, *, family="ellipse", nodes=11):
    """A plate with a dent of random shape: triangles and quadrilaterals, a pressure that follows from the shape."""
    rng = np.random.default_rng([11, index])
    a, b, turn = rng.uniform(0.6, 1.0), rng.uniform(0.3, 0.6), rng.uniform(0, np.pi)
    u, v = np.meshgrid(np.linspace(0, 1, nodes), np.linspace(0, 1, nodes + index % 3), indexing="ij")
    radius, angle = 0.3 + u, 2 * np.pi * v * 0.95
    outline = 1.0 if family == "ellipse" else 1.6 / (np.abs(np.cos(angle)) + np.abs(np.sin(angle)))
    x, y = radius * a * outline * np.cos(angle), radius * b * outline * np.sin(angle)
    x, y = np.cos(turn) * x - np.sin(turn) * y, np.sin(turn) * x + np.cos(turn) * y
    z = 0.2 * np.sin(3 * x) * np.cos(2 * y)
    points = np.stack([x, y, z], -1).reshape(-1, 3)
    rows, columns = u.shape
    corner = (np.arange(rows - 1)[:, None] * columns + np.arange(columns - 1)).ravel()
    quads = np.stack([corner, corner + 1, corner + columns + 1, corner + columns], 1)
    half = len(quads) // 2
    triangles = np.concatenate([quads[half:, :3], quads[half:, [0, 2, 3]]])
    cells = np.concatenate(
        [np.c_[np.full(half, 4), quads[:half]].ravel(), np.c_[np.full(len(triangles), 3), triangles].ravel()]
    )
    kinds = np.concatenate([np.full(half, 9), np.full(len(triangles), 5)])
    mesh = pv.UnstructuredGrid(cells, kinds, points)
    mesh.point_data["pressure"] = (100 * (points[:, 0] * a + b * np.sin(2 * points[:, 1])) + 300).astype(np.float32)
    mesh.point_data["Wall Shear"] = np.cross(points, [0.3, 0.1, 1.0]).astype(np.float64)
    mesh.cell_data["region"] = np.arange(mesh.n_cells, dtype=np.int32) % 4
    mesh.field_data["speed"] = np.array([20.0 + index])
    return mesh


def folder_of_plates(folder, count, **how):
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        plate(index, **how).save(folder / f"plate_{index}.vtu")
    return folder


def same(a, b, added=()):
    """Points, cells and every field, bit for bit and with their types; `b` has these fields besides, and no others."""
    assert type(a) is type(b)
    np.testing.assert_array_equal(a.points, b.points)
    assert a.points.dtype == b.points.dtype
    joined = {pv.UnstructuredGrid: ("cells", "celltypes"), pv.PolyData: ("verts", "lines", "faces", "strips")}
    for cells in joined.get(type(a), ("dimensions",)):
        np.testing.assert_array_equal(getattr(a, cells), getattr(b, cells))
    more = set()
    for place in ("point_data", "cell_data", "field_data"):
        mine, theirs = getattr(a, place), getattr(b, place)
        for name in mine.keys():  # noqa: SIM118
            assert mine[name].dtype == theirs[name].dtype, name
            np.testing.assert_array_equal(mine[name], theirs[name])
        more |= set(theirs.keys()) - set(mine.keys())
    assert more == set(added)
