"""Parts: every format gives the same solid, safe repairs are made, damage is rejected; folders skip bad files."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import trimesh

from flare.mesh.benchmark_mesh import find_fault, mesh_part
from flare.mesh.octree import merged
from flare.mesh.parts import part_files, read_part
from flare.mesh.repair import solid_surface
from flare.mesh.surface import GeometryError, Surface, placed
from flare.mesh.voxelization import voxelize
from flare.mesh.voxels import Voxels, skin
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


@pytest.mark.parametrize(("unit", "scale"), [("um", 1e-3), ("mm", 1), ("cm", 10), ("m", 1000), ("inch", 25.4)])
def test_units_become_millimetres(unit, scale):
    extents = np.array([30.0, 40.0, 50.0]) / scale
    assert read_part(box(*extents), unit=unit).extents == pytest.approx([30, 40, 50])
    assert read_part(soup(box(*extents * 1e6)), unit=None).extents == pytest.approx(extents * 1e6)


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


def test_nearly_equal_vertices_repeated_faces_and_slivers_are_repaired():
    sphere = soup(trimesh.creation.icosphere(subdivisions=2, radius=10))
    shaken = sphere.vertices + np.random.default_rng(0).uniform(-1e-6, 1e-6, sphere.vertices.shape)
    faces = np.concatenate([sphere.faces, sphere.faces[:5], [[0, 0, 1], [7, 7, 7]]])
    part = solid_surface(Surface(shaken, faces))
    assert len(part.faces) == 320
    assert len(part.vertices) >= 162
    assert part.volume == pytest.approx(sphere.volume, rel=1e-6)


def test_voxels_that_touch_in_an_edge_are_a_valid_part():
    solid = np.ones((4, 4, 3), dtype=bool)
    solid[1, 1, 1:] = solid[2, 2, 1:] = False  # two pits that meet in an upright edge
    voxels = Voxels(solid, (1.0, 1.0, 1.0), (0.0, 0.0, 0.0))
    part = solid_surface(skin(voxels))
    np.testing.assert_array_equal(voxelize(part, 1.0).solid, solid)


def klein():
    """A closed surface with one side: the rectangle with its sides glued, one pair crosswise."""
    n = 12
    number = np.arange(n * n).reshape(n, n)
    number = np.concatenate([number, number[:1, -np.arange(n)]])  # the last row is the first one reversed
    a, c = number[:-1], number[1:]
    b, d = np.roll(a, -1, axis=1), np.roll(c, -1, axis=1)
    faces = np.stack([a, c, d, a, d, b], -1).reshape(-1, 3)
    return Surface(np.random.default_rng(0).random((n * n, 3)), faces)


CUBE = box(10, 10, 10)
CASES = {
    "open": (Surface(np.array(CUBE.vertices), np.array(CUBE.faces[1:])), "open", "3 of its edges"),
    "one side": (klein(), "one side only", ""),
    "overlap": (joined(box(10, 10, 10), box(10, 10, 10, at=(5, 5, 0))), "self-intersecting", ""),
    "a pin that sticks out": (joined(box(20, 20, 20), box(4, 4, 30)), "self-intersecting", ""),
    "two bodies": (joined(box(10, 10, 10), box(4, 4, 4, at=(20, 0, 0))), "several bodies", "2"),
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
        "first: 5",
    ),
    "huge": (box(60e3, 10e3, 10e3), "size", r"6e\+04 mm.*\bum\b"),
    "microscopic": (box(0.06, 0.01, 0.02), "size", r"0\.06 mm.*\"m\""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_surface_that_is_not_one_solid_is_rejected_with_the_reason(case):
    part, reason, fact = CASES[case]
    with pytest.raises(GeometryError, match=fact or None) as fault:
        read_part(part)
    assert reason in fault.value.reason


def test_damaged_and_foreign_files_are_refused(tmp_path):
    mesh = box(10, 10, 10)
    Surface.of(mesh).to_mesh().save(tmp_path / "whole.stl")
    data = (tmp_path / "whole.stl").read_bytes()
    text = trimesh.exchange.stl.export_stl_ascii(mesh).encode()
    files = {
        "cut.stl": (data[:-77], "607 bytes"),
        "head.stl": (data[:50], ""),
        "text.stl": (text[: len(text) // 2], "endsolid"),
        "empty.stl": (b"", ""),
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


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "ply", "obj", "off", "glb"])
def test_a_damaged_file_gives_a_part_or_a_data_error(tmp_path, kind):
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
    with pytest.raises(GeometryError, match="SIGSEGV"):
        read_part(cad / "block.step")
    monkeypatch.setattr("subprocess.run", lambda command, **rest: crash([command[0], "-c", "while True: pass"], **rest))
    monkeypatch.setattr("flare.mesh.io.cad.TIMEOUT", 0.3)
    with pytest.raises(GeometryError, match=r"0\.3 seconds"):
        read_part(cad / "block.step")


def test_references_of_an_obj_file_are_not_followed(tmp_path, monkeypatch):
    mesh = box(10, 10, 10)
    text = trimesh.exchange.obj.export_obj(mesh)
    (tmp_path / "part.obj").write_text("mtllib secret.mtl\nusemtl x\n" + text)
    (tmp_path / "secret.mtl").write_text("newmtl x\nmap_Kd secret.png\n")
    seen = []
    monkeypatch.setattr(trimesh.resolvers.FilePathResolver, "get", lambda self, name: seen.append(name))
    assert read_part(tmp_path / "part.obj").volume == pytest.approx(1000)
    assert seen == []


def test_invalid_arguments_are_refused():
    with pytest.raises(ConfigError, match="unit='feet'"):
        read_part(box(1, 1, 1), unit="feet")
    with pytest.raises(DataError, match="int"):
        read_part(3)
    with pytest.raises(DataError, match=r"\(3, 2\)"):
        read_part(Surface(np.zeros((3, 2)), np.zeros((1, 3), dtype=int)))


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_an_error_keeps_its_reason_from_a_worker_process():
    again = pickle.loads(pickle.dumps(GeometryError("open", "the part is open")))
    assert (again.reason, str(again)) == ("open", "the part is open")


@pytest.mark.parametrize("place", ["meshes", "breps/step"])
def test_parts_of_the_segmentation_set_come_in_order_of_their_names(place, tmp_path):
    for name in ("99_b.obj", "10_a.stp", "99_b.seg"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / name).touch()
    assert part_files(tmp_path) == {Path(name).stem: tmp_path / place / name for name in ("10_a.stp", "99_b.obj")}


def test_a_part_in_two_formats_is_read_once_and_other_files_are_left_alone(tmp_path):
    for name in ("b.stl", "b.ply", "A.STL", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "c.stl").mkdir()
    assert part_files(tmp_path) == {"A": tmp_path / "A.STL", "b": tmp_path / "b.stl"}


def test_parts_of_a_folder_meet_the_same_limits_as_drawn_ones(tmp_path):
    for name, extents in (("bar", (60, 20, 15)), ("foil", (60, 60, 0.2)), ("upright", (60, 3, 60))):
        box(*extents).export(tmp_path / f"{name}.stl")
    reasons = {}
    for name, path in part_files(tmp_path).items():
        try:
            voxels, mesh = mesh_part(placed(read_part(path)), name=name)
        except GeometryError as fault:
            reasons[name] = fault.reason
        else:
            assert voxels.volume == pytest.approx(60 * 20 * 15, rel=1e-5)
            assert mesh.volume == pytest.approx(voxels.volume)
    assert reasons == {"foil": "thinner than a voxel", "upright": "aspect ratio"}


def test_a_part_in_pieces_or_above_the_plate_is_beyond_the_limits():
    solid = np.ones((20, 20, 9), dtype=bool)
    for emptied, fault in ((slice(4, 5), "not connected"), (slice(0, 5), "misses the plate")):
        solid[:, :, emptied] = False
        voxels = Voxels(solid, (0.5, 0.5, 0.6), (-5.0, -5.0, 0.0))
        assert find_fault(voxels, merged(voxels)) == fault


def test_a_folder_without_parts_is_refused(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DataError, match=folder.name):
            part_files(folder)
