"""`flare lpbf`: from a CAD file to whole files, and one message for everything that is no printable part."""

import meshio
import numpy as np
import pytest
import trimesh

from flare.cli import main
from flare.mesh.read import read_part
from flare.mesh.skin import skin
from flare.mesh.stl import TRIANGLE, write_stl
from flare.mesh.surface import Surface
from flare.physics.lpbf import load_process, process_preset
from tests.cli.test_bad_input import fails
from tests.physics.lpbf.shapes import bar, shelf

QUICK = ["--voxel", "1.5", "--layers", "30", "--plates", "none", "--threads", "1"]


@pytest.fixture
def part(tmp_path):
    write_stl(tmp_path / "shelf.stl", skin(shelf()))
    return tmp_path / "shelf.stl"


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_part_becomes_a_result_a_series_pictures_and_a_page(part, tmp_path, capsys):
    out = tmp_path / "results" / "shelf.vtu"
    assert main(["lpbf", "simulate", str(part), "--out", str(out), *QUICK, "--steps", "2"]) == 0
    series = ["build.pvd", "cooled.vtu", "group_001.vtu", "group_006.vtu", "released.vtu"]
    report = ["displacement.png", "groups.csv", "report.html", "von_mises.png"]
    assert names(out.parent) == sorted(["shelf.vtu", *(f"shelf_build/{name}" for name in [*series, *report])])
    output = capsys.readouterr()
    assert f"{out}: displacement" in output.out
    assert "shelf.stl: 24 × 6 × 14.4 mm, 384 voxels of 1.5 × 1.5 × 1.2 mm, 6 layer groups of 2.4 mm" in output.err
    assert "6/6 groups" in output.err
    result = output.out.splitlines()
    assert result[0].startswith("rises 0.")
    assert "; peak stress " in result[0]
    assert result[1].startswith("recoater hits in ")


def test_threads_do_not_change_a_byte_and_choices_are_kept(part, tmp_path, capsys):
    more = ["--voxel", "0.6", "--series", "false", "--report", "false", "--plate-temperature", "200", "--up", "-z"]
    for threads in ("1", "2"):
        out = str(tmp_path / f"{threads}.vtu")
        assert main(["lpbf", "simulate", str(part), "--out", out, *more, "--threads", threads]) == 0
    assert (tmp_path / "1.vtu").read_bytes() == (tmp_path / "2.vtu").read_bytes()
    assert names(tmp_path) == ["1.vtu", "2.vtu", "shelf.stl"]


def test_other_processes_units_and_a_scale(tmp_path, capsys):
    block = skin(bar((12, 6, 3), (1.5, 1.5, 0.6)))
    write_stl(tmp_path / "block.stl", Surface(block.vertices / 25.4, block.faces))
    (tmp_path / "mine.yaml").write_text("material: {name: Moon dust}\n")
    simulate = ["lpbf", "simulate", str(tmp_path / "block.stl"), "--plates", "none", "--series", "false"]
    simulate += ["--report", "false", "--process", str(tmp_path / "mine.yaml")]
    assert main([*simulate, "--unit", "inch", "--voxel", "1.2", "--out", str(tmp_path / "a.vtu")]) == 0
    assert "block.stl: 12 × 6 × 3 mm" in (said := capsys.readouterr().err)
    assert "Moon dust" in said
    assert main([*simulate, "--scale", "fit", "--voxel", "6", "--layers", "60", "--out", str(tmp_path / "b.vtu")]) == 0
    assert "block.stl: 60 × 30 × 15 mm" in capsys.readouterr().err


def test_a_flat_part_on_merged_voxels_with_few_fields(tmp_path, capsys):
    write_stl(tmp_path / "pad.stl", skin(bar((6, 6, 2.4))))
    simulate = ["lpbf", "simulate", str(tmp_path / "pad.stl"), "--out", str(tmp_path / "pad.vtu"), *QUICK]
    assert main([*simulate, "--mesh", "octree", "--fields", "von_mises, temperature", "--report", "false"]) == 0
    output = capsys.readouterr()
    assert "1 layer group of 2.4 mm" in output.err
    assert "groups.csv: recoater interference and temperature" in output.out
    assert len(meshio.read(tmp_path / "pad.vtu").cells_dict["hexahedron"]) == 4  # of 4 × 4 × 2 voxels
    step = meshio.read(tmp_path / "pad_build" / "group_001.vtu")
    assert set(step.point_data) == {"von_mises", "temperature"}


