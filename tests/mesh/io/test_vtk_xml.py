"""VTK XML files come back bit for bit in every encoding; damaged and malicious files are rejected."""

import base64
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest

from flare.mesh import Mesh
from flare.mesh.io import ReadLimits, vtk_xml
from flare.mesh.io.vtk_xml import read_vtp, read_vtu, write_pvd, write_vtu
from flare.mesh.octree import merged
from flare.mesh.topology import area_vectors, extract_cells
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError, TooLarge
from tests.mesh.io.vtp_files import vtp


def mixed():
    """A hexahedron, a tetrahedron and a triangle, with fields of many types."""
    rng = np.random.default_rng(0)
    return Mesh(
        points=rng.normal(size=(12, 3)),
        connectivity=np.array([*range(8), 0, 1, 2, 9, 9, 10, 11], dtype=np.int32),
        offsets=np.array([8, 12, 15], dtype=np.int32),
        cell_types=np.array([12, 10, 5], dtype=np.uint8),
        point_data={"p": rng.normal(size=12).astype(np.float32), "v": rng.normal(size=(12, 3)), "id": np.arange(12)},
        cell_data={"material": np.array([3, 1, 2], dtype=np.int16), "odd <&> name": np.array([0.0, -0.0, np.nan])},
        field_data={"speed": np.array([30.5])},
    )


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_everything_comes_back_bit_for_bit(tmp_path):
    grid = mixed()
    write_vtu(tmp_path / "a.vtu", grid)
    again = read_vtu(tmp_path / "a.vtu")
    for name in ("points", "connectivity", "offsets", "cell_types"):
        assert same(getattr(grid, name), getattr(again, name)), name
    for name in ("point_data", "cell_data", "field_data"):
        mine, theirs = getattr(grid, name), getattr(again, name)
        assert list(mine) == list(theirs)
        assert all(same(mine[key], theirs[key]) for key in mine)
    assert again.cells["tetra"].tolist() == [[0, 1, 2, 9]]


def test_other_programs_agree(tmp_path):
    meshio = pytest.importorskip("meshio")
    triangle = meshio.Mesh(np.eye(3), [("triangle", [[0, 1, 2]])], point_data={"p": np.arange(3.0)})
    for binary, compression in ((True, "zlib"), (True, None), (True, "lzma"), (False, None)):
        meshio.vtu.write(tmp_path / "b.vtu", triangle, binary=binary, compression=compression)
        again = read_vtu(tmp_path / "b.vtu")
        np.testing.assert_array_equal(again.points, np.eye(3))
        np.testing.assert_array_equal(again.point_data["p"], [0, 1, 2])


def text(points=3, cells=1, array="0 0 0 1 0 0 0 1 0", head="", compressor="", form="ascii", types="5"):
    return (
        f'<?xml version="1.0"?>{head}<VTKFile type="UnstructuredGrid" header_type="UInt64"{compressor}>'
        f'<UnstructuredGrid><Piece NumberOfPoints="{points}" NumberOfCells="{cells}"><Points>'
        f'<DataArray type="Float64" NumberOfComponents="3" format="{form}">{array}</DataArray></Points><Cells>'
        '<DataArray type="Int64" Name="connectivity" format="ascii">0 1 2</DataArray>'
        '<DataArray type="Int64" Name="offsets" format="ascii">3</DataArray>'
        f'<DataArray type="UInt8" Name="types" format="ascii">{types}</DataArray></Cells></Piece></UnstructuredGrid>'
        "</VTKFile>"
    ).encode()


def packed(declared, content):
    block = zlib.compress(content)
    header = np.array([1, declared, 0, len(block)], dtype="<u8").tobytes()
    return (base64.b64encode(header) + base64.b64encode(block)).decode()


def words(codes, form="ascii"):
    array = f'<Array type="String" Name="note" format="{form}">{codes}</Array>'
    return text().replace(b"<Piece ", f"<FieldData>{array}</FieldData><Piece ".encode())


ZLIB = ' compressor="vtkZLibDataCompressor"'


