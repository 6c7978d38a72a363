"""Parts: every format gives the same solid, safe repairs are made, damage is rejected; folders skip bad files."""

from __future__ import annotations

import json
import pickle
import subprocess

import numpy as np
import pytest
import trimesh

from flare.mesh import parts as parts_module
from flare.mesh.parts import PartFolder, read_part
from flare.mesh.repair import solid_surface
from flare.mesh.surface import GeometryError, Surface, placed
from flare.mesh.voxelization import voxelize
from flare.mesh.voxels import Voxels, skin
from flare.physics.lpbf.parts import mesh_part
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
    assert voxelize(part, 0.5).volume == pytest.approx(VOLUME, rel=3e-3)
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
    assert voxelize(part, 1.0).count == 936


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
    np.testing.assert_array_equal(voxelize(part, 1.0).solid, solid)


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
    "open": (Surface(np.array(CUBE.vertices), np.array(CUBE.faces[1:])), "open", "3 of its edges"),
    "one side": (klein(), "one side only", ""),
    "overlap": (
        joined(box(10, 10, 10), box(10, 10, 10, at=(5, 5, 0))),
        "overlapping bodies",
        r"2 .*1e\+03, 1e\+03 mm³",
    ),
    "a pin that sticks out": (joined(box(20, 20, 20), box(4, 4, 30)), "bodies", r"2 .*8e\+03, 480 mm³"),
    "two bodies": (joined(box(10, 10, 10), box(4, 4, 4, at=(20, 0, 0))), "several bodies", r"2 .*1e\+03, 64 mm³"),
    "body in a cavity": (joined(box(10, 10, 10), box(6, 6, 6), box(2, 2, 2)), "several bodies", "2"),
    "many bodies": (joined(*[box(1, 1, 1, at=(2 * n, 0, 0)) for n in range(200)]), "several bodies", "200"),
    "point cloud": (Surface(np.eye(3), np.zeros((0, 3), dtype=int)), "empty", ""),
    "sheet": (Surface(np.eye(3), np.array([[0, 1, 2], [0, 2, 1]])), "no volume", ""),
    "slivers only": (Surface(np.eye(3), np.array([[0, 1, 1]])), "empty", ""),
    "nothing": (Surface(np.zeros((0, 3)), np.zeros((0, 3), dtype=int)), "empty", ""),
    "bad index": (Surface(np.eye(3), np.array([[0, 1, 3]])), "not triangles", "0 to 3"),
    "nan": (
        Surface(np.where(np.arange(8)[:, None] == 5, np.nan, CUBE.vertices), np.array(CUBE.faces)),
        "not finite",
        r"1 of 8 .*first: 5",
    ),
    "huge": (box(60e3, 10e3, 10e3), "size", r"6e\+04 mm.* um"),
    "microscopic": (box(0.06, 0.01, 0.02), "size", r"0\.06 mm.* m\?"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_surface_that_is_not_one_solid_is_rejected_with_the_reason(case):
    part, reason, fact = CASES[case]
    with pytest.raises(GeometryError, match=fact or None) as fault:
        read_part(part)
    assert reason in fault.value.reason


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
    with pytest.raises(GeometryError) as fault:
        read_part(Surface(corners, np.array(faces)))
    assert fault.value.reason == "self-intersecting"


def test_damaged_and_foreign_files_are_refused(tmp_path):
    mesh = box(10, 10, 10)
    Surface.of(mesh).to_mesh().save(tmp_path / "whole.stl")
    data = (tmp_path / "whole.stl").read_bytes()
    text = trimesh.exchange.stl.export_stl_ascii(mesh).encode()
    files = {
        "cut.stl": (data[:-77], "607 bytes.* 12 triangles in 684"),
        "head.stl": (data[:50], ""),
        "text.stl": (text[: len(text) // 2], "endsolid"),
        "empty.stl": (b"", "0 bytes"),
        "words.stl": (b"these are only words, but enough of them to be longer than a header " * 3, ""),
        "noise.ply": (b"ply\nformat ascii 1.0\nelement vertex 5\n", "PLY"),
        "noise.obj": (b"v 1 2\nf 1 2 3\n", ""),
        "noise.glb": (b"glTF" + bytes(20), "GLB"),
        "noise.off": (b"OFF\n3 1 0\n0 0 0\n", ""),
        "part.pkl": (b"cos\nsystem\n(S'true'\ntR.", ".pkl"),
        "part": (b"1", ""),
        "noise.step": (b"ISO-10303-21;\nHEADER;\n", ""),
    }
    for name, (content, fact) in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(GeometryError, match=f"{name}.*{fact}"):
            read_part(tmp_path / name)
    (tmp_path / "folder.stl").mkdir()
    for path in (tmp_path / "missing.stl", tmp_path / "folder.stl", "https://example.org/part.stl"):
        with pytest.raises(GeometryError):
            read_part(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*files, "whole.stl", "folder.stl"])


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "ply", "glb"])
def test_a_file_under_the_name_of_another_format_is_told_so(tmp_path, kind):
    ending = kind.split("_")[0]
    for name in ("part.step", "part.igs", "part.off"):
        box(10, 10, 10).export(tmp_path / name, file_type=kind)
        with pytest.raises(DataError, match=rf"{name} .*{ending.upper()}.*part\.{ending}"):
            read_part(tmp_path / name)
    (tmp_path / "solid.stl").write_bytes(b"ISO-10303-21;\nHEADER;\n")
    with pytest.raises(DataError, match=r"solid\.stl .*STEP.*solid\.step"):
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
    with pytest.raises(DataError, match="2 solids"):
        read_part(cad / "two.stp")
    with pytest.raises(GeometryError, match=r"face\.step"):
        read_part(cad / "face.step")
    with pytest.raises(ConfigError, match="inch"):
        read_part(cad / "block.step", unit="inch")