def test_a_killed_report_goes_on_with_its_plates(part, tmp_path, capsys, monkeypatch):
    """Stopped in the study of the second plate; the pages are the same as without the stop."""
    from flare.physics.lpbf.build import Build

    simulate = ["lpbf", "simulate", str(part), *QUICK, "--series", "false", "--plates", "300"]
    assert main([*simulate, "--out", str(tmp_path / "whole.vtu")]) == 0
    advance, printed = Build.advance, []

    def counted(self, state):
        printed.append(state.group)
        if len(printed) == 6 + 6 + 3:
            raise KeyboardInterrupt
        return advance(self, state)

    monkeypatch.setattr(Build, "advance", counted)
    out = ["--out", str(tmp_path / "stopped.vtu")]
    assert main([*simulate, *out]) == 130
    assert names(tmp_path / "stopped.vtu.partial" / "plates") == ["plate_0.npz", "plate_1.npz"]
    capsys.readouterr()
    assert main([*simulate, *out]) == 0
    assert "other plate temperatures: going on after group 8 of 12" in capsys.readouterr().err
    assert len(printed) == 6 + 6 + 3 + 4
    assert not (tmp_path / "stopped.vtu.partial").exists()
    for name in names(tmp_path / "whole_build"):
        assert (tmp_path / "stopped_build" / name).read_bytes() == (tmp_path / "whole_build" / name).read_bytes()


def test_a_process_file_in_another_encoding_is_one_message(part, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_bytes(b"material: {name: St\xe4hl}\n")
    message = fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "a.vtu", "--process", tmp_path / "mine.yaml")
    assert "mine.yaml: not UTF-8 text" in message
    assert names(tmp_path) == ["mine.yaml", "shelf.stl"]


def test_an_interrupted_command_says_how_to_go_on(part, tmp_path, capsys, monkeypatch):
    from flare.physics.lpbf.build import Build

    finish = Build.finish
    monkeypatch.setattr(Build, "finish", lambda self, state: (_ for _ in ()).throw(KeyboardInterrupt))
    command = ["lpbf", "simulate", str(part), "--out", str(tmp_path / "a.vtu"), *QUICK, "--report", "false"]
    assert main(command) == 130
    assert "6 of 6 layer groups are kept in" in (said := capsys.readouterr().err)
    assert "run the same command to go on" in said
    monkeypatch.setattr(Build, "finish", finish)
    message = fails(capsys, *command, "--mode", "refined")
    assert "unfinished simulation with mode = benchmark, not refined" in message
    assert main(command) == 0
    assert not (tmp_path / "a.vtu.partial").exists()


def soup(mesh):
    """STL bytes of triangles as they are."""
    corners = np.asarray(mesh.triangles, dtype=np.float32)
    triangles = np.zeros(len(corners), dtype=TRIANGLE)
    triangles["corners"] = corners
    return bytes(80) + len(corners).to_bytes(4, "little") + triangles.tobytes()


def box(*extents, at=(0, 0, 0)):
    return trimesh.creation.box(extents).apply_translation(at)


def opened(mesh):
    mesh.update_faces(np.arange(len(mesh.faces)) > 0)
    return mesh


def with_nan(mesh):
    data = np.frombuffer(soup(mesh)[84:], dtype=TRIANGLE).copy()
    data["corners"][2, 1] = np.nan
    return soup(mesh)[:84] + data.tobytes()


def joined(*meshes):
    return trimesh.util.concatenate(list(meshes))


def dumbbell():
    """Two discs on a thread thinner than a voxel: one body as CAD has it."""
    profile = np.array([[0, 0], [3, 0], [3, 6], [0.05, 6], [0.05, 12], [3, 12], [3, 18], [0, 18]])
    return trimesh.creation.revolve(profile, sections=32)