@pytest.mark.parametrize(
    "content",
    [
        text(points=4),
        text(points=-1),
        text(points="many"),
        text(array="0 0 0 1 0 0 0 1 zero"),
        text(types="42"),
        text(points=1, array="0 0 0"),
        text(head="<!DOCTYPE a [<!ENTITY b 'bomb'>]>", array="&b;"),
        text(array="<a/>" * 20_001),
        text(compressor=ZLIB, form="binary", array=packed(72, bytes(10**6))),
        text().replace(b"UInt64", b"Float64"),
        text().replace(b"UnstructuredGrid", b"PolyData"),
        words("104 eleven 0"),
        words("255 254 0"),
        words("0 " * 6000 + "104 " * 6000),
        words("AAAA", "binary"),
        words("", "appended"),
        words("", "odd"),
        b"",
    ],
)
def test_an_invalid_grid_is_rejected_with_its_name(content, tmp_path):
    (tmp_path / "a.vtu").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.vtu"):
        read_vtu(tmp_path / "a.vtu")


def test_limits_are_checked_before_anything_is_unpacked(tmp_path):
    path = tmp_path / "a.vtu"
    path.write_bytes(text(points=10**12))
    with pytest.raises(TooLarge, match=r"a\.vtu.*1,000,000,000,000"):
        read_vtu(path, ReadLimits(points=1000, bytes=10**6))
    path.write_bytes(text(compressor=ZLIB, form="binary", array=packed(10**12, bytes(10**6))))
    with pytest.raises(TooLarge):
        read_vtu(path, ReadLimits(points=1000, bytes=10**6))


def test_damaged_bytes_raise_only_data_errors(tmp_path):
    """Damaged copies: each is read, or refused with a message."""
    write_vtu(tmp_path / "a.vtu", mixed())
    good, rng, path = (tmp_path / "a.vtu").read_bytes(), np.random.default_rng(0), tmp_path / "b.vtu"
    refused = 0
    for _ in range(200):
        bad = bytearray(good)
        for place in rng.integers(0, len(bad), rng.integers(1, 4)):
            bad[place] = rng.integers(0, 256)
        path.write_bytes(bad[: rng.integers(1, len(bad))] if rng.random() < 0.3 else bad)
        try:
            read_vtu(path, ReadLimits(points=1000, bytes=10**6))
        except DataError:
            refused += 1
    assert refused > 100


WORDS = ["speed=m/min", "power=kW", "", "heat=°C"]


@pytest.mark.parametrize("form", ["ascii", "binary", "appended", "raw", "ours"])
@pytest.mark.parametrize("compressed", [True, False])
def test_strings_of_the_whole_mesh_are_read_in_every_encoding(form, compressed, tmp_path):
    pv = pytest.importorskip("pyvista")
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

    path = tmp_path / "a.vtu"
    if form == "ours":
        write_vtu(path, mixed().with_data(field_data={"units": np.array(WORDS)}))
    else:
        mesh = pv.Sphere(theta_resolution=4, phi_resolution=4).cast_to_unstructured_grid()
        mesh.field_data["speed"] = np.array([30.5])
        words = pv._vtk.vtkStringArray()
        words.SetName("units")
        for word in WORDS:
            words.InsertNextValue(word)
        mesh.GetFieldData().AddArray(words)
        writer = vtkXMLUnstructuredGridWriter()
        writer.SetInputData(mesh)
        writer.SetFileName(str(path))
        writer.SetDataMode({"ascii": 0, "binary": 1}.get(form, 2))
        writer.SetEncodeAppendedData(form == "appended")
        if not compressed:
            writer.SetCompressorTypeToNone()
        writer.Write()
    grid = read_vtu(path)
    assert grid.field_data["units"].tolist() == WORDS
    assert grid.units == {"speed": "m/min", "power": "kW", "heat": "°C"}
    assert list(grid.parameters) == ["speed"]
    write_vtu(tmp_path / "b.vtu", grid)
    assert read_vtu(tmp_path / "b.vtu").field_data["units"].tolist() == WORDS


# ---- writing ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def octree():
    solid = np.ones((9, 8, 7), dtype=bool)
    solid[3:, 2:5, 4:] = False
    return merged(Voxels(solid, (0.5, 0.4, 0.6), (-2.25, -1.6, 0.0)))


