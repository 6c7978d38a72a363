"""Resumable jobs: the same bytes after any interruption, and errors that leave all files untouched."""

from __future__ import annotations

import functools
import io
import os
import pkgutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import meshio
import numpy as np
import pytest
import trimesh
from scipy.spatial import KDTree

from flare.mesh.surface import GeometryError, Surface
from flare.mesh.voxels import Voxels, skin
from flare.physics.lpbf import Material, Process, process_preset, simulate
from flare.physics.lpbf.build import Build
from flare.physics.lpbf.job import run
from flare.physics.lpbf.plates import coarsen, compare_plate_temperatures
from flare.physics.lpbf.results import FIELDS
from flare.physics.lpbf.setup import MAX_VOXELS, prepare, voxel_size, with_voxel_layers
from flare.physics.lpbf.thermal import group_heating
from flare.utils.errors import ConfigError, DataError
from tests.physics.lpbf.shapes import bar, carve, coarse_process, shelf

COARSE = {"voxel": 1.5, "layers": 30}
"""Settings of `prepare` for the voxels of the test shapes."""


@pytest.fixture(scope="module")
def stl(tmp_path_factory):
    path = tmp_path_factory.mktemp("part") / "shelf.stl"
    skin(shelf()).to_mesh().save(path)
    return path


@pytest.fixture(scope="module")
def setup(stl):
    return prepare(stl, **COARSE)


@pytest.fixture(scope="module")
def whole(setup, tmp_path_factory):
    """Return the files of an uninterrupted job."""
    folder = tmp_path_factory.mktemp("whole")
    run(setup, folder / "shelf.vtu", quiet=True)
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_file_gives_the_voxels_it_was_made_of(setup):
    assert np.array_equal(setup.voxels.solid, shelf().solid)
    assert setup.voxels.size == pytest.approx((1.5, 1.5, 1.2))
    assert setup.process == coarse_process()
    assert setup.groups == 6
    assert setup.tops == pytest.approx([2.4, 4.8, 7.2, 9.6, 12.0, 14.4])


def test_the_build_time_is_that_of_the_thermal_steps(setup):
    column, arm = 6 * 6 * 1.0, 24 * 6 * 1.0
    expected = [group_heating(setup.process.machine, area=a, height=2.4).duration for a in [column] * 4 + [arm] * 2]
    assert setup.group_seconds == pytest.approx(expected)


def test_the_files_hold_the_result_of_the_simulation(setup, whole, tmp_path):
    result = simulate(setup.voxels, setup.process)
    (tmp_path / "part.vtu").write_bytes(whole["shelf.vtu"])
    mesh = meshio.read(tmp_path / "part.vtu")
    released = result.released
    np.testing.assert_array_equal(mesh.points, result.positions)
    np.testing.assert_array_equal(mesh.cells_dict["hexahedron"], result.cells)
    for name in FIELDS:
        np.testing.assert_array_equal(mesh.point_data[name], getattr(released, name))
    for group, frame in enumerate(result.frames, 1):
        (tmp_path / "step.vtu").write_bytes(whole[f"shelf_build/group_{group:03d}.vtu"])
        step = meshio.read(tmp_path / "step.vtu")
        assert set(step.point_data) == set(FIELDS)
        for name in FIELDS:
            np.testing.assert_array_equal(step.point_data[name], getattr(frame, name).astype(np.float32))
    steps = [f"group_{group:03d}.vtu" for group in range(1, 7)]
    assert set(whole) == {
        "shelf.vtu",
        *(f"shelf_build/{n}" for n in [*steps, "cooled.vtu", "released.vtu", "build.pvd", "groups.csv"]),
    }
    for name in [*steps, "cooled.vtu", "released.vtu"]:
        assert f'file="{name}"' in whole["shelf_build/build.pvd"].decode()
    table = np.genfromtxt(io.BytesIO(whole["shelf_build/groups.csv"]), delimiter=",", names=True)
    assert table["group"].tolist() == [1, 2, 3, 4, 5, 6]
    near = functools.partial(pytest.approx, rel=5e-6)  # six digits
    assert table["top_mm"].tolist() == near(setup.tops)
    met = [table[name] for name in ("interference_mm", "x_mm", "y_mm", "z_mm")]
    np.testing.assert_allclose(np.stack(met, 1), result.interference, rtol=5e-6)
    assert table["peak_temperature_C"].max() == near(result.peak_temperature)
    assert table["mean_temperature_C"].tolist() == near([frame.temperature.mean() for frame in result.frames])
    assert table["peak_von_mises_MPa"].tolist() == near([frame.center_von_mises.max() for frame in result.frames])
    assert max(len(word) for word in whole["shelf_build/groups.csv"].decode().split("\n")[1].split(",")) <= 11


