"""A part from its file to whole files: the same bytes after any kill, and refusals that leave everything alone."""

from __future__ import annotations

import functools
import io
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
from scipy.spatial import KDTree

from flare.mesh.octree import merged
from flare.mesh.skin import skin
from flare.mesh.stl import write_stl
from flare.mesh.surface import Surface
from flare.mesh.unfit import Unfit
from flare.mesh.voxels import Voxels
from flare.physics.lpbf import Process, process_preset, simulate
from flare.physics.lpbf.corners import Corners
from flare.physics.lpbf.job import run
from flare.physics.lpbf.output import FIELDS
from flare.physics.lpbf.plates import coarser, hotter_plates
from flare.physics.lpbf.process import named_process
from flare.physics.lpbf.setup import MOST_VOXELS, prepare, voxel_size, with_voxel_layers
from flare.physics.lpbf.thermal import heating
from flare.utils.errors import ConfigError, DataError, NotConverged
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
    assert table["peak_von_mises_MPa"].tolist() == near([frame.centre_von_mises.max() for frame in result.frames])
    assert max(len(word) for word in whole["shelf_build/groups.csv"].decode().split("\n")[1].split(",")) <= 11


def test_the_part_may_be_written_on_merged_voxels(setup, whole, tmp_path):
    """Every node of the merged mesh is a node of the voxels and has its values; no peak is lost."""
    run(setup, tmp_path / "octree.vtu", mesh="octree", series=False, quiet=True)
    (tmp_path / "voxels.vtu").write_bytes(whole["shelf.vtu"])
    fine, coarse = (meshio.read(tmp_path / f"{name}.vtu") for name in ("voxels", "octree"))
    assert len(coarse.cells_dict["hexahedron"]) < 0.7 * len(fine.cells_dict["hexahedron"])
    distance, node = KDTree(fine.points).query(coarse.points)
    assert distance.max() < 1e-9
    for name in FIELDS:
        np.testing.assert_array_equal(coarse.point_data[name], fine.point_data[name][node])
    assert coarse.cell_data["von_mises"][0].max() == fine.cell_data["von_mises"][0].max()


def test_a_merged_hexahedron_has_the_largest_stress_of_its_voxels(setup):
    result = simulate(setup.voxels, setup.process, keep_frames=False)
    mesh, values = merged(setup.voxels), result.released.centre_von_mises
    peaks = Corners(setup.voxels, mesh, result.positions).peaks(values, result.cells)
    centres = result.positions[result.cells].mean(1)
    low, high = mesh.points[mesh.hexahedra[:, 0]], mesh.points[mesh.hexahedra[:, 6]]
    inside = ((centres >= low[:, None]) & (centres <= high[:, None])).all(2)
    assert inside.sum() == len(values)
    assert peaks.tolist() == [values[some].max() for some in inside]