def test_without_gmsh_a_cad_file_names_the_extra(cad, monkeypatch):
    monkeypatch.setattr("flare.mesh.io.cad.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"gmsh.*flare-engine\[cad\]"):
        read_part(cad / "block.step")


def test_a_cad_file_that_crashes_the_kernel_or_never_ends_is_refused(cad, monkeypatch):
    crash = subprocess.run
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr("subprocess.run", lambda command, **rest: crash([command[0], "-c", kill], **rest))
    with pytest.raises(GeometryError, match="-11"):
        read_part(cad / "block.step")
    monkeypatch.setattr("subprocess.run", lambda command, **rest: crash([command[0], "-c", "while True: pass"], **rest))
    monkeypatch.setattr("flare.mesh.io.cad.TIMEOUT", 0.3)
    with pytest.raises(GeometryError, match=r"0\.3 s"):
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
    with pytest.raises(ConfigError, match="unit='feet'"):
        read_part(box(1, 1, 1), unit="feet")
    with pytest.raises(DataError, match="int"):
        read_part(3)
    with pytest.raises(DataError, match=r"\(3, 2\)"):
        read_part(Surface(np.zeros((3, 2)), np.zeros((1, 3), dtype=int)))


def test_without_a_unit_any_size_will_do():
    assert read_part(box(6e6, 1e6, 1e6), unit=None).extents.max() == pytest.approx(6e6)


# ---- folders ---------------------------------------------------------------------------------------------------------


def export(path, *extents):
    path.parent.mkdir(parents=True, exist_ok=True)
    trimesh.creation.box(extents or (6, 4, 2)).export(path)


@pytest.fixture
def gallery(tmp_path):
    """The layout of the segmentation set, with names as its parts have them."""
    names = ["105762_19e04e0b_1", "100221_4d5c2c4a_0", "99876_aa01bb02_2"]
    for n, name in enumerate(names):
        export(tmp_path / "meshes" / f"{name}.obj", 6, 4, 2 + n)
        (tmp_path / "meshes" / f"{name}.seg").write_text("0\n")
    (tmp_path / "breps" / "seg").mkdir(parents=True)
    (tmp_path / "train_test.json").write_text(json.dumps({"train": names[:2], "test": names[2:]}))
    return tmp_path


def test_parts_come_in_order_of_their_names(gallery):
    parts = PartFolder(gallery)
    assert len(parts) == 3
    assert [name for name, _ in parts] == ["100221_4d5c2c4a_0", "105762_19e04e0b_1", "99876_aa01bb02_2"]
    assert [round(surface.volume) for _, surface in parts] == [72, 48, 96]
    assert parts.rejected == {}


def test_splits_are_those_of_the_set(gallery):
    assert [name for name, _ in PartFolder(gallery, split="test")] == ["99876_aa01bb02_2"]
    assert len(PartFolder(gallery, split="train")) == 2
    with pytest.raises(ConfigError, match=r"'tests'.*'test'"):
        PartFolder(gallery, split="tests")
    (gallery / "train_test.json").write_text("{")
    with pytest.raises(DataError, match=r"train_test\.json"):
        PartFolder(gallery, split="train")
    (gallery / "train_test.json").unlink()
    with pytest.raises(DataError, match=r"train_test\.json"):
        PartFolder(gallery, split="train")


def test_step_files_are_found_where_the_set_has_them(tmp_path):
    gmsh = pytest.importorskip("gmsh")
    (tmp_path / "breps" / "step").mkdir(parents=True)
    gmsh.initialize(interruptible=False)
    gmsh.option.setNumber("General.Terminal", 0)
    gmsh.model.occ.addCylinder(0, 0, 0, 0, 0, 10, 5)
    gmsh.model.occ.synchronize()
    gmsh.write(str(tmp_path / "part.step"))
    gmsh.finalize()
    (tmp_path / "part.step").rename(tmp_path / "breps" / "step" / "1_ab_0.stp")
    ((name, surface),) = PartFolder(tmp_path)
    assert name == "1_ab_0"
    assert surface.volume == pytest.approx(np.pi * 250, rel=5e-3)


def test_a_part_in_two_formats_is_read_once_and_other_files_are_left_alone(tmp_path):
    export(tmp_path / "b.stl")
    export(tmp_path / "b.ply")
    export(tmp_path / "A.STL")
    (tmp_path / "notes.txt").write_text("not a part")
    (tmp_path / "c.stl").mkdir()
    parts = PartFolder(tmp_path)
    assert list(parts.files) == ["A", "b"]
    assert parts.files["b"].suffix == ".stl"


def test_bad_files_are_counted_and_do_not_stop_the_rest(tmp_path, monkeypatch):
    for name in ("a", "h", "z"):
        export(tmp_path / f"{name}.stl")
    (tmp_path / "b.stl").write_bytes(b"")
    (tmp_path / "c.stl").write_bytes((tmp_path / "a.stl").read_bytes()[:-10])
    two = trimesh.util.concatenate(
        [trimesh.creation.box((1, 1, 1)), trimesh.creation.box((1, 1, 1)).apply_translation([5, 0, 0])]
    )
    for name in ("d", "e"):
        two.export(tmp_path / f"{name}.ply")
    cube = trimesh.creation.box((1, 1, 1))
    trimesh.Trimesh(cube.vertices, cube.faces[:-1], process=False).export(tmp_path / "f.obj")
    real = parts_module.read_part

    def sometimes(path, **options):
        if path.stem == "h":
            raise RecursionError("deep")
        return real(path, **options)

    monkeypatch.setattr(parts_module, "read_part", sometimes)
    parts = PartFolder(tmp_path)
    assert [name for name, _ in parts] == ["a", "z"]
    assert parts.rejected == {"unreadable": 2, "several bodies": 2, "empty": 1, "open": 1}
    assert list(parts.faults) == ["b", "c", "d", "e", "f", "h"]
    assert "RecursionError: deep" in str(parts.faults["h"])
    with pytest.raises(GeometryError, match="2 bodies") as fault:
        parts.read("d")
    again = pickle.loads(pickle.dumps(fault.value))  # as from a worker process
    assert (again.reason, str(again)) == (fault.value.reason, str(fault.value))
    with pytest.raises(DataError, match="'q'"):
        parts.read("q")


def test_parts_of_a_folder_meet_the_same_limits_as_drawn_ones(tmp_path):
    export(tmp_path / "bar.stl", 60, 20, 15)
    export(tmp_path / "foil.stl", 60, 60, 0.2)
    export(tmp_path / "upright.stl", 60, 3, 60)
    reasons = {}
    for name, surface in PartFolder(tmp_path):
        try:
            voxels, mesh = mesh_part(placed(surface), name=name)
        except GeometryError as fault:
            reasons[name] = fault.reason
        else:
            assert voxels.volume == pytest.approx(60 * 20 * 15, rel=1e-5)
            assert mesh.volume == pytest.approx(voxels.volume)
    assert reasons == {"foil": "thinner than a voxel", "upright": "aspect ratio"}


def test_a_folder_without_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        PartFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"\.stl"):
        PartFolder(tmp_path)
