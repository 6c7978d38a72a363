"""`flare lpbf`: from a CAD file to complete files, and errors for parts that cannot be printed."""

import numpy as np
import pytest
import trimesh

from flare.cli import main
from flare.mesh.io.stl import TRIANGLE
from flare.mesh.parts import read_part
from flare.mesh.surface import Surface
from flare.mesh.voxels import skin
from flare.physics.lpbf import load_process, process_preset
from flare.physics.lpbf.build import Build
from tests.cli.test_bad_input import fails
from tests.physics.lpbf.shapes import bar, shelf

QUICK = ["--voxel", "1.5", "--layers", "30", "--plates", "none", "--threads", "1"]


@pytest.fixture
def part(tmp_path):
    skin(shelf()).to_mesh().save(tmp_path / "shelf.stl")
    return tmp_path / "shelf.stl"


def names(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_simulate_writes_result_series_pictures_and_page(part, tmp_path, capsys):
    out = tmp_path / "results" / "shelf.vtu"
    assert main(["lpbf", "simulate", str(part), "--out", str(out), *QUICK, "--frames", "2"]) == 0
    series = ["build.pvd", "cooled.vtu", "group_001.vtu", "group_006.vtu", "released.vtu"]
    report = ["displacement.png", "groups.csv", "report.html", "von_mises.png"]
    assert names(out.parent) == sorted(["shelf.vtu", *(f"shelf_build/{name}" for name in [*series, *report])])
    output = capsys.readouterr()
    assert str(out) in output.out
    for fact in ("24 × 6 × 14.4 mm", "384 voxels", "1.5 × 1.5 × 1.2 mm", "6 layer groups of 2.4 mm", "6/6 groups"):
        assert fact in output.err


def test_threads_do_not_change_a_byte(part, tmp_path, capsys):
    more = ["--voxel", "0.6", "--no-series", "--no-report", "--plate-temperature", "200", "--up", "-z"]
    for threads in ("1", "2"):
        out = str(tmp_path / f"{threads}.vtu")
        assert main(["lpbf", "simulate", str(part), "--out", out, *more, "--threads", threads]) == 0
    assert (tmp_path / "1.vtu").read_bytes() == (tmp_path / "2.vtu").read_bytes()
    assert names(tmp_path) == ["1.vtu", "2.vtu", "shelf.stl"]


def test_process_files_units_and_scale(tmp_path, capsys):
    block = skin(bar((12, 6, 3), (1.5, 1.5, 0.6)))
    Surface(block.vertices / 25.4, block.faces).to_mesh().save(tmp_path / "block.stl")
    (tmp_path / "mine.yaml").write_text("material: {name: Moon dust}\n")
    simulate = ["lpbf", "simulate", str(tmp_path / "block.stl"), "--plates", "none", "--no-series"]
    simulate += ["--no-report", "--process", str(tmp_path / "mine.yaml")]
    assert main([*simulate, "--unit", "inch", "--voxel", "1.2", "--out", str(tmp_path / "a.vtu")]) == 0
    shown = capsys.readouterr().err
    assert "block.stl: 12 × 6 × 3 mm" in shown
    assert "Moon dust" in shown
    assert main([*simulate, "--scale", "fit", "--voxel", "6", "--layers", "60", "--out", str(tmp_path / "b.vtu")]) == 0
    assert "block.stl: 60 × 30 × 15 mm" in capsys.readouterr().err


def test_an_interrupted_report_resumes_with_its_plates(tmp_path, monkeypatch):
    """It is stopped in the study of the second plate; the pages are the same as without the interruption."""
    skin(bar((9, 6, 4.8))).to_mesh().save(tmp_path / "bar.stl")

    def write_page(build, folder, *, plates, exaggerate):
        fields = [result.released.displacement for result in (build, *plates[1].values())]
        (folder / "report.html").write_bytes(b"".join(field.tobytes() for field in fields))

    monkeypatch.setattr("flare.report.lpbf.write_build_page", write_page)
    simulate = ["lpbf", "simulate", str(tmp_path / "bar.stl"), *QUICK, "--no-series", "--plates", "300"]
    assert main([*simulate, "--out", str(tmp_path / "whole.vtu")]) == 0
    advance, printed = Build.advance, []

    def counted(self, state):
        printed.append(state.group)
        if len(printed) == 2 + 2 + 2:
            raise KeyboardInterrupt
        return advance(self, state)

    monkeypatch.setattr(Build, "advance", counted)
    out = ["--out", str(tmp_path / "stopped.vtu")]
    assert main([*simulate, *out]) == 130
    assert names(tmp_path / "stopped.vtu.partial" / "plates") == ["plate_0.npz", "plate_1.npz"]
    assert main([*simulate, *out]) == 0
    assert len(printed) == 2 + 2 + 2 + 1
    assert not (tmp_path / "stopped.vtu.partial").exists()
    for name in names(tmp_path / "whole_build"):
        assert (tmp_path / "stopped_build" / name).read_bytes() == (tmp_path / "whole_build" / name).read_bytes()


def soup(mesh):
    """Return the STL bytes of triangles as they are."""
    corners = np.asarray(mesh.triangles, dtype=np.float32)
    triangles = np.zeros(len(corners), dtype=TRIANGLE)
    triangles["corners"] = corners
    return bytes(80) + len(corners).to_bytes(4, "little") + triangles.tobytes()


def box(*extents, at=(0, 0, 0)):
    return trimesh.creation.box(extents).apply_translation(at)


def dumbbell():
    """Return two discs on a thread thinner than a voxel, one body in CAD."""
    profile = np.array([[0, 0], [3, 0], [3, 6], [0.05, 6], [0.05, 12], [3, 12], [3, 18], [0, 18]])
    return trimesh.creation.revolve(profile, sections=32)


UNFIT = {
    "held by a thread": (soup(dumbbell()), "pieces"),
    "on its tip": (soup(trimesh.creation.cone(10, 20).apply_scale([1, 1, -1])), "plate"),
    "beyond the machine": (soup(box(1900, 1900, 1900)), "1900 × 1900 × 1900 mm"),
    "large": (soup(box(90, 90, 90)), "--voxel"),
    "in inches": (soup(box(2.4, 1.2, 0.2)), "2.4 mm"),
    "thin": (soup(box(20, 20, 0.2)), "voxel"),
    "cut short": (soup(box(20, 10, 10))[:-20], "truncated"),
}


@pytest.mark.parametrize("case", UNFIT)
def test_parts_that_cannot_be_printed_fail_and_write_nothing(case, tmp_path, capsys):
    data, fact = UNFIT[case]
    (tmp_path / "part.stl").write_bytes(data)
    assert fact in fails(capsys, "lpbf", "simulate", tmp_path / "part.stl", "--out", tmp_path / "out" / "part.vtu")
    assert names(tmp_path) == ["part.stl"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (["--process", "ti64"], "ti64-am250"),
        (["--up", "z"], "up"),
        (["--unit", "inch"], "609.6 × 152.4 × 365.8 mm"),
        (["--frames", "0"], "--frames 0"),
        (["--threads", "0"], "threads"),
        (["--plates", "hot"], "--plates hot"),
        (["--voxl", "1"], "'--voxel'"),
    ],
)
def test_invalid_options_fail_and_write_nothing(part, tmp_path, capsys, options, fact):
    assert fact in fails(capsys, "lpbf", "simulate", part, "--out", tmp_path / "a.vtu", *options)
    assert names(tmp_path) == ["shelf.stl"]


