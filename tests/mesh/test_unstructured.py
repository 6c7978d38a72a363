"""VTU files come back bit for bit; bombs and damage are refused with a message, whatever is done to the bytes."""

import base64
import zlib

import numpy as np
import pytest

from flare.data.importing.meshed import grid_case
from flare.mesh.unstructured import Grid, read_grid, surface_grid, write_grid
from flare.utils.errors import DataError, TooLarge


def mixed():
    """A hexahedron, a tetrahedron and a triangle, with fields of many types."""
    rng = np.random.default_rng(0)
    return Grid(
        points=rng.normal(size=(12, 3)),
        corners=np.array([*range(8), 0, 1, 2, 9, 9, 10, 11], dtype=np.int32),
        ends=np.array([8, 12, 15], dtype=np.int32),
        types=np.array([12, 10, 5], dtype=np.uint8),
        point_fields={"p": rng.normal(size=12).astype(np.float32), "v": rng.normal(size=(12, 3)), "id": np.arange(12)},
        cell_fields={"material": np.array([3, 1, 2], dtype=np.int16), "odd <&> name": np.array([0.0, -0.0, np.nan])},
        values={"speed": np.array([30.5])},
    )


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_everything_comes_back_bit_for_bit(tmp_path):
    grid = mixed()
    write_grid(tmp_path / "a.vtu", grid)
    again = read_grid(tmp_path / "a.vtu")
    for name in ("points", "corners", "ends", "types"):
        assert same(getattr(grid, name), getattr(again, name)), name
    for name in ("point_fields", "cell_fields", "values"):
        mine, theirs = getattr(grid, name), getattr(again, name)
        assert list(mine) == list(theirs)
        assert all(same(mine[key], theirs[key]) for key in mine)
    assert again.cells(10, 4).tolist() == [[0, 1, 2, 9]]


def test_added_fields_leave_the_others_alone(tmp_path):
    grid = mixed()
    write_grid(tmp_path / "a.vtu", grid.with_fields({"stress": np.ones(12, np.float32)}))
    again = read_grid(tmp_path / "a.vtu")
    assert list(again.point_fields) == ["p", "v", "id", "stress"]
    assert same(again.points, grid.points)


def test_other_programs_agree(tmp_path):
    meshio = pytest.importorskip("meshio")
    square = surface_grid(np.eye(3), np.array([[0, 1, 2]])).with_fields({"p": np.arange(3.0)})
    write_grid(tmp_path / "a.vtu", square)
    read = meshio.read(tmp_path / "a.vtu")
    assert read.cells_dict["triangle"].tolist() == [[0, 1, 2]]
    assert read.point_data["p"].tolist() == [0, 1, 2]
    for binary, compression in ((True, "zlib"), (True, None), (True, "lzma"), (False, None)):
        meshio.vtu.write(tmp_path / "b.vtu", read, binary=binary, compression=compression)
        again = read_grid(tmp_path / "b.vtu")
        np.testing.assert_array_equal(again.points, np.eye(3))
        np.testing.assert_array_equal(again.point_fields["p"], [0, 1, 2])


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


ZLIB = ' compressor="vtkZLibDataCompressor"'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (text(points=4), "not of 4 points and 1 cells"),
        (text(points=-1), "declares -1 points"),
        (text(points="many"), "damaged or no VTU file"),
        (text(array="0 0 0 1 0 0 0 1 zero"), "a word that is no number"),
        (text(types="42"), "polyhedra"),
        (text(points=1, array="0 0 0"), "name points 0 to 2, but there are 1"),
        (text(head="<!DOCTYPE a [<!ENTITY b 'bomb'>]>", array="&b;"), "declares a document type"),
        (text(array="<a/>" * 20_001), "elements of XML"),
        (text(compressor=ZLIB, form="binary", array=packed(72, bytes(10**6))), "other than the 72 bytes it declares"),
        (text().replace(b"UInt64", b"Float64"), "damaged or no VTU file"),
        (text().replace(b"UnstructuredGrid", b"PolyData"), "it holds PolyData"),
        (b"", "it is empty"),
    ],
)
def test_what_is_wrong_is_said(content, message, tmp_path):
    (tmp_path / "a.vtu").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_grid(tmp_path / "a.vtu")


def test_more_than_is_accepted_is_refused_before_it_is_unpacked(tmp_path):
    path = tmp_path / "a.vtu"
    path.write_bytes(text(points=10**12))
    with pytest.raises(TooLarge, match="1,000,000,000,000 points; 1,000 are accepted"):
        read_grid(path, most_points=1000)
    path.write_bytes(text(compressor=ZLIB, form="binary", array=packed(10**12, bytes(10**6))))
    with pytest.raises(TooLarge, match="more than are accepted"):
        read_grid(path, most_bytes=10**6)


def test_no_change_of_a_byte_brings_another_error_than_ours(tmp_path):
    """A thousand damaged copies: each is read, or refused with a message."""
    write_grid(tmp_path / "a.vtu", mixed())
    good, rng, path = (tmp_path / "a.vtu").read_bytes(), np.random.default_rng(0), tmp_path / "b.vtu"
    refused = 0
    for _ in range(1000):
        bad = bytearray(good)
        for place in rng.integers(0, len(bad), rng.integers(1, 4)):
            bad[place] = rng.integers(0, 256)
        path.write_bytes(bad[: rng.integers(1, len(bad))] if rng.random() < 0.3 else bad)
        try:
            read_grid(path, most_points=1000, most_bytes=10**6)
        except DataError:
            refused += 1
    assert refused > 500


def test_a_field_of_that_name_is_never_lost():
    grid = mixed()
    for words in ({"point_fields": {"p": np.ones(12)}}, {"cell_fields": dict.fromkeys(grid.cell_fields, 0)}):
        with pytest.raises(DataError, match="already; rename it, so that it is not lost"):
            grid.with_fields(**words)


WORDS = ["speed=m/min", "power=kW", "", "heat=°C"]


@pytest.mark.parametrize("form", ["ascii", "binary", "appended", "raw", "ours"])
@pytest.mark.parametrize("compressed", [True, False])
def test_words_of_the_whole_mesh_are_read_however_they_are_written(form, compressed, tmp_path):
    pv = pytest.importorskip("pyvista")
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

    path = tmp_path / "a.vtu"
    if form == "ours":
        write_grid(path, mixed().with_fields(values={"units": np.array(WORDS)}))
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
    grid = read_grid(path)
    assert grid.values["units"].tolist() == WORDS
    case = grid_case(grid, "a.vtu")
    assert case.units == {"speed": "m/min", "power": "kW", "heat": "°C"}
    assert list(case.parameters) == ["speed"]
    write_grid(tmp_path / "b.vtu", grid)
    assert read_grid(tmp_path / "b.vtu").values["units"].tolist() == WORDS


def words(codes, form="ascii"):
    array = f'<Array type="String" Name="note" format="{form}">{codes}</Array>'
    return text().replace(b"<Piece ", f"<FieldData>{array}</FieldData><Piece ".encode())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (words("104 300 0"), "'note' of text holds a code that is no byte"),
        (words("104 eleven 0"), "a word that is no number"),
        (words("255 254 0"), "'note' holds text that is no UTF-8"),
        (words("0 " * 6000 + "104 " * 6000), "'note' of text is too long"),
        (words("AAAA", "binary"), "damaged|ends early"),
        (words("", "appended"), "damaged"),
        (words("", "odd"), "unknown format 'odd'"),
    ],
)
def test_damaged_words_are_refused(content, message, tmp_path):
    (tmp_path / "a.vtu").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_grid(tmp_path / "a.vtu")
