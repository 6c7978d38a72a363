"""Reading parts: every format gives the same solid; what is safe is repaired; each kind of damage has its message."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import trimesh

from flare.mesh.read import read_part
from flare.mesh.repair import solid_surface
from flare.mesh.skin import skin
from flare.mesh.stl import write_stl
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.mesh.voxelise import voxelise
from flare.mesh.voxels import Voxels
from flare.utils.errors import ConfigError, DataError

BLOCK, RADIUS = (60.0, 40.0, 10.0), 8.0
VOLUME = 60 * 40 * 10 - np.pi * RADIUS**2 * 10


def box(*extents, at=(0, 0, 0)):
    mesh = trimesh.creation.box(extents)
    return mesh.apply_translation(at)


def soup(mesh):
    """As STL has it: three vertices to every triangle."""
    return Surface(np.asarray(mesh.triangles).reshape(-1, 3), np.arange(3 * len(mesh.faces)).reshape(-1, 3))


def joined(*meshes):
    return trimesh.util.concatenate(list(meshes))


@pytest.fixture(scope="module")
def cad(tmp_path_factory):
    """A block with a hole as STEP, BREP and IGES, and two blocks, and a bare face."""
    gmsh = pytest.importorskip("gmsh")
    folder = tmp_path_factory.mktemp("cad")
    gmsh.initialize(interruptible=False)
    try:
        gmsh.option.setNumber("General.Terminal", 0)
        occ = gmsh.model.occ
        hole = occ.addCylinder(30, 20, -1, 0, 0, 12, RADIUS)
        occ.cut([(3, occ.addBox(0, 0, 0, *BLOCK))], [(3, hole)])
        occ.synchronize()
        for kind in ("step", "brep", "iges"):
            gmsh.write(str(folder / f"block.{kind}"))
        occ.addBox(100, 0, 0, 5, 5, 5)
        occ.synchronize()
        gmsh.write(str(folder / "two.stp"))
        gmsh.clear()
        occ.addRectangle(0, 0, 0, 10, 10)
        occ.synchronize()
        gmsh.write(str(folder / "face.step"))
    finally:
        gmsh.finalize()
    return folder


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "ply", "obj", "off", "glb"])
def test_every_format_gives_the_same_solid(tmp_path, kind):
    mesh = trimesh.creation.annulus(r_min=5, r_max=10, height=12, sections=64)
    path = tmp_path / f"part.{kind.split('_')[0].upper()}"
    mesh.export(path, file_type=kind)
    before = path.read_bytes()
    part = read_part(path)
    assert part.volume == pytest.approx(mesh.volume, rel=1e-5)
    assert len(part.vertices) == len(mesh.vertices)  # merged where the format repeats them
    np.testing.assert_allclose(part.bounds, mesh.bounds, atol=1e-4)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["step", "brep", "iges"])
def test_cad_solids_are_read_to_the_fineness_of_their_triangles(cad, kind):
    before = sorted(p.name for p in cad.iterdir())
    part = read_part(cad / f"block.{kind}")
    assert part.volume == pytest.approx(VOLUME, rel=5e-4)
    assert part.extents == pytest.approx(BLOCK, abs=1e-4)
    assert voxelise(part, 0.5).volume == pytest.approx(VOLUME, rel=3e-3)
    assert sorted(p.name for p in cad.iterdir()) == before


def test_a_cad_file_in_metres_becomes_millimetres(cad, tmp_path):
    text = (cad / "block.step").read_text()
    assert "SI_UNIT(.MILLI.,.METRE.)" in text
    (tmp_path / "BLOCK.STP").write_text(text.replace("SI_UNIT(.MILLI.,.METRE.)", "SI_UNIT(.CENTI.,.METRE.)"))
    assert read_part(tmp_path / "BLOCK.STP").extents == pytest.approx(10 * np.array(BLOCK), rel=1e-5)


def test_a_trimesh_and_a_surface_are_parts_too():
    mesh = box(3, 4, 5)
    assert read_part(mesh).volume == pytest.approx(60)
    assert read_part(soup(mesh)).volume == pytest.approx(60)


@pytest.mark.parametrize(("unit", "scale"), [("um", 1e-3), ("mm", 1), ("cm", 10), ("m", 1000), ("inch", 25.4)])
def test_units_become_millimetres(unit, scale):
    extents = np.array([30.0, 40.0, 50.0]) / scale
    assert read_part(box(*extents), unit=unit).extents == pytest.approx([30, 40, 50])


def test_faces_turned_at_random_are_turned_outwards():
    mesh = trimesh.creation.torus(major_radius=10, minor_radius=4)
    flip = np.random.default_rng(0).random(len(mesh.faces)) < 0.5
    faces = np.where(flip[:, None], mesh.faces[:, ::-1], mesh.faces)
    part = solid_surface(Surface(np.array(mesh.vertices), faces))
    assert part.volume == pytest.approx(mesh.volume, rel=1e-12)
    inside_out = solid_surface(Surface(np.array(mesh.vertices), np.array(mesh.faces[:, ::-1])))
    assert inside_out.volume == pytest.approx(mesh.volume, rel=1e-12)


@pytest.mark.parametrize("turned", [False, True])
def test_a_cavity_stays_empty_however_it_is_turned(turned):
    cavity = box(4, 4, 4)
    if turned:
        cavity.invert()
    part = solid_surface(Surface.of(joined(box(10, 10, 10), cavity)))
    assert part.volume == pytest.approx(1000 - 64)
    assert voxelise(part, 1.0).count == 936


def test_vertices_a_hair_apart_repeated_faces_and_slivers_are_repaired():
    sphere = soup(trimesh.creation.icosphere(subdivisions=2, radius=10))
    shaken = sphere.vertices + np.random.default_rng(0).uniform(-1e-6, 1e-6, sphere.vertices.shape)
    faces = np.concatenate([sphere.faces, sphere.faces[:5], [[0, 0, 1], [7, 7, 7]]])
    part = solid_surface(Surface(shaken, faces))
    assert len(part.faces) == 320
    assert len(part.vertices) >= 162
    assert part.volume == pytest.approx(sphere.volume, rel=1e-6)


def test_stray_points_are_dropped():
    mesh = box(10, 10, 10)
    stray = np.concatenate([[[np.nan, 0, 0]], mesh.vertices, [[1e300, 0, 0]]])
    part = solid_surface(Surface(stray, np.array(mesh.faces) + 1))
    assert len(part.vertices) == 8
    assert part.volume == pytest.approx(1000)


def test_voxels_that_touch_in_an_edge_are_a_sound_part():
    solid = np.ones((4, 4, 3), dtype=bool)
    solid[1, 1, 1:] = solid[2, 2, 1:] = False  # two pits that meet in an upright edge
    voxels = Voxels(solid, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    part = solid_surface(skin(voxels))
    np.testing.assert_array_equal(voxelise(part, 1.0).solid, solid)


def klein():
    """A closed surface with one side: the rectangle with its sides glued, one pair crosswise."""
    n = 12
    u, v = np.meshgrid(2 * np.pi * np.arange(n) / n, 2 * np.pi * np.arange(n) / n, indexing="ij")
    r = 8 + np.cos(u / 2) * np.sin(v) - np.sin(u / 2) * np.sin(2 * v)
    points = np.stack([r * np.cos(u), r * np.sin(u), np.sin(u / 2) * np.sin(v) + np.cos(u / 2) * np.sin(2 * v)], -1)
    faces = []
    for i in range(n):
        for j in range(n):
            a, b = i * n + j, i * n + (j + 1) % n
            if i + 1 < n:
                c, d = a + n, (i + 1) * n + (j + 1) % n
            else:
                c, d = (-j) % n, (-j - 1) % n
            faces += [[a, c, d], [a, d, b]]
    return Surface(points.reshape(-1, 3) + 1e-3 * np.arange(n * n)[:, None], np.array(faces))


CUBE = box(10, 10, 10)
CASES = {
    "open": (
        Surface(np.array(CUBE.vertices), np.array(CUBE.faces[1:])),
        r"is open: 3 of its edges belong to one triangle only .* the first at \(.*close its holes",
    ),
    "one side": (klein(), "one side only"),
    "overlap": (
        joined(box(10, 10, 10), box(10, 10, 10, at=(5, 5, 0))),
        r"is 2 closed bodies, of 1e\+03, 1e\+03 mm³, that overlap: .*join them into one in the CAD program",
    ),
    "a pin that sticks out": (joined(box(20, 20, 20), box(4, 4, 30)), r"2 (closed )?bodies, of 8e\+03, 480 mm³"),
    "two bodies": (joined(box(10, 10, 10), box(4, 4, 4, at=(20, 0, 0))), "is 2 bodies, of 1e\\+03, 64 mm³"),
    "body in a cavity": (joined(box(10, 10, 10), box(6, 6, 6), box(2, 2, 2)), "is 2 bodies"),
    "many bodies": (
        joined(*[box(1, 1, 1, at=(2 * n, 0, 0)) for n in range(200)]),
        "is 200 bodies, of 1, 1, 1, 1, 1 mm³",
    ),
    "point cloud": (Surface(np.eye(3), np.zeros((0, 3), dtype=int)), "is it a drawing, a point cloud"),
    "sheet": (Surface(np.eye(3), np.array([[0, 1, 2], [0, 2, 1]])), "encloses no volume: it is a sheet"),
    "slivers only": (Surface(np.eye(3), np.array([[0, 1, 1]])), "no triangle with an area"),
    "nothing": (Surface(np.zeros((0, 3)), np.zeros((0, 3), dtype=int)), "has no triangles"),
    "bad index": (Surface(np.eye(3), np.array([[0, 1, 3]])), "faces name vertices 0 to 3, but there are 3"),
    "nan": (
        Surface(np.where(np.arange(8)[:, None] == 5, np.nan, CUBE.vertices), np.array(CUBE.faces)),
        r"1 of 8 vertices are not finite \(first: 5, \[nan, nan, nan\]\)",
    ),
    "huge": (box(60e3, 10e3, 10e3), r"is 6e\+04 mm long, .* between 0.5 and 2000 mm; .* --unit um"),
    "microscopic": (box(0.06, 0.01, 0.02), r"is 0.06 mm long.*did you mean --unit m\? If not, have"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_solid_is_refused_with_the_reason(case):
    part, message = CASES[case]
    with pytest.raises(DataError, match=message):
        read_part(part)


def test_a_surface_that_crosses_itself_is_refused_with_the_place():
    # A bar bent into an L whose far end is pushed back through its start: one closed shell that overlaps itself.
    path = np.array([[0, 0], [20, 0], [20, 8], [6, 8], [6, -8]], dtype=float)
    side = np.array([[0, -2], [2, -2], [2, 2], [-2, 2], [-2, 0]], dtype=float)
    outer, inner = path + side, path - side
    ring = np.stack([outer, inner, inner, outer], 1)
    corners = np.concatenate([ring, np.broadcast_to([[[-2.0], [-2.0], [2.0], [2.0]]], (5, 4, 1))], -1).reshape(-1, 3)
    faces = [[0, 1, 2], [0, 2, 3], [16, 18, 17], [16, 19, 18]]
    for n in range(4):
        for k in range(4):
            a, b = 4 * n + k, 4 * n + (k + 1) % 4
            faces += [[a, a + 4, b + 4], [a, b + 4, b]]
    with pytest.raises(DataError, match=r"intersects itself: its surface goes 2 times around \(.*join its bodies"):
        read_part(Surface(corners, np.array(faces)))


def test_damaged_and_foreign_files_are_refused(tmp_path):
    mesh = box(10, 10, 10)
    write_stl(tmp_path / "whole.stl", Surface.of(mesh))
    data = (tmp_path / "whole.stl").read_bytes()
    text = trimesh.exchange.stl.export_stl_ascii(mesh).encode()
    files = {
        "cut.stl": (data[:-77], r"cut short or no STL: it has 607 bytes, and its header promises 12 triangles in 684"),
        "head.stl": (data[:50], "cut short or no STL"),
        "text.stl": (text[: len(text) // 2], "cut short: a text STL ends with 'endsolid'"),
        "empty.stl": (b"", r"is empty \(0 bytes\)"),
        "words.stl": (
            b"these are only words, but enough of them to be longer than a header " * 3,
            "cut short or no STL",
        ),
        "noise.ply": (b"ply\nformat ascii 1.0\nelement vertex 5\n", "cannot be read as PLY"),
        "noise.obj": (b"v 1 2\nf 1 2 3\n", "noise.obj"),
        "noise.glb": (b"glTF" + bytes(20), "cannot be read as GLB"),
        "noise.off": (b"OFF\n3 1 0\n0 0 0\n", "noise.off"),
        "part.pkl": (b"cos\nsystem\n(S'true'\ntR.", "a part is one of .stl"),
        "part": (b"1", "a name without ending is none of them"),
        "noise.step": (b"ISO-10303-21;\nHEADER;\n", "noise.step"),
    }
    for name, (content, message) in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_part(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        read_part(tmp_path / "missing.stl")
    (tmp_path / "folder.stl").mkdir()
    with pytest.raises(DataError, match=r"folder.stl is a folder; give one file of it.*--parts"):
        read_part(tmp_path / "folder.stl")
    with pytest.raises(DataError, match="no such file"):
        read_part("https://example.org/part.stl")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*files, "whole.stl", "folder.stl"])


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "ply", "glb"])
def test_a_file_under_the_name_of_another_format_is_told_so(tmp_path, kind):
    ending = kind.split("_")[0]
    for name in ("part.step", "part.igs", "part.off"):
        box(10, 10, 10).export(tmp_path / name, file_type=kind)
        with pytest.raises(DataError, match=rf"{name} holds {ending.upper()}.*rename it part.{ending}"):
            read_part(tmp_path / name)
    (tmp_path / "solid.stl").write_bytes(b"ISO-10303-21;\nHEADER;\n")
    with pytest.raises(DataError, match=r"solid.stl holds STEP.*rename it solid.step"):
        read_part(tmp_path / "solid.stl")


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "ply", "obj", "off", "glb"])
def test_whatever_a_file_has_become_the_answer_is_a_part_or_a_message(tmp_path, kind):
    path = tmp_path / f"part.{kind.split('_')[0]}"
    trimesh.creation.annulus(r_min=5, r_max=10, height=12, sections=16).export(path, file_type=kind)
    whole, rng, refused = path.read_bytes(), np.random.default_rng(0), 0
    for n in range(60):
        data, at = bytearray(whole), int(rng.integers(len(whole)))
        if n % 3 == 0:
            del data[at:]
        elif n % 3 == 1:
            data[at : at + 8] = rng.bytes(8)
        else:
            data[at:at] = rng.bytes(50)
        path.write_bytes(data)
        try:
            assert read_part(path).volume > 0
        except DataError:
            refused += 1
    assert refused > 20


def test_cad_files_with_none_or_many_solids_are_refused(cad):
    with pytest.raises(DataError, match="holds 2 solids; export one"):
        read_part(cad / "two.stp")
    with pytest.raises(DataError, match="holds no solid, only surfaces or curves"):
        read_part(cad / "face.step")
    with pytest.raises(ConfigError, match="a CAD file knows its unit"):
        read_part(cad / "block.step", unit="inch")


def test_without_gmsh_a_cad_file_names_the_extra(cad, monkeypatch):
    monkeypatch.setattr("flare.mesh.cad.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"CAD files need gmsh: .*pip install 'flare-engine\[cad\]'"):
        read_part(cad / "block.step")


def test_a_cad_file_that_crashes_the_kernel_or_never_ends_is_refused(cad, monkeypatch):
    crash = subprocess.run
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr("subprocess.run", lambda command, **rest: crash([command[0], "-c", kill], **rest))
    with pytest.raises(Unfit, match=r"gmsh crashed \(-11\)"):
        read_part(cad / "block.step")
    monkeypatch.setattr("subprocess.run", lambda command, **rest: crash([command[0], "-c", "while True: pass"], **rest))
    monkeypatch.setattr("flare.mesh.cad.PATIENCE", 0.3)
    with pytest.raises(Unfit, match=r"cannot be read as CAD within 0.3 s"):
        read_part(cad / "block.step")


def test_an_obj_file_does_not_make_us_read_others(tmp_path, monkeypatch):
    mesh = box(10, 10, 10)
    text = trimesh.exchange.obj.export_obj(mesh)
    (tmp_path / "part.obj").write_text("mtllib secret.mtl\nusemtl x\n" + text)
    (tmp_path / "secret.mtl").write_text("newmtl x\nmap_Kd secret.png\n")
    seen = []
    monkeypatch.setattr(trimesh.resolvers.FilePathResolver, "get", lambda self, name: seen.append(name))
    assert read_part(tmp_path / "part.obj").volume == pytest.approx(1000)
    assert seen == []


def test_strange_arguments_are_refused():
    with pytest.raises(ConfigError, match="unit='feet' is unknown"):
        read_part(box(1, 1, 1), unit="feet")
    with pytest.raises(DataError, match=r"a part is a file, a Surface or a trimesh\.Trimesh; got int"):
        read_part(3)
    with pytest.raises(DataError, match=r"give \(V, 3\) and \(F, 3\)"):
        read_part(Surface(np.zeros((3, 2)), np.zeros((1, 3), dtype=int)))


def test_without_a_unit_any_size_will_do():
    assert read_part(box(6e6, 1e6, 1e6), unit=None).extents.max() == pytest.approx(6e6)