def test_the_part_may_be_written_on_merged_voxels(setup, whole, tmp_path):
    """Every node of the merged mesh is a node of the voxels with its values, and no peak is lost."""
    run(setup, tmp_path / "octree.vtu", mesh="octree", series=False, quiet=True)
    (tmp_path / "voxels.vtu").write_bytes(whole["shelf.vtu"])
    fine, coarse = (meshio.read(tmp_path / f"{name}.vtu") for name in ("voxels", "octree"))
    assert len(coarse.cells_dict["hexahedron"]) < 0.7 * len(fine.cells_dict["hexahedron"])
    distance, node = KDTree(fine.points).query(coarse.points)
    assert distance.max() < 1e-9
    for name in FIELDS:
        np.testing.assert_array_equal(coarse.point_data[name], fine.point_data[name][node])
    assert coarse.cell_data["von_mises"][0].max() == fine.cell_data["von_mises"][0].max()


@pytest.fixture
def printed(monkeypatch):
    """Groups that `Build.advance` prints, as (plate temperature, group); `interrupt_at` stops before the n-th."""
    advance, calls = Build.advance, SimpleNamespace(groups=[], interrupt_at=None)

    def count(self, state):
        calls.groups.append((self.process.machine.plate_temperature, state.group))
        if len(calls.groups) == calls.interrupt_at:
            raise KeyboardInterrupt
        return advance(self, state)

    monkeypatch.setattr(Build, "advance", count)
    return calls


def test_a_resumed_job_does_not_print_finished_groups_again(setup, tmp_path, printed):
    printed.interrupt_at = 4
    with pytest.raises(KeyboardInterrupt):
        run(setup, tmp_path / "a.vtu", quiet=True)
    run(setup, tmp_path / "a.vtu", quiet=True)
    assert printed.groups == [(None, n) for n in (0, 1, 2, 3, 3, 4, 5)]


@pytest.fixture
def unfinished(setup, tmp_path, monkeypatch):
    """Folder of a job that was stopped after its last group."""
    with monkeypatch.context() as patch:
        patch.setattr("flare.physics.lpbf.job.Build.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            run(setup, tmp_path / "a.vtu", quiet=True)
    return tmp_path


def test_an_unfinished_job_with_other_settings_raises_with_the_difference(setup, unfinished):
    before = content(unfinished)
    heated = replace(setup, process=setup.process.with_plate_temperature(200.0))
    other = replace(prepare(skin(bar((24, 6, 14.4))), **COARSE), name="shelf.stl")
    for changed, options, fact in (
        (heated, {}, "process.machine.plate_temperature = None, not 200.0"),
        (replace(setup, mode="refined"), {}, "mode = benchmark, not refined"),
        (other, {}, r"part.fingerprint = \w+, not \w+"),
        (setup, {"steps": 2}, "steps = None, not 2"),
        (setup, {"mesh": "octree"}, "mesh = voxels, not octree"),
        (setup, {"fields": ["stress"]}, "fields = "),
    ):
        with pytest.raises(DataError, match=fact):
            run(changed, unfinished / "a.vtu", **options, quiet=True)
    assert content(unfinished) == before


def stop(*_):
    raise KeyboardInterrupt


def test_damaged_states_and_foreign_folders_raise(setup, unfinished):
    state = unfinished / "a.vtu.partial" / "state.npz"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"state\.npz"):
        run(setup, unfinished / "a.vtu", quiet=True)
    np.savez(state, pickled=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"state\.npz"):
        run(setup, unfinished / "a.vtu", quiet=True)
    foreign = unfinished / "b.vtu.partial"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match=str(foreign)):
        run(setup, unfinished / "b.vtu", quiet=True)
    assert (foreign / "thesis.txt").read_text() == "mine"


