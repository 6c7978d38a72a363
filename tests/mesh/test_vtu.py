"""VTU and PVD files: read back by meshio to the last bit, and what is refused."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import meshio
import numpy as np
import pytest

from flare.mesh import vtu
from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.mesh.vtu import write_pvd, write_vtu
from flare.utils.errors import DataError


@pytest.fixture
def mesh():
    solid = np.ones((9, 8, 7), dtype=bool)
    solid[3:, 2:5, 4:] = False
    return merged(Voxels(solid, (0.5, 0.4, 0.6), (-2.25, -1.6, 0.0)))


@pytest.mark.parametrize("block", [1 << 20, 1000, 64], ids=["one block", "many", "whole blocks"])
def test_meshio_reads_back_every_bit(mesh, tmp_path, monkeypatch, block):
    monkeypatch.setattr(vtu, "BLOCK", block)
    rng = np.random.default_rng(0)
    n, e = len(mesh.points), len(mesh.hexahedra)
    at_points = {
        "displacement": rng.standard_normal((n, 3)),
        'temperature <°C> & "more"': rng.standard_normal(n).astype(np.float32),
        "with nan": np.where(np.arange(n) % 7, 1.0, np.nan),
    }
    in_cells = {
        "stress": rng.standard_normal((e, 6)),
        "size": mesh.sizes,
        "group": rng.integers(0, 5, e).astype(np.int32),
        "kept": rng.random(e) < 0.5,
    }
    write_vtu(tmp_path / "part.vtu", mesh.points, mesh.hexahedra, point_fields=at_points, cell_fields=in_cells)
    read = meshio.read(tmp_path / "part.vtu")
    np.testing.assert_array_equal(read.points, mesh.points)
    assert [cells.type for cells in read.cells] == ["hexahedron"]
    np.testing.assert_array_equal(read.cells[0].data, mesh.hexahedra)
    assert set(read.point_data) == set(at_points)
    for name, values in at_points.items():
        np.testing.assert_array_equal(read.point_data[name], values)
        assert read.point_data[name].dtype == values.dtype
    for name, values in in_cells.items():
        np.testing.assert_array_equal(read.cell_data[name][0], values)
    assert [p.name for p in tmp_path.iterdir()] == ["part.vtu"]


def test_components_are_named_since_their_order_is_not_vtks(mesh, tmp_path):
    n = len(mesh.points)
    fields = {"u": np.zeros((n, 3)), "stress": np.zeros((n, 6)), "T": np.zeros(n), "two": np.zeros((n, 2))}
    write_vtu(tmp_path / "part.vtu", mesh.points, mesh.hexahedra, point_fields=fields)
    arrays = {array.get("Name"): array.attrib for array in ET.parse(tmp_path / "part.vtu").iter("DataArray")}
    assert [arrays["stress"][f"ComponentName{i}"] for i in range(6)] == ["XX", "YY", "ZZ", "YZ", "XZ", "XY"]
    assert [arrays["u"][f"ComponentName{i}"] for i in range(3)] == ["X", "Y", "Z"]
    assert not any("ComponentName0" in arrays[name] for name in ("T", "two", "connectivity"))


def test_a_file_is_smaller_than_its_numbers(mesh, tmp_path):
    write_vtu(tmp_path / "part.vtu", mesh.points, mesh.hexahedra)
    assert (tmp_path / "part.vtu").stat().st_size < (mesh.points.nbytes + mesh.hexahedra.nbytes) / 3


def test_a_series_names_its_files_in_time_order_relative_to_itself(mesh, tmp_path):
    for n in range(3):
        write_vtu(tmp_path / "steps" / f"{n}.vtu", mesh.points, mesh.hexahedra)
    times = {20.5: tmp_path / "steps/1.vtu", 0.1: tmp_path / "steps/0.vtu", 1e6: "steps/2.vtu"}
    write_pvd(tmp_path / "build.pvd", times)
    sets = ET.parse(tmp_path / "build.pvd").getroot().findall("Collection/DataSet")
    assert [float(s.attrib["timestep"]) for s in sets] == [0.1, 20.5, 1e6]
    assert [s.attrib["file"] for s in sets] == ["steps/0.vtu", "steps/1.vtu", "steps/2.vtu"]
    for s in sets:
        assert len(meshio.read(tmp_path / s.attrib["file"]).points) == len(mesh.points)


def test_fields_that_do_not_fit_are_refused_and_nothing_is_left(mesh, tmp_path):
    points, cells = mesh.points, mesh.hexahedra
    with pytest.raises(DataError, match=r"field 'u' has shape \(3,\); there are"):
        write_vtu(tmp_path / "a.vtu", points, cells, point_fields={"u": np.zeros(3)})
    with pytest.raises(DataError, match=r"'s' has shape .* hexahedra"):
        write_vtu(tmp_path / "a.vtu", points, cells, cell_fields={"s": np.zeros(len(points))})
    with pytest.raises(DataError, match="has type complex128"):
        write_vtu(tmp_path / "a.vtu", points, cells, point_fields={"c": np.zeros(len(points), dtype=complex)})
    with pytest.raises(DataError, match=r"give \(N, 3\) and \(E, 8\)"):
        write_vtu(tmp_path / "a.vtu", points[:, :2], cells)
    with pytest.raises(DataError, match="hexahedra name points"):
        write_vtu(tmp_path / "a.vtu", points[:5], cells)
    assert list(tmp_path.iterdir()) == []