@pytest.mark.parametrize("block", [1 << 20, 1000, 64], ids=["one block", "many", "whole blocks"])
def test_meshio_reads_back_every_bit(octree, tmp_path, monkeypatch, block):
    monkeypatch.setattr(vtk_xml, "BLOCK", block)
    rng = np.random.default_rng(0)
    n, e = len(octree.points), len(octree.hexahedra)
    at_points = {
        "displacement": rng.standard_normal((n, 3)),
        'temperature <°C> & "more"': rng.standard_normal(n).astype(np.float32),
        "with nan": np.where(np.arange(n) % 7, 1.0, np.nan),
    }
    in_cells = {
        "stress": rng.standard_normal((e, 6)),
        "size": octree.sizes,
        "group": rng.integers(0, 5, e).astype(np.int32),
        "kept": rng.random(e) < 0.5,
    }
    write_vtu(tmp_path / "part.vtu", octree.to_mesh().with_data(point_data=at_points, cell_data=in_cells))
    meshio = pytest.importorskip("meshio")
    read = meshio.read(tmp_path / "part.vtu")
    np.testing.assert_array_equal(read.points, octree.points)
    assert [cells.type for cells in read.cells] == ["hexahedron"]
    np.testing.assert_array_equal(read.cells[0].data, octree.hexahedra)
    assert set(read.point_data) == set(at_points)
    for name, values in at_points.items():
        np.testing.assert_array_equal(read.point_data[name], values)
        assert read.point_data[name].dtype == values.dtype
    for name, values in in_cells.items():
        np.testing.assert_array_equal(read.cell_data[name][0], values)
    assert [p.name for p in tmp_path.iterdir()] == ["part.vtu"]


def test_components_are_named_because_their_order_is_not_that_of_vtk(octree, tmp_path):
    n = len(octree.points)
    fields = {"u": np.zeros((n, 3)), "stress": np.zeros((n, 6)), "T": np.zeros(n), "two": np.zeros((n, 2))}
    write_vtu(tmp_path / "part.vtu", octree.to_mesh().with_data(point_data=fields))
    arrays = {array.get("Name"): array.attrib for array in ET.parse(tmp_path / "part.vtu").iter("DataArray")}
    assert [arrays["stress"][f"ComponentName{i}"] for i in range(6)] == ["XX", "YY", "ZZ", "YZ", "XZ", "XY"]
    assert [arrays["u"][f"ComponentName{i}"] for i in range(3)] == ["X", "Y", "Z"]
    assert not any("ComponentName0" in arrays[name] for name in ("T", "two", "connectivity"))


def test_a_series_names_its_files_in_time_order_relative_to_itself(octree, tmp_path):
    for n in range(3):
        write_vtu(tmp_path / "steps" / f"{n}.vtu", octree.to_mesh())
    times = {20.5: tmp_path / "steps/1.vtu", 0.1: tmp_path / "steps/0.vtu", 1e6: "steps/2.vtu"}
    write_pvd(tmp_path / "build.pvd", times)
    sets = ET.parse(tmp_path / "build.pvd").getroot().findall("Collection/DataSet")
    assert [float(s.attrib["timestep"]) for s in sets] == [0.1, 20.5, 1e6]
    assert [s.attrib["file"] for s in sets] == ["steps/0.vtu", "steps/1.vtu", "steps/2.vtu"]
    for s in sets:
        assert len(pytest.importorskip("meshio").read(tmp_path / s.attrib["file"]).points) == len(octree.points)


def test_invalid_arrays_are_rejected_and_no_file_is_left(octree, tmp_path):
    mesh = octree.to_mesh()
    rows = len(mesh.points)
    for data, fact in (
        ({"point_data": {"u": np.zeros(3)}}, r"'u' .*\(3,\)"),
        ({"cell_data": {"s": np.zeros(rows)}}, "'s'"),
        ({"point_data": {"c": np.zeros(rows, dtype=complex)}}, "'c' .*complex128"),
    ):
        with pytest.raises(DataError, match=fact):
            write_vtu(tmp_path / "a.vtu", mesh.with_data(**data))
    with pytest.raises(DataError, match=r"\(cells, 8\)"):
        Mesh.from_cells(octree.points, {"hexahedron": octree.hexahedra[:, :4]})
    with pytest.raises(DataError, match="hexahedron"):
        Mesh.from_cells(octree.points[:5], {"hexahedron": octree.hexahedra})
    assert list(tmp_path.iterdir()) == []


# ---- polygons --------------------------------------------------------------------------------------------------------

POINTS = np.array([[0, 0, 0], [2, 0, 0], [2, 1, 0], [0, 1, 0], [0, 1, 3], [0, 0, 3], [1, 2, 0]], dtype=np.float32)
POLYGONS = [[0, 1, 2, 3], [0, 3, 4, 5], [3, 2, 6], [0, 1, 2, 6, 3]]
FIELDS = {"p": np.array([1.5, -2.0, 3.25, 4.0], dtype=np.float32), "tau": np.arange(12.0).reshape(4, 3)}

