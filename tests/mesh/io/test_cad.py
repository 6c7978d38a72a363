"""Solids as CAD shapes: the same volume and voxels as the formulas, silent, whole files."""

from __future__ import annotations

import os

import numpy as np
import pytest

from flare.mesh.csg import Box, Cylinder, Placed, Prism, on_plate
from flare.mesh.parts import read_part
from flare.mesh.repair import solid_surface
from flare.mesh.voxelization import voxelize
from flare.utils.errors import DataError

pytest.importorskip("gmsh")
from flare.mesh.io.cad import triangulated, write_cad

BLOCK = Box((-3.0, -4.0, 1.0), (5.0, 2.0, 6.0))
ROD = Cylinder(axis=1, centre=(1.0, 3.0), radius=1.5, low=-5.0, high=4.0)
WEDGE = Prism(axis=0, polygon=((-4.0, 6.0), (2.0, 6.0), (2.0, 9.0)), low=-3.0, high=5.0)
VOLUME = 240 - 6 * np.pi * 1.5**2 + 72  # the block with a bore, and a wedge on top


def agreement(a, b):
    return (a.solid == b.solid).mean()


@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1), (1, 2, 0)])
def test_a_cad_shape_equals_its_csg_solid(axes):
    part = on_plate(Placed(solid=(BLOCK | WEDGE) - ROD, axes=axes, signs=(1, -1, -1)))
    surface = solid_surface(triangulated(part).surface())
    scale = 60 / 8
    assert surface.volume == pytest.approx(VOLUME * scale**3, rel=1e-3)
    np.testing.assert_allclose(surface.bounds, part.bounds, atol=1e-5)
    size = tuple(part.extents / 40)
    assert agreement(voxelize(surface, size), voxelize(part, size)) > 0.995


@pytest.mark.parametrize("kind", ["step", "brep"])
def test_a_written_solid_is_read_back(tmp_path, capfd, kind):
    write_cad(tmp_path / f"part.{kind}", BLOCK - ROD)
    part = read_part(tmp_path / f"part.{kind}")
    assert part.volume == pytest.approx(240 - 6 * np.pi * 1.5**2, rel=1e-3)
    assert [p.name for p in tmp_path.iterdir()] == [f"part.{kind}"]
    assert capfd.readouterr().out == ""


def test_other_suffixes_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"\.step, \.stp, \.brep"):
        write_cad(tmp_path / "part.stl", BLOCK)
    assert list(tmp_path.iterdir()) == []


def test_gmsh_does_not_change_the_handling_of_broken_pipes():
    triangulated(on_plate(BLOCK))
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        os.write(writing, b"lost")
    os.close(writing)