KILLED_AT = {
    "a layer group": ("flare.physics.lpbf.job.Build.advance", 4),
    "saving a state": ("numpy.savez", 3),
    "writing a step": ("flare.physics.lpbf.job.write_step", 3),
    "writing the table": ("flare.physics.lpbf.job.write_table", 1),
    "the end": ("flare.physics.lpbf.job.write_part", 1),
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


def test_a_resumed_job_does_not_print_finished_groups_again(setup, tmp_path, monkeypatch, capsys):
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
    assert "recoater" in run(setup, tmp_path / "a.vtu")
    assert printed == [0, 1, 2, 3, 3, 4, 5]
    assert "going on after group 3 of 6" in capsys.readouterr().err


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
    for choice, message in (
        ({"steps": 2}, "steps = None, not 2"),
        ({"mesh": "octree"}, "mesh = voxels, not octree"),
        ({"fields": ["stress"]}, "fields = "),
    ):
        with pytest.raises(DataError, match=message):
            run(setup, tmp_path / "a.vtu", **choice, quiet=True)
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
        patch.setattr("flare.physics.lpbf.job.write_part", full)
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


def test_a_series_may_have_fewer_fields(setup, tmp_path):
    run(setup, tmp_path / "a.vtu", steps=1, fields=["temperature", "displacement"], quiet=True)
    for name in ("group_006", "cooled", "released"):
        assert set(meshio.read(tmp_path / f"a_build/{name}.vtu").point_data) == {"displacement", "temperature"}
    assert set(meshio.read(tmp_path / "a.vtu").point_data) == set(FIELDS)


def test_without_series_and_report_there_is_one_file(setup, tmp_path, whole):
    run(setup, tmp_path / "shelf.vtu", series=False, quiet=True)
    assert content(tmp_path) == {"shelf.vtu": whole["shelf.vtu"]}


def test_voxels_follow_the_benchmark_unless_walls_are_thin():
    process = process_preset("ti64-am250")
    assert voxel_size(np.array([60.0, 12.0, 30.0]), process) == pytest.approx((0.46875, 0.375, 0.6))
    assert voxel_size(np.array([60.0, 3.0, 30.0]), process) == pytest.approx((0.46875, 0.6, 0.6))
    assert voxel_size(np.array([60.0, 1.0, 30.0]), process) == pytest.approx((0.46875, 0.5, 0.6))
    assert voxel_size(np.array([60.0, 10.0, 30.0]), process, 1.6) == pytest.approx((60 / 38, 10 / 7, 0.6))


@pytest.mark.parametrize(("layers", "per_group", "height"), [(15, 4, 2.4), (30, 2, 2.4), (25, 2, 2.0), (60, 1, 2.4)])
def test_layer_groups_stay_as_high_as_voxels_allow(layers, per_group, height):
    process = with_voxel_layers(Process(), layers)
    assert process.voxels_per_group == per_group
    assert process.group_height == pytest.approx(height)


def test_a_part_of_voxels_is_the_same_job_as_its_file(setup, whole, tmp_path, monkeypatch):
    """Also when it is stopped and gone on with; empty voxels around it do not matter."""
    around = Voxels(np.pad(shelf().solid, [(1, 2), (3, 0), (0, 4)]), shelf().size, (-13.5, -7.5, 0.0))
    prepared = prepare(around)
    assert prepared.process == setup.process
    assert prepared.part.volume == pytest.approx(around.volume)
    with monkeypatch.context() as patch:
        patch.setattr("flare.physics.lpbf.job.Build.finish", stop)
        with pytest.raises(KeyboardInterrupt):
            run(around, tmp_path / "shelf.vtu", quiet=True)
    other = replace(around, solid=np.pad(bar((24, 6, 14.4)).solid, [(1, 2), (3, 0), (0, 4)]))
    with pytest.raises(DataError, match=r"part.fingerprint = \w+, not \w+"):
        run(other, tmp_path / "shelf.vtu", quiet=True)
    run(around, tmp_path / "shelf.vtu", quiet=True)
    assert content(tmp_path) == whole


def test_voxels_that_are_no_part_are_refused():
    part = shelf()
    for settings in ({"voxel": 1.0}, {"layers": 15}, {"unit": "cm"}, {"longest": 60.0}, {"up": "+x"}):
        with pytest.raises(ConfigError, match=f"{next(iter(settings))}: voxels are taken as they are"):
            prepare(part, **settings)
    with pytest.raises(
        ConfigError, match=r"1.21 mm high are no whole number of powder layers of 0.04 mm; make them 1.2"
    ):
        prepare(replace(part, size=(1.5, 1.5, 1.21)))
    with pytest.raises(ConfigError, match=r"voxels 3.2 mm high are higher than a layer group of 2.4 mm"):
        prepare(replace(part, size=(1.5, 1.5, 3.2)))
    with pytest.raises(DataError, match="does not touch the plate"):
        prepare(replace(part, origin=(0.0, 0.0, 5.0)))
    with pytest.raises(DataError, match=r"600 × 150 × 14.4 mm as it stands.*is the size of its voxels in mm\?"):
        prepare(replace(part, size=(37.5, 37.5, 1.2)))
    with pytest.raises(DataError, match="three finite lengths"):
        prepare(replace(part, size=(1.5, 1.5, float("nan"))))


def test_a_part_larger_than_the_machine_is_refused_with_both_sizes():
    long = skin(bar((300, 15, 12), (15.0, 15.0, 2.4)))
    with pytest.raises(
        Unfit, match=r"300 × 15 × 12 mm as it stands.*Renishaw AM250 is 250 × 250 × 300 mm; .*--scale fit"
    ):
        prepare(long, **COARSE)
    assert prepare(long, voxel=5.0, layers=60, up="+x").part.extents == pytest.approx([12, 15, 300])
    inches = Surface(long.vertices / 3, long.faces)
    with pytest.raises(Unfit, match=r"2540 × 127 × 101.6 mm|is 2540 mm long"):
        prepare(inches, unit="inch")
    with pytest.raises(Unfit, match=r"1000 × 50 × 40 mm as it stands.*did you mean --unit mm"):
        prepare(inches, unit="cm")
    process = Process()
    narrow = replace(process, machine=replace(process.machine, build_volume=(10.0, 30.0, 20.0)))
    assert prepare(skin(shelf()), narrow, **COARSE).voxels.count == 384  # a quarter turn on the plate is free
    low = replace(process, machine=replace(process.machine, build_volume=(250.0, 250.0, 14.0)))
    with pytest.raises(Unfit, match=r"24 × 6 × 14.4 mm"):
        prepare(skin(shelf()), low, **COARSE)


def test_notes_tell_what_may_be_wrong(setup):
    assert setup.notes == ()
    tiny = Surface(skin(shelf()).vertices / 6, skin(shelf()).faces)
    note = prepare(tiny).notes[0]
    assert note.startswith("the part is only 4 mm long: did you mean --unit cm or inch? If not")
    note = prepare(skin(shelf()), voxel=1.0).notes[0]
    assert note == (
        "layer groups are 2 mm high, not 2.4 mm, because they are of whole voxels; those of 0.8 mm (--layers 20) would "
        "fill them"
    )
    assert prepare(skin(shelf()), voxel=1.0, layers=20).notes == ()


def test_a_part_too_small_for_voxels_is_asked_for_its_unit_first():
    sheet = Surface(skin(bar((60, 30, 6))).vertices / 25.4, skin(bar((60, 30, 6))).faces)
    with pytest.raises(
        Unfit, match=r"^part is only 2.36 mm long: did you mean --unit cm or inch\?.*As it is, no voxel"
    ):
        prepare(sheet)
    assert prepare(sheet, unit="inch", voxel=1.2).notes == ()
    with pytest.raises(Unfit, match=r"^no voxel centre is inside"):
        prepare(skin(bar((60, 30, 0.2), (1.0, 1.0, 0.2))))


def test_voxels_that_are_too_coarse_for_the_part_are_told():
    wall = skin(bar((24, 1.5, 14.4)))
    (note,) = prepare(wall, voxel=1.5, layers=30).notes
    assert note.startswith("100 % of the voxels are in walls one voxel thick: there, peak stress and bending depend on")
    assert prepare(wall, voxel=0.6).notes == ()
    slab = skin(bar((24, 12, 5.6), (1.0, 1.0, 0.1)))
    (note,) = prepare(slab, voxel=1.5, layers=30).notes
    assert note.startswith("the voxels have 107 % of the part's volume")
    assert note.endswith("--voxel 0.75")


def test_metal_above_its_solidus_is_told(setup, tmp_path, capsys):
    metal = replace(setup.process.material, solidus=1.0)
    run(replace(setup, process=replace(setup.process, material=metal)), tmp_path / "a.vtu", series=False)
    assert "above the solidus of Ti-6Al-4V (1 °C)" in capsys.readouterr().err
    run(setup, tmp_path / "b.vtu", series=False)
    assert "solidus" not in capsys.readouterr().err


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
        ({"voxel": 100.0}, "voxels 100 mm high are higher than a layer group of 2.4 mm; use --voxel 2.4 or less"),
        ({"layers": 61}, "--layers 60 for flat ones"),
    ):
        with pytest.raises(ConfigError, match=message):
            prepare(stl, **settings)
    with pytest.raises(ConfigError, match=r"there is no process 'in652'; did you mean 'in625'\?.* ends in .yaml"):
        named_process("in652")
    assert named_process("in625") == process_preset("in625")
    with pytest.raises(ConfigError, match=r"ends in \.vtu"):
        run(prepare(stl, **COARSE), tmp_path / "part.vtk")
    for settings, message in (
        ({"mesh": "octre"}, "did you mean 'octree'"),
        ({"fields": ["stres"]}, "did you mean 'stress'"),
        ({"fields": []}, "keep at least one"),
    ):
        with pytest.raises(ConfigError, match=message):
            run(prepare(stl, **COARSE), tmp_path / "part.vtu", **settings)
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