def test_nothing_is_overwritten(part, tmp_path, capsys):
    (tmp_path / "a.vtu").write_text("mine")
    (tmp_path / "b_build").mkdir()
    (tmp_path / "b_build" / "notes").write_text("mine")
    for source, out, fact in (
        (part, "a.vtu", "a.vtu"),
        (part, "b.vtu", "b_build"),
        (part, "c.vtk", ".vtu"),
        (tmp_path / "none.stl", "c.vtu", "none.stl"),
    ):
        assert fact in fails(capsys, "lpbf", "simulate", source, "--out", tmp_path / out)
    assert "shelf.stl" in fails(capsys, "lpbf", "part", "--out", part)
    assert names(tmp_path) == ["a.vtu", "b_build/notes", "shelf.stl"]


def test_a_random_part_is_a_printable_file(tmp_path, capsys):
    pytest.importorskip("gmsh")
    for name in ("part.stl", "part.step"):
        assert main(["lpbf", "part", "--seed", "3", "--out", str(tmp_path / name)]) == 0
        assert "plate 60 × 15.2" in capsys.readouterr().out
    stl, step = read_part(tmp_path / "part.stl"), read_part(tmp_path / "part.step")
    assert stl.extents.max() == pytest.approx(60, abs=1e-3)
    assert stl.volume == pytest.approx(step.volume, rel=1e-3)
    assert "part.obj" in fails(capsys, "lpbf", "part", "--out", tmp_path / "part.obj")


def test_processes_are_listed_and_printed_as_files(tmp_path, capsys):
    assert main(["lpbf", "processes"]) == 0
    assert "ti64-am250: Ti-6Al-4V on Renishaw AM250" in capsys.readouterr().out
    assert main(["lpbf", "processes", "in625"]) == 0
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert load_process(tmp_path / "mine.yaml") == process_preset("in625")
    assert "'in625'" in fails(capsys, "lpbf", "processes", "in652")
    assert "'part'" in fails(capsys, "lpbf", "parts")
