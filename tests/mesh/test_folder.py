"""Folders of parts: order, splits, formats, and bad files that are counted and do not stop the rest."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
import trimesh

from flare.mesh import folder as folder_module
from flare.mesh.folder import PartFolder
from flare.mesh.surface import placed
from flare.mesh.unfit import Unfit
from flare.physics.lpbf.parts import meshed
from flare.utils.errors import ConfigError, DataError


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
    with pytest.raises(ConfigError, match=r"has no split 'tests'; did you mean 'test'"):
        PartFolder(gallery, split="tests")
    (gallery / "train_test.json").write_text("{")
    with pytest.raises(DataError, match=r"train_test.json cannot be read"):
        PartFolder(gallery, split="train")
    (gallery / "train_test.json").unlink()
    with pytest.raises(DataError, match="leave out --split"):
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
    real = folder_module.read_part

    def sometimes(path, **options):
        if path.stem == "h":
            raise RecursionError("deep")
        return real(path, **options)

    monkeypatch.setattr(folder_module, "read_part", sometimes)
    parts = PartFolder(tmp_path)
    assert [name for name, _ in parts] == ["a", "z"]
    assert parts.rejected == {"unreadable": 2, "several bodies": 2, "empty": 1, "open": 1}
    assert list(parts.faults) == ["b", "c", "d", "e", "f", "h"]
    assert "promises 12 triangles" in str(parts.faults["c"])
    assert "RecursionError: deep" in str(parts.faults["h"])
    with pytest.raises(Unfit, match="is 2 bodies") as fault:
        parts.read("d")
    again = pickle.loads(pickle.dumps(fault.value))  # as from a worker process
    assert (again.reason, str(again)) == (fault.value.reason, str(fault.value))
    with pytest.raises(DataError, match="no part 'q'"):
        parts.read("q")


def test_parts_of_a_folder_meet_the_same_limits_as_drawn_ones(tmp_path):
    export(tmp_path / "bar.stl", 60, 20, 15)
    export(tmp_path / "foil.stl", 60, 60, 0.2)
    export(tmp_path / "upright.stl", 60, 3, 60)
    reasons = {}
    for name, surface in PartFolder(tmp_path):
        try:
            voxels, mesh = meshed(placed(surface), name=name)
        except Unfit as fault:
            reasons[name] = fault.reason
        else:
            assert voxels.volume == pytest.approx(60 * 20 * 15, rel=1e-5)
            assert mesh.volume == pytest.approx(voxels.volume)
    assert reasons == {"foil": "thinner than a voxel", "upright": "aspect ratio"}


def test_a_folder_without_parts_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        PartFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no part in it; parts are .stl"):
        PartFolder(tmp_path)
