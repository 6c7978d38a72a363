"""Random parts: deterministic, in the build volume, within the limits; statistics near the published ones."""

from __future__ import annotations

import numpy as np
import pytest

from flare.mesh.io.cad import triangulated
from flare.mesh.repair import solid_surface
from flare.mesh.voxelization import voxelize
from flare.mesh.voxels import pieces
from flare.physics.lpbf.parts import draw_part

# Mean, standard deviation and quartiles of the published set after its filter.
PUBLISHED = {
    "nodes": (20_972, 12_476, 10_229, 19_743, 30_503),
    "edges": (114_135, 68_308, 56_208, 107_677, 166_247),
    "aspect ratio": (1.642, 0.438, 1.280, 1.473, 1.907),
    "height": (29.43, 23.25, 7.80, 21.60, 60.00),
    "edges per node": (5.414, 0.227, 5.367, 5.460, 5.547),
}


def rng(*seed):
    return np.random.default_rng([0, *seed])


@pytest.fixture(scope="module")
def drawn():
    return [draw_part(rng(n)) for n in range(8)]


def test_the_same_seed_gives_the_same_part():
    a, b = draw_part(rng(3)), draw_part(rng(3))
    assert a.part.description == b.part.description
    assert a.voxels.solid.tobytes() == b.voxels.solid.tobytes()
    assert a.mesh.points.tobytes() == b.mesh.points.tobytes()
    assert a.rejected == b.rejected


def test_parts_stand_on_the_plate_in_one_piece_with_longest_edge_60(drawn):
    for d in drawn:
        low, high = d.part.solid.bounds
        assert (high - low).max() == pytest.approx(60)
        np.testing.assert_allclose([low[0] + high[0], low[1] + high[1], low[2]], 0, atol=1e-9)
        assert d.voxels.solid[:, :, 0].any()
        assert len(pieces(d.voxels.solid)[1]) == 2
        assert d.voxels.origin == pytest.approx(tuple(low), abs=1e-9)


def test_drawn_parts_are_within_the_limits(drawn):
    for d in drawn:
        assert 700 <= len(d.mesh.points) <= 50_000
        assert d.mesh.edges().shape[1] <= 250_000
        assert 170 <= len(d.mesh.hexahedra) <= 25_680
        assert d.mesh.aspect_ratio().max() <= 3.0 + 1e-9
        assert d.mesh.volume == pytest.approx(d.voxels.volume, rel=1e-9)


def same_as_cad(drawn):
    """Return the share of voxels that differ from those of the exact CAD shape."""
    pytest.importorskip("gmsh")
    surface = solid_surface(triangulated(drawn.part.solid).surface())
    again = voxelize(surface, drawn.voxels.size)
    np.testing.assert_allclose(surface.bounds, drawn.part.solid.bounds, atol=0.1)
    return np.count_nonzero(again.solid != drawn.voxels.solid) / drawn.voxels.count


@pytest.mark.slow
def test_all_formulas_and_cad_shapes_have_the_same_voxels():
    shares = [same_as_cad(draw_part(rng(5, n))) for n in range(30)]
    assert max(shares) < 0.03
    assert np.mean(shares) < 0.002


@pytest.mark.slow
def test_statistics_are_near_the_published_ones():
    columns: dict[str, list[float]] = {name: [] for name in PUBLISHED}
    per_element = []
    for n in range(300):
        mesh = draw_part(rng(n)).mesh
        nodes, edges = len(mesh.points), mesh.edges().shape[1]
        row = (nodes, edges, mesh.aspect_ratio().max(), mesh.points[:, 2].max(), edges / nodes)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
        per_element.append(nodes / len(mesh.hexahedra))
    for name, (mean, spread, *_) in PUBLISHED.items():
        assert np.mean(columns[name]) == pytest.approx(mean, rel=0.1), name
        assert np.std(columns[name]) == pytest.approx(spread, rel=0.4), name
    assert np.mean(per_element) == pytest.approx(1.87, rel=0.05)
    height = np.array(columns["height"])
    assert (height > 59).mean() > 0.2  # two peaks: flat parts, and parts that stand
    assert (height < 12).mean() > 0.25
    assert ((height > 36) & (height < 54)).mean() < 0.15
