"""Files of other programs come back bit for bit, with only the new data added."""

import numpy as np
import pytest

from flare.mesh import read_mesh
from flare.mesh.io.vtk_library import from_pyvista
from flare.utils.errors import DataError
from flare.utils.files import create_file
from tests.factory import content
from tests.mesh.io.simulation_files import AT_CELLS, AT_POINTS, CELLS, POINTS, write_cgns, write_exodus
from tests.meshes import plate, pv, same


def sphere():
    ball = pv.Sphere(theta_resolution=8, phi_resolution=8)
    ball.point_data["heat"] = np.linspace(0, 1, ball.n_points)
    return ball


def image():
    box = pv.ImageData(dimensions=(4, 3, 2), spacing=(0.1, 0.2, 0.3))
    box.cell_data["p"] = np.arange(box.n_cells, dtype=np.float32)
    return box


@pytest.mark.parametrize(
    ("make", "suffix"),
    [
        (lambda: plate(3), ".vtu"),
        (sphere, ".vtp"),
        (image, ".vti"),
        (lambda: image().cast_to_rectilinear_grid(), ".vtr"),
        (lambda: image().cast_to_structured_grid(), ".vts"),
        (lambda: plate(0), ".vtk"),
        (sphere, ".vtk"),
        (image, ".vtk"),
    ],
)
def test_a_saved_mesh_has_everything_that_was_read_bit_for_bit(tmp_path, make, suffix):
    make().save(tmp_path / f"a{suffix}")
    mesh = read_mesh(tmp_path / f"a{suffix}")
    new = np.arange(len(mesh.points), dtype=np.float32)
    mesh.with_data(point_data={"new": new}).save(tmp_path / f"b{suffix}")
    again = pv.read(tmp_path / f"b{suffix}")
    same(pv.read(tmp_path / f"a{suffix}"), again, added={"new"})
    np.testing.assert_array_equal(again.point_data["new"], new)


