"""A part from its file to whole files: the same bytes after any kill, and refusals that leave everything alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import meshio
import numpy as np
import pytest
import trimesh

from flare.errors import ConfigError, DataError, NotConverged
from flare.mesh.skin import skin
from flare.mesh.stl import write_stl
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.physics.lpbf import Process, process_preset, simulate
from flare.physics.lpbf.job import run
from flare.physics.lpbf.plates import coarser, hotter_plates
from flare.physics.lpbf.process import named_process
from flare.physics.lpbf.setup import MOST_VOXELS, prepare, voxel_size, with_voxel_layers
from flare.physics.lpbf.thermal import heating
from tests.physics.lpbf.shapes import bar, carve, coarse_process, shelf

COARSE = {"voxel": 1.5, "layers": 30}
"""Of `prepare`: the voxels of the test shapes."""


@pytest.fixture(scope="module")
def stl(tmp_path_factory):
    path = tmp_path_factory.mktemp("part") / "shelf.stl"
    write_stl(path, skin(shelf()))
    return path


@pytest.fixture(scope="module")
def setup(stl):
    return prepare(stl, **COARSE)


@pytest.fixture(scope="module")
def whole(setup, tmp_path_factory):
    """Files of an uninterrupted job."""
    folder = tmp_path_factory.mktemp("whole")
    run(setup, folder / "shelf.vtu", quiet=True)
    return content(folder)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_file_becomes_the_voxels_it_was_made_of(setup):
    assert np.array_equal(setup.voxels.solid, shelf().solid)
    assert setup.voxels.size == pytest.approx((1.5, 1.5, 1.2))
    assert setup.process == coarse_process()
    assert setup.groups == 6
    assert setup.tops == pytest.approx([2.4, 4.8, 7.2, 9.6, 12.0, 14.4])


def test_the_build_time_is_that_of_the_thermal_steps(setup):
    column, arm = 6 * 6 * 1.0, 24 * 6 * 1.0
    expected = [heating(setup.process.machine, area=a, height=2.4).duration for a in [column] * 4 + [arm] * 2]
    assert setup.seconds == pytest.approx(expected)


def test_the_files_hold_what_the_simulation_found(setup, whole, tmp_path):
    result = simulate(setup.voxels, setup.process)
    (tmp_path / "part.vtu").write_bytes(whole["shelf.vtu"])
    mesh = meshio.read(tmp_path / "part.vtu")
    released = result.released
    np.testing.assert_array_equal(mesh.points, result.positions)
    np.testing.assert_array_equal(mesh.cells_dict["hexahedron"], result.cells)
    for name in ("displacement", "elastic_strain", "stress", "von_mises"):
        np.testing.assert_array_equal(mesh.point_data[name], getattr(released, name))
    for group, frame in enumerate(result.frames, 1):
        (tmp_path / "step.vtu").write_bytes(whole[f"shelf_build/group_{group:03d}.vtu"])
        step = meshio.read(tmp_path / "step.vtu")
        np.testing.assert_array_equal(step.point_data["temperature"], frame.temperature.astype(np.float32))
        np.testing.assert_array_equal(step.point_data["displacement"], frame.displacement.astype(np.float32))
    steps = [f"group_{group:03d}.vtu" for group in range(1, 7)]
    assert set(whole) == {
        "shelf.vtu",
        *(f"shelf_build/{n}" for n in [*steps, "cooled.vtu", "released.vtu", "build.pvd"]),
    }
    for name in [*steps, "cooled.vtu", "released.vtu"]:
        assert f'file="{name}"' in whole["shelf_build/build.pvd"].decode()


KILLED_AT = {
    "a layer group": ("flare.physics.lpbf.job.Build.advance", 4),
    "saving a state": ("numpy.savez", 3),
    "writing a step": ("flare.physics.lpbf.job._write_step", 3),
    "the end": ("flare.physics.lpbf.job._write_part", 1),
    "putting files in place": ("pathlib.Path.rename", 1),
}


@pytest.mark.parametrize("moment", KILLED_AT)
def test_a_job_killed_at_any_moment_goes_on_and_ends_with_the_same_bytes(moment, stl, setup, whole, tmp_path):
    """The process kills itself with signal 9 after the n-th call of a function."""
    name, calls = KILLED_AT[moment]
    place, function = name.rsplit(".", 1)
    code = f"""
        import os, pkgutil, signal
        from flare.physics.lpbf.job import run
        from flare.physics.lpbf.setup import prepare
        place = pkgutil.resolve_name({place!r})
        call, left = getattr(place, {function!r}), {calls}
        def killed(*args, **kwargs):
            global left
            result = call(*args, **kwargs)
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        setattr(place, {function!r}, killed)
        run(prepare({str(stl)!r}, voxel=1.5, layers=30), {str(tmp_path / "shelf.vtu")!r}, quiet=True)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "shelf.vtu").exists()
    assert (tmp_path / "shelf.vtu.partial").is_dir()
    run(setup, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole


def test_a_resumed_job_does_not_print_finished_groups_again(setup, tmp_path, monkeypatch):
    from flare.physics.lpbf.build import Build

    advance, printed = Build.advance, []

    def counted(self, state):
        printed.append(state.group)
        if len(printed) == 4:
            raise KeyboardInterrupt
        return advance(self, state)

    monkeypatch.setattr(Build, "advance", counted)
    with pytest.raises(KeyboardInterrupt):
        run(setup, tmp_path / "a.vtu", quiet=True)
    run(setup, tmp_path / "a.vtu", quiet=True)
    assert printed == [0, 1, 2, 3, 3, 4, 5]


def test_an_unfinished_job_with_other_settings_is_refused_with_what_differs(setup, tmp_path, monkeypatch):
    monkeypatch.setattr("flare.physics.lpbf.job.Build.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(setup, tmp_path / "a.vtu", quiet=True)
    before = content(tmp_path)
    heated = replace(setup, process=setup.process.with_plate_temperature(200.0))
    other = prepare(skin(bar((24, 6, 14.4))), **COARSE)
    for changed, message in (
        (heated, r"process.machine.plate_temperature = None, not 200.0"),
        (replace(setup, mode="refined"), "mode = benchmark, not refined"),
        (replace(other, name="shelf.stl"), r"part.fingerprint = \w+, not \w+"),
    ):
        with pytest.raises(DataError, match=f"unfinished simulation with {message}; run it with its own settings"):
            run(changed, tmp_path / "a.vtu", quiet=True)
    with pytest.raises(DataError, match="steps = None, not 2"):
        run(setup, tmp_path / "a.vtu", steps=2, quiet=True)
    assert content(tmp_path) == before


def stop(*_):
    raise KeyboardInterrupt


def test_a_damaged_state_and_foreign_folders_are_refused(setup, tmp_path, monkeypatch):
    monkeypatch.setattr("flare.physics.lpbf.job.Build.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        run(setup, tmp_path / "a.vtu", quiet=True)
    state = tmp_path / "a.vtu.partial" / "state.npz"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"state.npz is damaged .* remove .*a.vtu.partial to start anew"):
        run(setup, tmp_path / "a.vtu", quiet=True)
    np.savez(state, pickled=np.array([{}], dtype=object))
    with pytest.raises(DataError, match=r"state.npz is damaged"):
        run(setup, tmp_path / "a.vtu", quiet=True)
    (tmp_path / "b.vtu.partial").mkdir()
    (tmp_path / "b.vtu.partial" / "thesis.txt").write_text("mine")
    with pytest.raises(DataError, match="in the way and no simulation of ours"):
        run(setup, tmp_path / "b.vtu", quiet=True)
    assert (tmp_path / "b.vtu.partial" / "thesis.txt").read_text() == "mine"


def test_what_exists_is_not_overwritten_even_if_it_came_meanwhile(setup, tmp_path):
    def late(outcome, folder):
        (tmp_path / "a.vtu").write_text("mine")

    with pytest.raises(DataError, match=r"a.vtu exists already"):
        run(setup, tmp_path / "a.vtu", more=late, quiet=True)
    assert (tmp_path / "a.vtu").read_text() == "mine"
    (tmp_path / "a.vtu").unlink()
    run(setup, tmp_path / "a.vtu", quiet=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.vtu", "a_build"]


def test_a_full_disk_and_a_solver_that_fails_are_told_with_what_is_kept(setup, whole, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("flare.physics.lpbf.job._write_part", full)
        with pytest.raises(DataError, match=r"cannot write .*: No space left on device. 6 of 6 layer groups are kept"):
            run(setup, tmp_path / "shelf.vtu", quiet=True)
    run(setup, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole

    def failing(self, state):
        raise NotConverged("it would not")

    monkeypatch.setattr("flare.physics.lpbf.job.Build.advance", failing)
    with pytest.raises(NotConverged, match=r"it would not. 0 of 6 layer groups are kept .*; try another voxel size"):
        run(setup, tmp_path / "other.vtu", quiet=True)


def test_two_jobs_do_not_write_one_file(setup, tmp_path):
    messages = []

    def second(outcome, folder):
        with pytest.raises(DataError, match="being written by another simulation") as refusal:
            run(setup, tmp_path / "a.vtu", more=second, quiet=True)
        messages.append(str(refusal.value))

    run(setup, tmp_path / "a.vtu", more=second, quiet=True)
    assert len(messages) == 1


@pytest.mark.parametrize(("steps", "kept"), [(1, [6]), (2, [1, 6]), (3, [1, 4, 6]), (99, [1, 2, 3, 4, 5, 6])])
def test_a_series_may_be_thinned(setup, tmp_path, steps, kept):
    run(setup, tmp_path / "a.vtu", steps=steps, quiet=True)
    groups = sorted(int(p.stem[6:]) for p in (tmp_path / "a_build").glob("group_*.vtu"))
    assert groups == kept


def test_without_series_and_report_there_is_one_file(setup, tmp_path, whole):
    run(setup, tmp_path / "shelf.vtu", series=False, quiet=True)
    assert content(tmp_path) == {"shelf.vtu": whole["shelf.vtu"]}


def test_voxels_follow_the_benchmark_unless_walls_are_thin():
    process = process_preset("ti64-am250")
    assert voxel_size(np.array([60.0, 12.0, 30.0]), process) == pytest.approx((0.46875, 0.375, 0.6))
    assert voxel_size(np.array([60.0, 3.0, 30.0]), process) == pytest.approx((0.46875, 0.6, 0.6))
    assert voxel_size(np.array([60.0, 1.0, 30.0]), process) == pytest.approx((0.46875, 0.5, 0.6))
    assert voxel_size(np.array([60.0, 10.0, 30.0]), process, 1.6) == pytest.approx((60 / 38, 10 / 7, 0.6))


@pytest.mark.parametrize(("layers", "per_group", "height"), [(15, 4, 2.4), (30, 2, 2.4), (25, 2, 2.0), (100, 1, 4.0)])
def test_layer_groups_stay_as_high_as_voxels_allow(layers, per_group, height):
    process = with_voxel_layers(Process(), layers)
    assert process.voxels_per_group == per_group
    assert process.group_height == pytest.approx(height)


def test_parts_are_turned_scaled_and_measured():
    block = skin(carve(lambda x, y, z: x == x, (12, 6, 3), (1.5, 1.5, 0.6)))
    assert prepare(block, voxel=1.2, up="+x").part.extents == pytest.approx([3, 6, 12])
    assert prepare(block, voxel=1.2, longest=60.0).part.extents == pytest.approx([60, 30, 15])
    inches = Surface(block.vertices / 25.4, block.faces)
    assert prepare(inches, voxel=1.2, unit="inch").part.extents == pytest.approx([12, 6, 3])
    assert prepare(block, voxel=1.2).voxels.size == pytest.approx((1.2, 1.2, 1.2))


def test_crumbs_behind_thin_walls_are_left_out_and_counted(tmp_path):
    """A disc with a small knob on a thread thinner than a voxel."""
    outline = np.array([[0, 0], [10, 0], [10, 6], [0.05, 6], [0.05, 9], [1, 9], [1, 11], [0, 11]])
    setup = prepare(trimesh.creation.revolve(outline, sections=32), voxel=1.0)
    assert setup.crumbs == pytest.approx(2 * np.pi, rel=0.4)
    assert setup.tops[-1] == pytest.approx(6)
    found = []
    run(setup, tmp_path / "a.vtu", series=False, more=lambda outcome, folder: found.append(outcome), quiet=True)
    assert len(found[0].interference) == setup.groups == 3


def test_settings_that_make_no_sense_are_refused(stl, tmp_path):
    for settings, message in (
        ({"voxel": 0.01}, "at least a powder layer of 0.04 mm"),
        ({"voxel": float("nan")}, "at least a powder layer"),
        ({"layers": 0}, "at least one powder layer high"),
        ({"mode": "benchmrk"}, "did you mean 'benchmark'"),
        ({"up": "z"}, "is not an axis of the part"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare(stl, **settings)
    with pytest.raises(ConfigError, match=r"there is no process 'in652'; did you mean 'in625'\?.* ends in .yaml"):
        named_process("in652")
    assert named_process("in625") == process_preset("in625")
    with pytest.raises(ConfigError, match=r"ends in \.vtu"):
        run(prepare(stl, **COARSE), tmp_path / "part.vtk")
    with pytest.raises(DataError, match=rf"the limit is {MOST_VOXELS:,}: use larger ones with --voxel"):
        prepare(skin(bar((150, 150, 60), (15.0, 15.0, 12.0))))
    with pytest.raises(Unfit, match="no voxel centre is inside"):
        prepare(skin(bar((12, 6, 0.2), (1.0, 1.0, 0.2))))
    assert list(tmp_path.iterdir()) == []


def test_a_hotter_plate_distorts_less_in_the_study(setup):
    study, found = hotter_plates(setup, [300.0, 500.0], quiet=True)
    assert study.mode == "refined"
    assert list(found) == [None, 300.0, 500.0]
    spans = [np.ptp(result.released.displacement[:, 2]) for result in found.values()]
    assert spans[0] > spans[1] > spans[2]


def test_the_study_takes_voxels_twice_as_large_where_the_part_stays_whole(setup):
    study = coarser(setup)
    assert study.voxels.size == pytest.approx((3.0, 3.0, 2.4))
    assert study.process.group_height == pytest.approx(setup.process.group_height)
    assert study.voxels.volume == pytest.approx(setup.voxels.volume, rel=0.2)
    wall = prepare(skin(bar((24, 1.5, 14.4))), **COARSE)
    wires = prepare(skin(carve(lambda x, y, z: (np.abs(x) > 9) | (z < 1.2), (21, 1.5, 12))), **COARSE)
    assert coarser(wall).voxels.count > 0
    assert coarser(wires).mode == "refined"