def test_a_study_that_was_stopped_goes_on_with_the_group_it_was_at(setup, tmp_path, monkeypatch):
    from flare.physics.lpbf.build import Build

    advance, printed = Build.advance, []
    _, whole = hotter_plates(setup, [300.0], quiet=True)

    def counted(self, state):
        printed.append((self.process.machine.plate_temperature, state.group))
        if len(printed) == 9:
            raise KeyboardInterrupt
        return advance(self, state)

    monkeypatch.setattr(Build, "advance", counted)
    with pytest.raises(KeyboardInterrupt):
        hotter_plates(setup, [300.0], keep=tmp_path, quiet=True)
    _, found = hotter_plates(setup, [300.0], keep=tmp_path, quiet=True)
    assert printed == [*((None, n) for n in range(6)), *((300.0, n) for n in (0, 1, 2, 2, 3, 4, 5))]
    for temperature, result in whole.items():
        again = found[temperature]
        np.testing.assert_array_equal(again.released.displacement, result.released.displacement)
        np.testing.assert_array_equal(again.interference, result.interference)
        assert again.peak_temperature == result.peak_temperature
    (tmp_path / "plate_1.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"plate_1.npz is damaged .* to start anew"):
        hotter_plates(setup, [300.0], keep=tmp_path, quiet=True)


@pytest.mark.parametrize(("layers", "high"), [(15, 1.2), (20, 1.2), (12, 0.8), (60, 2.4), (10, 0.8)])
def test_the_study_keeps_the_height_of_layer_groups(layers, high):
    study = coarser(prepare(skin(bar((24, 6, 4.8))), voxel=1.5, layers=layers))
    assert study.voxels.size[2] == pytest.approx(high)
    assert study.process.group_height == pytest.approx(2.4)


def test_the_study_takes_voxels_twice_as_large_where_the_part_stays_whole(setup):
    study = coarser(setup)
    assert study.voxels.size == (3.0, 3.0, pytest.approx(2.4))
    assert study.process.group_height == pytest.approx(setup.process.group_height)
    assert study.voxels.volume == pytest.approx(setup.voxels.volume, rel=0.2)
    odd = coarser(prepare(skin(bar((60, 12, 4.8), (2.4, 2.4, 2.4))), voxel=2.4))
    assert odd.voxels.size == pytest.approx((60 / 13, 12 / 3, 2.4))
    assert odd.voxels.origin[0] == pytest.approx(-30), "voxels end with the part"
    wall = prepare(skin(bar((24, 1.5, 14.4))), **COARSE)
    wires = prepare(skin(carve(lambda x, y, z: (np.abs(x) > 9) | (z < 1.2), (21, 1.5, 12))), **COARSE)
    assert coarser(wall).voxels.count > 0
    assert coarser(wires).mode == "refined"
