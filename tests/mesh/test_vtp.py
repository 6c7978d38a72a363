"""VTP files: every encoding gives the same polygons; what is damaged is named."""

import numpy as np
import pytest

from flare.mesh.vtp import read_vtp
from flare.utils.errors import DataError
from tests.mesh.vtp_files import vtp

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
    assert [part.tolist() for part in np.split(found.corners, found.ends[:-1])] == POLYGONS
    for name, values in FIELDS.items():
        np.testing.assert_array_equal(found.fields[name], values)


def test_only_the_fields_that_are_asked_for_are_read(tmp_path):
    path = written(tmp_path / "a.vtp", vtp(POINTS, POLYGONS, FIELDS))
    assert list(read_vtp(path, ["tau"]).fields) == ["tau"]
    assert read_vtp(path).fields == {}


def test_centres_are_means_of_corners_and_areas_have_the_direction_of_the_normal(car):
    np.testing.assert_allclose(car.centres()[0], [1, 0.5, 0])
    np.testing.assert_allclose(car.centres()[3], POINTS[POLYGONS[3]].mean(axis=0))
    np.testing.assert_allclose(car.area_vectors(), [[0, 0, 2], [3, 0, 0], [0, 0, 1], [0, 0, 3]], atol=1e-12)


def test_some_polygons_are_those_of_the_whole(car):
    chosen = np.array([3, 0, 2])
    some = car.select(chosen)
    assert len(some) == 3
    np.testing.assert_array_equal(some.centres(), car.centres()[chosen])
    np.testing.assert_array_equal(some.area_vectors(), car.area_vectors()[chosen])
    np.testing.assert_array_equal(some.fields["p"], FIELDS["p"][chosen])
    assert car.select(np.array([], dtype=int)).centres().shape == (0, 3)


def test_pieces_are_put_together(tmp_path):
    text = vtp(POINTS, POLYGONS, FIELDS, form="ascii").decode()
    piece = text[text.index("<Piece") : text.index("</PolyData>")]
    found = read_vtp(written(tmp_path / "a.vtp", text.replace(piece, piece + piece).encode()), ["p"])
    assert len(found) == 8
    np.testing.assert_array_equal(found.centres()[4:], found.centres()[:4])
    assert found.corners.max() == 13


@pytest.mark.parametrize("length", [10, 300, 700, -60, -30])
@pytest.mark.parametrize("how", [{"form": "appended"}, {"form": "appended", "raw": False}, {"form": "binary"}])
def test_a_file_cut_short_is_damaged(length, how, tmp_path):
    content = vtp(POINTS, POLYGONS, FIELDS, **how)
    with pytest.raises(DataError, match=r"a\.vtp"):
        read_vtp(written(tmp_path / "a.vtp", content[: length if length > 0 else len(content) + length - 20]), FIELDS)


def test_what_is_wrong_is_said(tmp_path):
    path, good = tmp_path / "a.vtp", vtp(POINTS, POLYGONS, FIELDS, form="ascii")
    for content, message in (
        (b"", "it is empty"),
        (b"solid cube", "damaged or no VTP file"),
        (good.replace(b"PolyData", b"UnstructuredGrid"), "it holds UnstructuredGrid; PolyData is expected"),
        (good.replace(b'NumberOfLines="0"', b'NumberOfLines="2"'), "lines or strips"),
        (good.replace(b'NumberOfPolys="4"', b'NumberOfPolys="5"'), "not of 7 points and 5 polygons"),
        (vtp(POINTS[:6], POLYGONS, FIELDS), "name points 0 to 6, but there are 6"),
        (vtp(POINTS, [*POLYGONS[:3], [0, 1]], FIELDS), "do not fit their list of corners"),
        (good.replace(b"<VTKFile ", b'<VTKFile compressor="vtkLZ4DataCompressor" '), "packed by vtkLZ4DataCompressor"),
    ):
        with pytest.raises(DataError, match=message):
            read_vtp(written(path, content), ["p"])
    with pytest.raises(DataError, match="no cell field 'q'; it has p, tau"):
        read_vtp(written(path, good), ["q"])
    with pytest.raises(DataError, match="cannot be read: No such file"):
        read_vtp(tmp_path / "b.vtp")