def test_a_file_that_appears_during_the_job_is_not_overwritten(setup, tmp_path):
    def create(build, folder):
        (tmp_path / "a.vtu").write_text("mine")

    with pytest.raises(DataError, match=r"a\.vtu"):
        run(setup, tmp_path / "a.vtu", post_process=create, quiet=True)
    assert (tmp_path / "a.vtu").read_text() == "mine"
    (tmp_path / "a.vtu").unlink()
    run(setup, tmp_path / "a.vtu", quiet=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.vtu", "a_build"]


def test_two_jobs_cannot_write_one_file(setup, tmp_path):
    refused = []

    def start_second(build, folder):
        with pytest.raises(DataError, match=r"a\.vtu\.partial"):
            run(setup, tmp_path / "a.vtu", post_process=start_second, quiet=True)
        refused.append(True)

    run(setup, tmp_path / "a.vtu", post_process=start_second, quiet=True)
    assert refused == [True]


def test_voxels_follow_the_benchmark_unless_walls_are_thin():
    process = process_preset("ti64-am250")
    assert voxel_size(np.array([60.0, 12.0, 30.0]), process) == pytest.approx((0.46875, 0.375, 0.6))
    assert voxel_size(np.array([60.0, 3.0, 30.0]), process) == pytest.approx((0.46875, 0.6, 0.6))
    assert voxel_size(np.array([60.0, 1.0, 30.0]), process) == pytest.approx((0.46875, 0.5, 0.6))
    assert voxel_size(np.array([60.0, 10.0, 30.0]), process, 1.6) == pytest.approx((60 / 38, 10 / 7, 0.6))


def test_voxels_give_the_same_job_as_their_file(setup, whole, tmp_path, monkeypatch):
    """Also when the job is interrupted; empty voxels around the part do not matter."""
    around = Voxels(np.pad(shelf().solid, [(1, 2), (3, 0), (0, 4)]), shelf().size, (-13.5, -7.5, 0.0))
    prepared = prepare(around)
    assert prepared.process == setup.process
    assert prepared.part.volume == pytest.approx(around.volume)
    with monkeypatch.context() as patch:
        patch.setattr("flare.physics.lpbf.job.Build.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            run(around, tmp_path / "shelf.vtu", quiet=True)
    other = replace(around, solid=np.pad(bar((24, 6, 14.4)).solid, [(1, 2), (3, 0), (0, 4)]))
    with pytest.raises(DataError, match=r"part\.fingerprint"):
        run(other, tmp_path / "shelf.vtu", quiet=True)
    run(around, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole


def test_parts_are_rotated_and_scaled():
    block = skin(carve(lambda x, y, z: x == x, (12, 6, 3), (1.5, 1.5, 0.6)))
    assert prepare(block, voxel=1.2, up="+x").part.extents == pytest.approx([3, 6, 12])
    assert prepare(block, voxel=1.2, longest=60.0).part.extents == pytest.approx([60, 30, 15])
    inches = Surface(block.vertices / 25.4, block.faces)
    assert prepare(inches, voxel=1.2, unit="inch").part.extents == pytest.approx([12, 6, 3])
    assert prepare(block, voxel=1.2).voxels.size == pytest.approx((1.2, 1.2, 1.2))


def test_an_interrupted_plate_study_resumes_at_its_group(setup, tmp_path, printed):
    _, whole = compare_plate_temperatures(setup, [300.0], quiet=True)
    printed.groups.clear()
    printed.interrupt_at = 9
    with pytest.raises(KeyboardInterrupt):
        compare_plate_temperatures(setup, [300.0], save_folder=tmp_path, quiet=True)
    _, found = compare_plate_temperatures(setup, [300.0], save_folder=tmp_path, quiet=True)
    assert printed.groups == [*((None, n) for n in range(6)), *((300.0, n) for n in (0, 1, 2, 2, 3, 4, 5))]
    for temperature, result in whole.items():
        again = found[temperature]
        np.testing.assert_array_equal(again.released.displacement, result.released.displacement)
        np.testing.assert_array_equal(again.interference, result.interference)
        assert again.peak_temperature == result.peak_temperature
    (tmp_path / "plate_1.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"plate_1\.npz"):
        compare_plate_temperatures(setup, [300.0], save_folder=tmp_path, quiet=True)


def test_the_study_doubles_the_voxels_if_the_part_stays_whole(setup):
    study = coarsen(setup)
    assert study.voxels.size == (3.0, 3.0, pytest.approx(2.4))
    assert study.process.group_height == pytest.approx(setup.process.group_height)
    assert study.voxels.volume == pytest.approx(setup.voxels.volume, rel=0.2)
    odd = coarsen(prepare(skin(bar((60, 12, 4.8), (2.4, 2.4, 2.4))), voxel=2.4))
    assert odd.voxels.size == pytest.approx((60 / 13, 12 / 3, 2.4))
    assert odd.voxels.origin[0] == pytest.approx(-30), "voxels end with the part"
    wires = prepare(skin(carve(lambda x, y, z: (np.abs(x) > 9) | (z < 1.2), (21, 1.5, 12))), **COARSE)
    assert coarsen(wires).mode == "refined"


KILLED_AT = {
    "a layer group": ("flare.physics.lpbf.job.Build.advance", 4),
    "saving a state": ("numpy.savez", 3),
    "writing a step": ("flare.physics.lpbf.job.write_frame", 3),
    "the end": ("flare.physics.lpbf.job.write_part", 1),
    "putting files in place": ("pathlib.Path.rename", 1),
}


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_job_killed_at_any_moment_resumes_and_ends_with_the_same_bytes(moment, setup, whole, tmp_path):
    """A forked process kills itself with signal 9 after the n-th call of a function."""
    name, left = KILLED_AT[moment]
    place, function = name.rsplit(".", 1)
    call, child = getattr(pkgutil.resolve_name(place), function), os.fork()
    if child == 0:

        def killed(*args, **kwargs):
            nonlocal left
            result, left = call(*args, **kwargs), left - 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        try:
            setattr(pkgutil.resolve_name(place), function, killed)
            run(setup, tmp_path / "shelf.vtu", quiet=True)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not (tmp_path / "shelf.vtu").exists()
    assert (tmp_path / "shelf.vtu.partial").is_dir()
    run(setup, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole


def test_a_failed_job_logs_the_saved_groups_and_resumes(setup, whole, tmp_path, monkeypatch, caplog):
    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flare.physics.lpbf.job.write_part", fail)
        with pytest.raises(OSError, match="No space left"):
            run(setup, tmp_path / "shelf.vtu", quiet=True)
    assert "6 of 6 layer groups" in caplog.text
    run(setup, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole


def test_the_series_may_be_thinned_or_left_out(setup, tmp_path, whole):
    run(setup, tmp_path / "a.vtu", steps=3, fields=["temperature", "displacement"], quiet=True)
    assert sorted(int(p.stem[6:]) for p in (tmp_path / "a_build").glob("group_*.vtu")) == [1, 4, 6]
    for name in ("group_006", "cooled", "released"):
        assert set(meshio.read(tmp_path / f"a_build/{name}.vtu").point_data) == {"displacement", "temperature"}
    assert (tmp_path / "a.vtu").read_bytes() == whole["shelf.vtu"]
    run(setup, tmp_path / "b.vtu", series=False, quiet=True)
    assert not (tmp_path / "b_build").exists()


@pytest.mark.parametrize(("layers", "per_group", "height"), [(15, 4, 2.4), (25, 2, 2.0), (60, 1, 2.4)])
def test_layer_groups_hold_whole_voxels(layers, per_group, height):
    process = with_voxel_layers(Process(), layers)
    assert process.voxels_per_group == per_group
    assert process.group_height == pytest.approx(height)


def test_notes_report_doubtful_sizes(setup, tmp_path, caplog):
    def notes(surface, **settings):
        return prepare(surface, **settings).notes

    part, wall = skin(shelf()), skin(bar((24, 1.5, 14.4)))
    assert setup.notes == ()
    assert "4 mm" in notes(Surface(part.vertices / 6, part.faces))[0]
    assert "layers=20" in notes(part, voxel=1.0)[0]
    (thin,) = notes(wall, voxel=1.5, layers=30)
    assert "100 %" in thin
    (volume,) = notes(skin(bar((24, 12, 5.6), (1.0, 1.0, 0.1))), voxel=1.5, layers=30)
    assert "107 %" in volume
    hot = prepare(skin(bar((6, 6, 2.4))), replace(setup.process, material=Material(solidus=1.0)))
    caplog.set_level("INFO", logger="flare")
    run(hot, tmp_path / "a.vtu", series=False)
    assert "solidus of Ti-6Al-4V (1 °C)" in caplog.text


def test_voxels_behind_thin_walls_are_dropped_and_counted():
    """A disc with a small knob on a thread thinner than a voxel."""
    outline = np.array([[0, 0], [10, 0], [10, 6], [0.05, 6], [0.05, 9], [1, 9], [1, 11], [0, 11]])
    setup = prepare(trimesh.creation.revolve(outline, sections=32), voxel=1.0)
    assert setup.dropped_voxels == pytest.approx(2 * np.pi, rel=0.4)
    assert setup.tops[-1] == pytest.approx(6)


SHEET = Surface(skin(bar((60, 30, 6))).vertices / 25.4, skin(bar((60, 30, 6))).faces)
LONG = skin(bar((300, 15, 12), (15.0, 15.0, 2.4)))


@pytest.mark.parametrize(
    ("error", "fact", "call"),
    [
        (ConfigError, "out=part.vtk", lambda: run(shelf(), "part.vtk")),
        (ConfigError, "mesh=octre", lambda: run(shelf(), "a.vtu", mesh="octre")),
        (ConfigError, "fields=", lambda: run(shelf(), "a.vtu", fields=[])),
        (ConfigError, "steps=0", lambda: run(shelf(), "a.vtu", steps=0)),
        (ConfigError, "'benchmark'", lambda: run(prepare(shelf(), mode="benchmrk"), "a.vtu")),
        (ConfigError, "voxel", lambda: prepare(shelf(), voxel=1.0)),
        (ConfigError, r"1\.21 mm.* 0\.04 mm", lambda: prepare(replace(shelf(), size=(1.5, 1.5, 1.21)))),
        (ConfigError, "layers=80.* 2.4 mm", lambda: prepare(replace(shelf(), size=(1.5, 1.5, 3.2)))),
        (DataError, "z = 5 mm", lambda: prepare(replace(shelf(), origin=(0.0, 0.0, 5.0)))),
        (GeometryError, r"600 × 150 × 14\.4 mm", lambda: prepare(replace(shelf(), size=(37.5, 37.5, 1.2)))),
        (GeometryError, "300 × 15 × 12 mm.* 250 × 250 × 300 mm", lambda: prepare(LONG, **COARSE)),
        (GeometryError, "part is only 2.36 mm long", lambda: prepare(SHEET)),
        (DataError, f"{MAX_VOXELS:,}", lambda: prepare(skin(bar((150, 150, 60), (15.0, 15.0, 12.0))))),
        (ConfigError, "voxel=nan", lambda: prepare(LONG, voxel=float("nan"))),
        (ConfigError, "layers=61.* 60", lambda: prepare(LONG, layers=61)),
        (ConfigError, "'z'", lambda: prepare(LONG, up="z")),
    ],
)
def test_invalid_parts_and_settings_raise_and_write_nothing(tmp_path, monkeypatch, error, fact, call):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=fact):
        call()
    assert list(tmp_path.iterdir()) == []