def test_blocks_are_end_to_end_and_stay_blocks(tmp_path):
    pv.MultiBlock({"left": plate(0), "empty": None, "right": plate(1)}).save(tmp_path / "a.vtm")
    mesh = read_mesh(tmp_path / "a.vtm")
    assert len(mesh.points) == plate(0).n_points + plate(1).n_points
    new = np.arange(len(mesh.points), dtype=np.float32)
    mesh.with_data(point_data={"new": new}).save(tmp_path / "b.vtm")
    again = pv.read(tmp_path / "b.vtm")
    assert again.keys() == ["left", "empty", "right"]
    assert again["empty"] is None
    np.testing.assert_array_equal(np.concatenate([again[i].point_data["new"] for i in (0, 2)]), new)
    same(pv.read(tmp_path / "a.vtm")["right"], again["right"], added={"new"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a.vtm", "b", "b.vtm"]


def test_cells_by_type_with_their_corners(tmp_path):
    mesh = from_pyvista(image())
    assert list(mesh.cells) == ["hexahedron"]
    first = mesh.points[mesh.cells["hexahedron"][0]]
    volume = np.linalg.det([first[1] - first[0], first[3] - first[0], first[4] - first[0]])
    assert volume == pytest.approx(0.1 * 0.2 * 0.3)  # corners in the order of a hexahedron, not of a voxel
    assert {kind: len(cells) for kind, cells in from_pyvista(plate(0)).cells.items()} == {"triangle": 100, "quad": 50}


def test_a_linear_field_is_the_same_at_centres_however_it_gets_there():
    mesh = from_pyvista(image())
    plane = mesh.points @ [1.0, -2.0, 3.0]
    np.testing.assert_allclose(mesh.to_cells(plane), mesh.cell_centers() @ [1.0, -2.0, 3.0], atol=1e-12)
    np.testing.assert_allclose(mesh.to_points(np.full(mesh.cell_count, 2.5)), 2.5)
    corner = mesh.to_points(mesh.cell_data["p"])
    assert corner[0] == mesh.cell_data["p"][0]  # of one cell only


def test_a_point_of_no_cell_has_no_average():
    mesh = pv.UnstructuredGrid(np.array([3, 0, 1, 2]), [5], np.eye(4, 3))
    mesh.cell_data["p"] = [1.0]
    found = from_pyvista(mesh, "a.vtu")
    with pytest.raises(DataError, match=r"a\.vtu.*1 of 4 points \(first: 3\)"):
        found.to_points(found.cell_data["p"])


@pytest.mark.parametrize("suffix", [".vtu", ".vtk", ".vtp", ".stl", ".msh", ".bdf", ".cgns", ".exo"])
@pytest.mark.parametrize("how", ["cut", "noise"])
def test_a_damaged_file_gives_one_clear_error(tmp_path, suffix, how, capfd):
    whole, data = tmp_path / f"whole{suffix}", b"$MeshFormat\n4.1 0 8\n$Nodes\n"
    writers = dict.fromkeys((".vtu", ".vtk"), plate(0).save) | dict.fromkeys((".vtp", ".stl"), sphere().save)
    writers |= {".cgns": write_cgns, ".exo": write_exodus}
    if suffix in writers:
        writers[suffix](whole)
        data = whole.read_bytes()
    damaged = tmp_path / f"damaged{suffix}"
    damaged.write_bytes(data[: len(data) // 2] if how == "cut" else bytes(range(256)) * 9)
    with pytest.raises(DataError, match=rf"damaged\{suffix}"):
        read_mesh(damaged)
    assert capfd.readouterr().err == ""


def test_unknown_formats_are_rejected_by_name(tmp_path):
    (tmp_path / "a.docx").write_text("")
    with pytest.raises(DataError, match=r"\.docx"):
        read_mesh(tmp_path / "a.docx")
    with pytest.raises(DataError, match=r"b\.vtu"):
        read_mesh(tmp_path / "b.vtu")
    with pytest.raises(DataError, match=r"a\.vtp.*\.vtu"):
        from_pyvista(plate(0)).save(tmp_path / "a.vtp")


def foam_case(case):
    """Two cubes side by side with a pressure each, at two times."""
    head = "FoamFile\n{{\n version 2.0;\n format ascii;\n class {};\n object {};\n}}\n"

    def write(path, kind, body):
        (case / path).parent.mkdir(parents=True, exist_ok=True)
        (case / path).write_text(head.format(kind, path.split("/")[-1]) + body)

    def listed(rows):
        return f"{len(rows)}\n(\n" + "\n".join(rows) + "\n)\n"

    def at(x, y, z):
        return x + 3 * y + 6 * z

    times = "startTime 0;\nendTime 2;\ndeltaT 1;\nwriteInterval 1;\nwriteFormat ascii;\n"
    write("system/controlDict", "dictionary", times)
    points = [f"({x} {y} {z})" for z in (0, 1) for y in (0, 1) for x in (0, 1, 2)]
    faces, owner = [[at(1, 0, 0), at(1, 1, 0), at(1, 1, 1), at(1, 0, 1)]], [0]
    for c in (0, 1):
        faces += [[at(c, 0, 0), at(c, 1, 0), at(c + 1, 1, 0), at(c + 1, 0, 0)]]
        faces += [[at(c, 0, 1), at(c + 1, 0, 1), at(c + 1, 1, 1), at(c, 1, 1)]]
        faces += [[at(c, 0, 0), at(c + 1, 0, 0), at(c + 1, 0, 1), at(c, 0, 1)]]
        faces += [[at(c, 1, 0), at(c, 1, 1), at(c + 1, 1, 1), at(c + 1, 1, 0)]]
        end = [at(2 * c, 0, 0), at(2 * c, 0, 1), at(2 * c, 1, 1), at(2 * c, 1, 0)]
        faces += [end if c == 0 else end[::-1]]
        owner += [c] * 5
    write("constant/polyMesh/points", "vectorField", listed(points))
    write("constant/polyMesh/faces", "faceList", listed([f"4({' '.join(map(str, f))})" for f in faces]))
    write("constant/polyMesh/owner", "labelList", listed(list(map(str, owner))))
    write("constant/polyMesh/neighbour", "labelList", listed(["1"]))
    wall = "1\n(\nw\n{\n type wall;\n nFaces 10;\n startFace 1;\n}\n)\n"
    write("constant/polyMesh/boundary", "polyBoundaryMesh", wall)
    for time, values in ((1, "0 0"), (2, "3.5 7.25")):
        body = f"dimensions [0 2 -2 0 0 0 0];\ninternalField nonuniform List<scalar> 2({values});\n"
        write(f"{time}/p", "volScalarField", body + "boundaryField\n{\n w\n {\n type zeroGradient;\n }\n}\n")
    return case


def test_an_openfoam_case_is_its_cells_at_the_last_time(tmp_path):
    case = foam_case(tmp_path / "case")
    (case / "case.foam").touch()
    mesh = read_mesh(case)
    for found in (mesh, read_mesh(case / "case.foam")):
        np.testing.assert_array_equal(found.cell_data["p"], np.float32([3.5, 7.25]))
    assert "p" not in mesh.point_data  # cell data is not averaged to points
    np.testing.assert_allclose(mesh.cell_centers()[:, 0], [0.5, 1.5])


def through_meshio(path, **how):
    import meshio

    fields = {"point_data": {"p": AT_POINTS}, "cell_data": {"q": [AT_CELLS]}}
    meshio.Mesh(POINTS, [("tetra", CELLS)], **fields).write(path, **how)


def tetrahedra(path):
    mesh = pv.UnstructuredGrid({pv.CellType.TETRA: CELLS}, POINTS)
    mesh.point_data["p"], mesh.cell_data["q"] = AT_POINTS, AT_CELLS
    pv.MultiBlock([mesh]).save(path) if path.suffix == ".vtm" else mesh.save(path)


def gmsh(path):
    through_meshio(path, file_format="gmsh")


def ansys(path):
    through_meshio(path, file_format="ansys")


WITH_FIELDS = [(suffix, tetrahedra) for suffix in (".vtu", ".vtk", ".vtm")]
WITH_FIELDS += [(suffix, write_exodus) for suffix in (".e", ".exo", ".ex2")]
WITH_FIELDS += [(".cgns", write_cgns), (".msh", gmsh), (".med", through_meshio)]
GEOMETRY_ONLY = [(suffix, through_meshio) for suffix in (".inp", ".bdf", ".nas", ".fem", ".mdpa", ".su2")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("suffix", "write"), [*WITH_FIELDS, *GEOMETRY_ONLY, (".msh", ansys)])
def test_files_of_other_programs_come_back_with_the_fields_that_meshio_or_vtk_read(tmp_path, suffix, write):
    write(tmp_path / f"a{suffix}")
    mesh = read_mesh(tmp_path / f"a{suffix}")
    np.testing.assert_allclose(mesh.points, POINTS)
    np.testing.assert_array_equal(mesh.cells["tetra"], CELLS)
    assert mesh.notes == () or (suffix, write) not in WITH_FIELDS
    if (suffix, write) in WITH_FIELDS:
        np.testing.assert_array_equal(mesh.point_data["p"], AT_POINTS)
        np.testing.assert_array_equal(mesh.cell_data["q"], AT_CELLS)
    else:
        assert not {"p", "q"} & {*mesh.point_data, *mesh.cell_data}  # should this fail, the page can promise more


@pytest.mark.parametrize("suffix", [".stl", ".ply", ".obj"])
def test_a_surface_file_is_its_triangles(tmp_path, suffix):
    import trimesh

    trimesh.creation.box((1.0, 2.0, 3.0)).export(tmp_path / f"a{suffix}")
    mesh = read_mesh(tmp_path / f"a{suffix}")
    a, b, c = np.moveaxis(mesh.points[mesh.cells["triangle"]].astype(float), 1, 0)
    assert np.einsum("ij,ij->", np.cross(a, b), c) / 6 == pytest.approx(6.0)  # the volume it encloses


@pytest.mark.parametrize(("write", "suffix"), [(write_cgns, ".cgns"), (write_exodus, ".e")])
def test_the_last_of_several_time_steps_is_read_with_a_note(tmp_path, write, suffix):
    write(tmp_path / f"a{suffix}", times=(0.0, 0.5, 2.0))
    mesh = read_mesh(tmp_path / f"a{suffix}")
    np.testing.assert_array_equal(mesh.point_data["p"], AT_POINTS)
    assert len(mesh.notes) == 1


def test_a_field_that_some_blocks_lack_is_nan_there(tmp_path):
    left, right = plate(0), plate(1)
    for name in ("pressure", "Wall Shear"):
        right.point_data.remove(name)
    pv.MultiBlock([left, right]).save(tmp_path / "a.vtm")
    mesh = read_mesh(tmp_path / "a.vtm")
    assert any("1 of 2" in note and "'pressure'" in note for note in mesh.notes)
    new = np.zeros(len(mesh.points), np.float32)
    mesh.with_data(point_data={"new": new}).save(tmp_path / "b.vtu")
    mesh.with_data(point_data={"new": new}).save(tmp_path / "b.vtm")
    whole = pv.read(tmp_path / "b.vtu")
    assert set(whole.point_data.keys()) == {"pressure", "Wall Shear", "new"}
    np.testing.assert_array_equal(whole.point_data["pressure"][: left.n_points], left.point_data["pressure"])
    assert np.isnan(whole.point_data["Wall Shear"][left.n_points :]).all()
    same(right, pv.read(tmp_path / "b.vtm")[1], added={"new"})  # blocks stay as they were


def blocks_with_field_data(path):
    """A root that knows the angle; blocks that agree on the speed, and on nothing else."""
    blocks = [plate(0), plate(0), plate(0)]
    for index, block in enumerate(blocks):
        block.field_data["layer"], block.field_data["title"] = [index], [f"block {index}"]
    blocks[1].field_data["load"] = [2.0]
    root = pv.MultiBlock(blocks)
    root.field_data["angle"] = [5.0]
    root.field_data["units"] = ["angle=deg"]
    root.save(path)
    return path


def test_field_data_of_blocks_is_that_of_the_whole_where_they_agree(tmp_path):
    mesh = read_mesh(blocks_with_field_data(tmp_path / "a.vtm"))
    assert {name: values.tolist() for name, values in mesh.parameters.items()} == {"angle": [5.0], "speed": [20.0]}
    assert mesh.units == {"angle": "deg"}
    assert list(mesh.field_data) == ["speed", "angle", "units"]
    assert ["'layer'" in mesh.notes[0], "'load'" in mesh.notes[1]] == [True, True]


@pytest.mark.parametrize(("left", "right"), [(["a", "b"], None), (["a", "b"], [1.0, 2.0]), ([[1.0, 2.0]], [1.0])])
def test_data_that_cannot_be_joined_over_all_blocks_is_dropped_with_a_note(left, right):
    blocks = [plate(0), plate(0)]
    for block, values in zip(blocks, (left, right), strict=True):
        if values is not None:
            block.point_data["mark"] = np.resize(values, (block.n_points, *np.shape(values)[1:]))
    mesh = from_pyvista(pv.MultiBlock(blocks))
    assert ["'mark'" in note for note in mesh.notes] == [True]
    assert "mark" not in mesh.point_data


def test_a_file_of_blocks_is_written_completely_or_not_at_all(tmp_path):
    mesh = from_pyvista(pv.MultiBlock({"left": plate(0), "right": plate(1)}))

    def written():
        with create_file(tmp_path / "a.vtm") as path:
            mesh.save(path)

    written()
    same(pv.read(tmp_path / "a.vtm")["right"], plate(1))
    before = content(tmp_path)
    with pytest.raises(DataError, match=r"/a "):
        written()
    assert content(tmp_path) == before
