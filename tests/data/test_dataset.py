"""The folder of a dataset: what goes in comes out, kills leave no trace, damage is named."""

import errno
import json
import pickle

import numpy as np
import pytest

from flare.data.checks.check import check_dataset
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema, input_array, target_array
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError
from tests.factory import content, ragged_dataset, ragged_sample, ragged_schema

SIZES = (5, 12, 1, 30, 8, 17)


def test_round_trip_of_ragged_samples(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    assert len(dataset) == 6
    assert dataset.sizes.tolist() == list(SIZES)
    for index, size in enumerate(SIZES):
        want, got = ragged_sample(index, size), dataset[index]
        for name, values in want.values.items():
            np.testing.assert_array_equal(got.values[name], values.astype(np.float32))
        np.testing.assert_array_equal(got.cells, want.cells)
    assert dataset.schema == ragged_schema()
    assert dataset.split("test").tolist() == [4, 5]


def test_samples_are_views_of_the_file_and_rows_read_only_themselves(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    assert isinstance(dataset[3].values["force"], np.memmap)
    rows = np.array([2, 4, 9])
    part = dataset.read(3, rows)
    np.testing.assert_array_equal(part.values["force"], dataset[3].values["force"][rows])
    np.testing.assert_array_equal(part.values["speed"], dataset[3].values["speed"])
    assert part.cells is None


def test_a_copy_for_a_worker_is_a_path_not_the_data(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", (20_000, 20_000), test=1)
    packed = pickle.dumps(dataset)
    assert len(packed) < 500
    np.testing.assert_array_equal(pickle.loads(packed)[1].values["heat"], dataset[1].values["heat"])


def test_channels_side_by_side_in_the_order_of_roles(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    schema, sample = dataset.schema, dataset[1]
    assert schema.channels("points", "feature", "parameter") == ["position.x", "position.y", "thickness", "speed"]
    assert schema.channels("target") == ["force.x", "force.y", "heat"]
    inputs, targets = input_array(schema, sample), target_array(schema, sample)
    assert inputs.shape == (12, schema.in_dim) == (12, 4)
    assert targets.shape == (12, schema.out_dim) == (12, 3)
    np.testing.assert_array_equal(inputs[:, 3], np.full(12, sample.values["speed"][0]))
    np.testing.assert_array_equal(targets[:, :2], sample.values["force"])


def write_until(path, stop):
    writer = DatasetWriter(path, ragged_schema(), {"kind": "user"})
    for index in range(len(writer), stop):
        writer.append(ragged_sample(index, SIZES[index]))
    return writer


@pytest.mark.parametrize("stop", range(len(SIZES)))
@pytest.mark.parametrize("junk", [b"", b"\x01\x02\x03\x04\x05", b"x" * 100])
def test_an_interrupted_writer_ends_with_the_same_bytes(tmp_path, stop, junk):
    whole = ragged_dataset(tmp_path / "whole", SIZES)
    write_until(tmp_path / "d", stop).close()
    for path in (tmp_path / "d.partial").glob("*.npy"):  # a kill in the middle of the next sample
        with path.open("ab") as file:
            file.write(junk)
    with (tmp_path / "d.partial" / "samples.jsonl").open("ab") as file:
        file.write(b'{"points": 3, "ce')
    writer = write_until(tmp_path / "d", len(SIZES))
    writer.finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert content(tmp_path / "d") == content(whole.path)
    assert not (tmp_path / "d.partial").exists()


def test_data_lost_behind_a_commit_is_written_again(tmp_path):
    whole = ragged_dataset(tmp_path / "whole", SIZES)
    write_until(tmp_path / "d", 4).close()
    path = tmp_path / "d.partial" / "force.npy"
    path.write_bytes(path.read_bytes()[:-40])
    again = DatasetWriter(tmp_path / "d", ragged_schema(), {"kind": "user"})
    assert len(again) == 3
    again.close()
    write_until(tmp_path / "d", len(SIZES)).finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert content(tmp_path / "d") == content(whole.path)


def test_an_unfinished_dataset_of_other_settings_is_refused_and_kept(tmp_path):
    write_until(tmp_path / "d", 3).close()
    before = content(tmp_path / "d.partial")
    with pytest.raises(DataError, match=r"provenance.kind was 'user', is now 'recreated'"):
        DatasetWriter(tmp_path / "d", ragged_schema(), {"kind": "recreated"})
    assert content(tmp_path / "d.partial") == before


def test_two_writers_at_once_are_refused(tmp_path):
    first = write_until(tmp_path / "d", 3)
    with pytest.raises(DataError, match="another process is writing"):
        write_until(tmp_path / "d", 6)
    first.close()
    write_until(tmp_path / "d", 6).finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert len(Dataset(tmp_path / "d")) == 6


def test_a_write_that_fails_halfway_costs_only_that_sample(tmp_path):
    whole = ragged_dataset(tmp_path / "whole", SIZES)
    writer = write_until(tmp_path / "d", 3)

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            return None

    writer._files["heat"].close()
    writer._files["heat"] = Full()
    with pytest.raises(OSError, match="No space left"):
        writer.append(ragged_sample(3, SIZES[3]))
    write_until(tmp_path / "d", len(SIZES)).finish({"train": [(0, 4)], "test": [(4, 6)]})
    assert content(tmp_path / "d") == content(whole.path)


def test_a_finished_dataset_is_never_overwritten(tmp_path):
    ragged_dataset(tmp_path / "d", SIZES)
    with pytest.raises(DataError, match="exists already"):
        DatasetWriter(tmp_path / "d", ragged_schema(), {"kind": "user"})


def test_the_manifest_explains_the_data(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    about = json.loads((tmp_path / "d" / "dataset.json").read_text())
    assert about["schema"]["fields"]["force"] == {
        "role": "target",
        "components": ["x", "y"],
        "unit": "N",
        "description": "",
    }
    assert set(about["checksums"]) == {p.name for p in (tmp_path / "d").iterdir()} - {"dataset.json"}
    notes = [json.loads(line)["notes"] for line in (tmp_path / "d" / "samples.jsonl").read_text().splitlines()]
    assert notes == [{"redrawn": i % 2} for i in range(6)]
    assert not any(finding.serious for finding in check_dataset(dataset, quiet=True))


def damage(folder, what):
    path = folder / "force.npy"
    if what == "truncated":
        path.write_bytes(path.read_bytes()[:-10])
    elif what == "missing":
        path.unlink()
    elif what == "garbage":
        path.write_bytes(b"not an array")
    elif what == "shorter":
        np.save(path, np.load(path)[:-1])
    elif what == "manifest":
        (folder / "dataset.json").write_text("{")
    elif what == "future":
        about = json.loads((folder / "dataset.json").read_text())
        (folder / "dataset.json").write_text(json.dumps(about | {"version": 99}))
    elif what == "pickle":
        np.save(path, np.array([{}] * 3, dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("truncated", r"force.npy is damaged or truncated"),
        ("missing", r"force.npy is missing"),
        ("garbage", r"force.npy is damaged"),
        ("shorter", r"force.npy has shape \(72, 2\), but .* ask for \(73, 2\)"),
        ("manifest", r"dataset.json is damaged"),
        ("future", r"format version 99"),
        ("pickle", r"force.npy is damaged"),
    ],
)
def test_damage_is_named(tmp_path, what, message):
    ragged_dataset(tmp_path / "d", SIZES)
    damage(tmp_path / "d", what)
    with pytest.raises(DataError, match=message):
        Dataset(tmp_path / "d")


def test_missing_and_unfinished_datasets_are_told_apart(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        Dataset(tmp_path / "d")
    write_until(tmp_path / "d", 2).close()
    with pytest.raises(DataError, match=r"d is not finished: 2 samples are in .*d\.partial; run the command"):
        Dataset(tmp_path / "d.partial")
    with pytest.raises(DataError, match="is not finished"):
        Dataset(tmp_path / "d")


def test_the_doctor_finds_nan_zero_targets_changed_bytes_and_shared_samples(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    array = np.load(dataset.path / "heat.npy", mmap_mode="r+")
    array[7] = np.nan
    array.flush()
    about = json.loads((dataset.path / "dataset.json").read_text())
    about["splits"]["train"] = [[0, 5]]
    (dataset.path / "dataset.json").write_text(json.dumps(about))
    findings = "\n".join(str(f) for f in check_dataset(Dataset(dataset.path), quiet=True) if f.serious)
    assert "heat.npy: it has changed" in findings
    assert "sample 1: 'heat' has NaN or infinity at 1 of 12 points (first: 2)" in findings
    assert "sample 4: it is in both 'train' and 'test'" in findings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heat": np.zeros((3, 1))}, r"'heat' has shape \(3, 1\), expected \(5, 1\)"),
        ({"speed": np.zeros(2)}, r"'speed' has shape"),
        ({"extra": np.zeros(5)}, "has fields"),
    ],
)
def test_a_sample_that_does_not_fit_the_schema_is_refused(tmp_path, change, message):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    sample = ragged_sample(0, 5)
    with pytest.raises(DataError, match=message):
        writer.append(Sample({**sample.values, **change}, sample.cells))
    with pytest.raises(DataError, match="outside 0 … 4"):
        writer.append(Sample(sample.values, np.array([[0, 1, 5]])))
    writer.close()


def test_a_schema_needs_points_and_a_target():
    with pytest.raises(DataError, match="exactly one field of points"):
        Schema(name="x", fields={"a": Field(role="target", components=("a",))})


def test_unknown_split_and_sample(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    with pytest.raises(DataError, match="did you mean 'test'"):
        dataset.split("tset")
    with pytest.raises(DataError, match="no sample 6"):
        dataset[6]


def test_cells_of_the_wrong_shape_are_refused(tmp_path):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    sample = ragged_sample(0, 5)
    with pytest.raises(DataError, match=r"cells have shape \(4, 4\), a triangle has 3 points"):
        writer.append(Sample(sample.values, np.zeros((4, 4), dtype=int)))
    writer.close()


def test_cells_that_do_not_belong_to_the_offsets_are_found(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    cells = np.load(dataset.path / "cells.npy")
    np.save(dataset.path / "cells.npy", cells[:-1])
    with pytest.raises(DataError, match=r"cells.npy has shape"):
        Dataset(dataset.path)
    cells[0] = 99
    np.save(dataset.path / "cells.npy", cells)
    findings = "\n".join(map(str, check_dataset(Dataset(dataset.path), quiet=True)))
    assert "sample 0: cells refer to points it does not have: 1 of 3 (first: 0)" in findings


@pytest.mark.parametrize("name", ["offsets", "cells", "../evil", "a b", "1st"])
def test_names_that_would_be_files_of_others_are_refused(name):
    fields = {"points": Field(role="points", components=("x",)), name: Field(role="target", components=("u",))}
    with pytest.raises(DataError, match="cannot name a field"):
        Schema(name="x", fields=fields)


def test_a_channel_that_never_varies_is_worth_a_note_not_an_error(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    np.save(dataset.path / "thickness.npy", np.full((73, 1), 2.5, np.float32))
    found = [finding for finding in check_dataset(Dataset(dataset.path), quiet=True) if "thickness" in str(finding)]
    assert [finding.serious for finding in found] == [True, False], "only the checksum"
    assert "'thickness' is 2.5 at every point of every sample" in str(found[1])


def test_fields_say_what_they_are():
    with pytest.raises(DataError, match="did you mean 'target'"):
        Field(role="targets", components=("u",))
    with pytest.raises(DataError, match="components is 'vm'"):
        Field(role="target", components="vm")


def test_splits_must_exist_and_a_writer_finishes_once(tmp_path):
    writer = write_until(tmp_path / "d", 4)
    with pytest.raises(DataError, match=r"split 'test' asks for samples 3 … 6 of 4"):
        writer.finish({"train": [(0, 3)], "test": [(3, 7)]})
    writer.finish({"train": [(0, 3)], "test": [(3, 4)]})
    with pytest.raises(DataError, match="this writer is closed"):
        writer.finish({"train": [(0, 4)]})


def test_one_component_may_come_as_a_plain_row(tmp_path):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    sample = ragged_sample(0, 5)
    writer.append(Sample({**sample.values, "heat": sample.values["heat"][:, 0]}, sample.cells))
    dataset = writer.finish({"train": [(0, 1)]})
    np.testing.assert_array_equal(dataset[0].values["heat"], sample.values["heat"].astype(np.float32))


def test_an_unknown_cell_type_is_refused():
    with pytest.raises(DataError, match="unknown cell_type 'triangel'; did you mean 'triangle'"):
        Schema(name="x", fields=ragged_schema().fields, cell_type="triangel")


def test_a_manifest_without_its_parts_is_damaged(tmp_path):
    ragged_dataset(tmp_path / "d", SIZES)
    (tmp_path / "d" / "dataset.json").write_text('{"version": 1}')
    with pytest.raises(DataError, match=r"dataset\.json is damaged"):
        Dataset(tmp_path / "d")


@pytest.mark.parametrize(
    ("notes", "titles"),
    [
        (["results/a.vtu", "results/b.vtu"], ["0 (a.vtu)", "1 (b.vtu)"]),
        (["a.vtu", "b.vtu"], ["0 (a.vtu)", "1 (b.vtu)"]),
        (["runs/ab/out.vtu", "runs/ac/out.vtu"], ["0 (ab/out.vtu)", "1 (ac/out.vtu)"]),
        (["data/all.h5:run/3", "data/all.h5:run/4"], ["0 (all.h5:run/3)", "1 (all.h5:run/4)"]),
        (["", "results/b.vtu"], ["0", "1 (results/b.vtu)"]),
    ],
)
def test_samples_are_called_by_their_files(tmp_path, notes, titles):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    for index, file in enumerate(notes):
        sample = ragged_sample(index, 5)
        writer.append(Sample(sample.values, sample.cells, {"file": file} if file else {}))
    dataset = writer.finish({"train": [(0, 2)]})
    assert dataset.titles() == titles
    (tmp_path / "d" / "samples.jsonl").unlink()
    with pytest.raises(DataError, match=r"samples\.jsonl is damaged"):
        dataset.titles()