FORMS = [
    {"form": "ascii"},
    {"form": "binary"},
    {"form": "binary", "joined": False},
    {"form": "binary", "header": "u4"},
    {"form": "binary", "header": "u4", "joined": False},
    {"form": "binary", "packer": "vtkZLibDataCompressor"},
    {"form": "appended"},
    {"form": "appended", "order": ">"},
    {"form": "appended", "header": "u4", "packer": "vtkZLibDataCompressor"},
    {"form": "appended", "packer": "vtkLZMADataCompressor"},
    {"form": "appended", "packer": "vtkZLibDataCompressor", "block": 16},
    {"form": "appended", "raw": False},
    {"form": "appended", "raw": False, "header": "u4", "joined": False},
    {"form": "appended", "raw": False, "packer": "vtkZLibDataCompressor"},
]


def written(path, content):
    path.write_bytes(content)
    return path


@pytest.fixture
def car(tmp_path):
    return read_vtp(written(tmp_path / "a.vtp", vtp(POINTS, POLYGONS, FIELDS)), FIELDS)


@pytest.mark.parametrize("how", FORMS, ids=lambda how: " ".join(str(v) for v in how.values()))
def test_every_encoding_gives_the_same(how, tmp_path):
    found = read_vtp(written(tmp_path / "a.vtp", vtp(POINTS, POLYGONS, FIELDS, **how)), ["p", "tau"])
    np.testing.assert_array_equal(found.points, POINTS)
    assert [part.tolist() for part in np.split(found.connectivity, found.offsets[:-1])] == POLYGONS
    for name, values in FIELDS.items():
        np.testing.assert_array_equal(found.cell_data[name], values)


def test_centers_are_means_of_corners_and_areas_point_along_the_normal(car):
    np.testing.assert_allclose(car.cell_centers()[0], [1, 0.5, 0])
    np.testing.assert_allclose(car.cell_centers()[3], POINTS[POLYGONS[3]].mean(axis=0))
    np.testing.assert_allclose(area_vectors(car), [[0, 0, 2], [3, 0, 0], [0, 0, 1], [0, 0, 3]], atol=1e-12)


def test_selected_polygons_are_those_of_the_whole(car):
    chosen = np.array([3, 0, 2])
    some = extract_cells(car, chosen)
    assert some.cell_count == 3
    np.testing.assert_array_equal(some.cell_centers(), car.cell_centers()[chosen])
    np.testing.assert_array_equal(area_vectors(some), area_vectors(car)[chosen])
    np.testing.assert_array_equal(some.cell_data["p"], FIELDS["p"][chosen])
    assert extract_cells(car, np.array([], dtype=int)).cell_centers().shape == (0, 3)


@pytest.mark.parametrize("length", [300, -60, -30])
@pytest.mark.parametrize("how", [{"form": "appended"}, {"form": "appended", "raw": False}, {"form": "binary"}])
def test_a_truncated_file_is_rejected(length, how, tmp_path):
    content = vtp(POINTS, POLYGONS, FIELDS, **how)
    with pytest.raises(DataError, match=r"a\.vtp"):
        read_vtp(written(tmp_path / "a.vtp", content[: length if length > 0 else len(content) + length - 20]), FIELDS)


def test_an_invalid_surface_is_rejected_with_its_name(tmp_path):
    path, good = tmp_path / "a.vtp", vtp(POINTS, POLYGONS, FIELDS, form="ascii")
    for content in (
        b"",
        b"solid cube",
        good.replace(b"PolyData", b"UnstructuredGrid"),
        good.replace(b'NumberOfLines="0"', b'NumberOfLines="2"'),
        good.replace(b'NumberOfPolys="4"', b'NumberOfPolys="5"'),
        vtp(POINTS[:6], POLYGONS, FIELDS),
        good.replace(b"<VTKFile ", b'<VTKFile compressor="vtkLZ4DataCompressor" '),
    ):
        with pytest.raises(DataError, match=r"a\.vtp"):
            read_vtp(written(path, content), ["p"])
    assert read_vtp(written(path, good), ["tau"]).cell_data.keys() == {"tau"}  # only requested fields are read
    with pytest.raises(DataError, match="'q'"):
        read_vtp(written(path, good), ["q"])
    with pytest.raises(DataError, match=r"b\.vtp"):
        read_vtp(tmp_path / "b.vtp")