UNFIT = {
    "open": (soup(opened(box(20, 10, 10))), "is open: 3 of its edges"),
    "self-intersecting": (soup(joined(box(10, 10, 10), box(10, 10, 10, at=(5, 5, 0)))), "that overlap"),
    "empty": (b"", r"is empty (0 bytes)"),
    "no triangles": (bytes(84), "has no triangles"),
    "huge": (soup(box(60e3, 20e3, 20e3)), "between 0.5 and 2000 mm; did you mean --unit um?"),
    "microscopic": (soup(box(0.06, 0.02, 0.02)), "--unit m"),
    "nan": (with_nan(box(20, 10, 10)), "not finite"),
    "floating pieces": (soup(joined(box(9, 9, 9), box(9, 9, 9, at=(0, 0, 20)))), "is 2 bodies"),
    "held by a thread": (soup(dumbbell()), "falls into 2 pieces"),
    "on its tip": (soup(trimesh.creation.cone(10, 20).apply_scale([1, 1, -1])), "misses the plate"),
    "flat": (soup(box(20, 10, 0)), "encloses no volume: it is a sheet"),
    "beyond the machine": (
        soup(box(1900, 1900, 1900)),
        "the part is 1900 × 1900 × 1900 mm as it stands, but the build volume of Renishaw AM250 is 250 × 250 × 300 mm; "
        "have it scaled with --scale fit",
    ),
    "large": (soup(box(90, 90, 90)), "use larger ones with --voxel"),
    "in inches": (soup(box(2.4, 1.2, 0.2)), "part.stl is only 2.4 mm long: did you mean --unit cm or inch?"),
    "thin": (soup(box(20, 20, 0.2)), "no voxel centre is inside the part"),
    "cut short": (soup(box(20, 10, 10))[:-20], "cut short"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_cannot_be_printed_is_one_message_and_leaves_nothing(case, tmp_path, capsys):
    data, message = UNFIT[case]
    (tmp_path / "part.stl").write_bytes(data)
    assert message in fails(capsys, "lpbf", "simulate", tmp_path / "part.stl", "--out", tmp_path / "out" / "part.vtu")
    assert names(tmp_path) == ["part.stl"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--process", "ti64"], "there is no process 'ti64'; did you mean 'ti64-am250'?"),
        (["--process", "none.yaml"], "none.yaml: cannot be read"),
        (["--mode", "fast"], "mode"),
        (["--up", "z"], "up"),
        (["--unit", "feet"], "unit"),
        (["--voxel", "0"], "voxel=0: give an edge in mm"),
        (["--voxel", "small"], "voxel"),
        (["--voxel", "100"], "voxels 100 mm high are higher than a layer group of 2.4 mm; use --voxel 2.4 or less"),
        (["--mesh", "tetrahedra"], "mesh"),
        (["--fields", "stres"], "there is no 'stres'; did you mean 'stress'?"),
        (["--plates", "200,900"], "plate_temperature=900 must be below material.relaxation_temperature=800"),
        (["--unit", "inch"], "the part is 609.6 × 152.4 × 365.8 mm as it stands"),
        (["--layers", "0"], "layers=0"),
        (["--steps", "0"], "steps=0: keep at least one"),
        (["--threads", "0"], "--threads 0: at least 1"),
        (["--plates", "hot"], "--plates hot: give temperatures in °C"),
        (["--plates", "20,-300"], "machine.plate_temperature=20 must be at least 25"),
        (["--plate-temperature", "-300"], "must be at least 25"),
        (["--voxl", "1"], "unknown option --voxl; did you mean '--voxel'?"),
    ],
)
def test_options_that_make_no_sense(part, tmp_path, capsys, options, message):
    assert message in fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "a.vtu", *options)
    assert names(tmp_path) == ["shelf.stl"]


def test_nothing_is_overwritten(part, tmp_path, capsys):
    (tmp_path / "a.vtu").write_text("mine")
    assert "a.vtu exists already" in fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "a.vtu")
    (tmp_path / "b_build").mkdir()
    (tmp_path / "b_build" / "notes").write_text("mine")
    assert "b_build exists already" in fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "b.vtu")
    assert "shelf.stl exists already" in fails(capsys, "lpbf", "part", "--out", part)
    assert "ends in .vtu" in fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "c.vtk")
    assert "no such file" in fails(capsys, "lpbf", "simulate", tmp_path / "none.stl", "--out", tmp_path / "c.vtu")
    assert names(tmp_path) == ["a.vtu", "b_build/notes", "shelf.stl"]


def test_a_random_part_is_a_printable_file(tmp_path, capsys):
    pytest.importorskip("gmsh")
    for name in ("part.stl", "part.step"):
        assert main(["lpbf", "part", "--seed", "3", "--out", str(tmp_path / name)]) == 0
        assert "plate 60 × 15.2" in capsys.readouterr().out
    stl, step = read_part(tmp_path / "part.stl"), read_part(tmp_path / "part.step")
    assert stl.extents.max() == pytest.approx(60, abs=1e-3)
    assert stl.volume == pytest.approx(step.volume, rel=1e-3)
    message = fails(capsys, "lpbf", "part", "--out", tmp_path / "part.obj")
    assert "part.obj: a part is written as .stl, .step, .stp, .brep" in message


def test_processes_are_listed_and_a_file_of_one_is_that_process(tmp_path, capsys):
    assert main(["lpbf", "processes"]) == 0
    listed = capsys.readouterr().out
    assert "ti64-am250: Ti-6Al-4V on Renishaw AM250" in listed
    assert "inherent strain -0.009, -0.009, 0 along x, y, z" in listed
    assert main(["lpbf", "processes", "in625"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert load_process(tmp_path / "mine.yaml") == process_preset("in625")
    assert "did you mean 'in625'" in fails(capsys, "lpbf", "processes", "in652")
    assert "did you mean 'part'" in fails(capsys, "lpbf", "parts")
