"""Dataset folders: round trip, resuming after a kill, errors that name the damage."""

import doctest
import errno
import json
import pickle

import numpy as np
import pytest

from flare.data import dataset, sample, writer
from flare.data.checks.check import check_dataset
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema, input_array, target_array
from flare.data.writer import DatasetWriter
from flare.utils.errors import DataError
from tests.factory import content, ragged_dataset, ragged_sample, ragged_schema

SIZES = (5, 12, 1, 30, 8, 17)


@pytest.mark.parametrize("module", [sample, dataset, writer])
def test_the_examples_in_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


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


def test_a_dataset_is_a_sequence_that_prints_as_one_line(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    assert [len(sample.values["position"]) for sample in dataset] == list(SIZES)
    last = dataset[-1]
    np.testing.assert_array_equal(last.values["speed"], dataset[5].values["speed"])
    np.testing.assert_array_equal(last.cells, dataset[5].cells)
    for index in (6, -7):
        with pytest.raises(IndexError, match=f"no sample {index}"):
            dataset[index]
    with pytest.raises(DataError, match="one sample at a time"):
        dataset[0:2]
    with pytest.raises(DataError, match=r"'tset'.*'test'"):
        dataset.split("tset")
    assert repr(dataset) == f"Dataset('{tmp_path / 'd'}': 6 samples of '{dataset.schema.name}')"


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


@pytest.mark.parametrize(("stop", "junk"), [(0, b""), (2, b"\x01\x02\x03\x04\x05"), (5, b"x" * 100)])
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
    with pytest.raises(DataError, match=r"provenance\.kind.*'user'.*'recreated'"):
        DatasetWriter(tmp_path / "d", ragged_schema(), {"kind": "recreated"})
    assert content(tmp_path / "d.partial") == before


def test_two_writers_at_once_are_refused(tmp_path):
    first = write_until(tmp_path / "d", 3)
    with pytest.raises(DataError, match=r"d\.partial"):
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


DAMAGES = {
    "truncated": (lambda force: force.write_bytes(force.read_bytes()[:-10]), r"force\.npy"),
    "missing": (lambda force: force.unlink(), r"force\.npy"),
    "shorter": (lambda force: np.save(force, np.load(force)[:-1]), r"force\.npy.*\(72, 2\).*\(73, 2\)"),
    "pickle": (lambda force: np.save(force, np.array([{}] * 3), allow_pickle=True), r"force\.npy"),
    "manifest": (lambda force: force.with_name("dataset.json").write_text("{"), r"dataset\.json"),
    "future": (lambda force: rewrite_manifest(force.parent, version=99), "version 99"),
}


def rewrite_manifest(folder, **changes):
    about = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(about | changes))


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=list(DAMAGES))
def test_damaged_files_are_named(tmp_path, damage, message):
    ragged_dataset(tmp_path / "d", SIZES)
    damage(tmp_path / "d" / "force.npy")
    with pytest.raises(DataError, match=message):
        Dataset(tmp_path / "d")


def test_missing_and_unfinished_datasets_are_distinguished(tmp_path):
    with pytest.raises(DataError, match="flare data make"):
        Dataset(tmp_path / "d")
    write_until(tmp_path / "d", 2).close()
    for path in ("d", "d.partial"):
        with pytest.raises(DataError, match=r"2 samples .*d\.partial"):
            Dataset(tmp_path / path)


def test_checks_find_nan_changed_files_and_samples_in_two_splits(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    array = np.load(dataset.path / "heat.npy", mmap_mode="r+")
    array[7] = np.nan
    array.flush()
    rewrite_manifest(dataset.path, splits={**dataset.about["splits"], "train": [[0, 5]]})
    found = [f for f in check_dataset(Dataset(dataset.path), quiet=True) if f.serious]
    heat = str(dataset.path / "heat.npy")
    assert {(f.where, f.first) for f in found} == {(heat, None), ("sample 1", 2), ("split 'test'", 4)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heat": np.zeros((3, 1))}, r"'heat'.*\(3, 1\).*\(5, 1\)"),
        ({"speed": np.zeros(2)}, "'speed'"),
        ({"extra": np.zeros(5)}, "'extra'"),
    ],
)
def test_a_sample_that_does_not_fit_the_schema_is_refused(tmp_path, change, message):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    sample = ragged_sample(0, 5)
    with pytest.raises(DataError, match=message):
        writer.append(Sample({**sample.values, **change}, sample.cells))
    for cells, message in ((np.array([[0, 1, 5]]), "0 … 4"), (np.zeros((4, 4), dtype=int), r"\(4, 4\)")):
        with pytest.raises(DataError, match=message):
            writer.append(Sample(sample.values, cells))
    writer.close()


def test_cells_that_do_not_belong_to_the_offsets_are_found(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", SIZES)
    cells = np.load(dataset.path / "cells.npy")
    np.save(dataset.path / "cells.npy", cells[:-1])
    with pytest.raises(DataError, match=r"cells\.npy"):
        Dataset(dataset.path)
    cells[0] = 99
    np.save(dataset.path / "cells.npy", cells)
    found = check_dataset(Dataset(dataset.path), quiet=True)
    assert any((f.where, f.count, f.first, f.serious) == ("sample 0", 1, 0, True) for f in found)


@pytest.mark.parametrize("name", ["offsets", "cells", "../evil", "a b", "1st"])
def test_names_that_cannot_be_array_files_are_refused(name):
    fields = {"points": Field(role="points", components=("x",)), name: Field(role="target", components=("u",))}
    with pytest.raises(DataError, match=f"'{name}'"):
        Schema(name="x", fields=fields)


def test_impossible_schemas_and_fields_are_refused():
    with pytest.raises(DataError, match="points"):
        Schema(name="x", fields={"a": Field(role="target", components=("a",))})
    with pytest.raises(DataError, match=r"'triangel'.*'triangle'"):
        Schema(name="x", fields=ragged_schema().fields, cell_type="triangel")
    with pytest.raises(DataError, match=r"'targets'.*'target'"):
        Field(role="targets", components=("u",))
    with pytest.raises(DataError, match="'vm'"):
        Field(role="target", components="vm")


def test_splits_must_exist_and_a_writer_finishes_once(tmp_path):
    writer = write_until(tmp_path / "d", 4)
    with pytest.raises(DataError, match=r"'test'.*3 … 6 of 4"):
        writer.finish({"train": [(0, 3)], "test": [(3, 7)]})
    writer.finish({"train": [(0, 3)], "test": [(3, 4)]})
    with pytest.raises(DataError, match="closed"):
        writer.finish({"train": [(0, 4)]})
    with pytest.raises(DataError, match=str(tmp_path / "d")):
        DatasetWriter(tmp_path / "d", ragged_schema(), {"kind": "user"})  # a finished dataset is never overwritten


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
def test_titles_are_files_without_shared_folders(tmp_path, notes, titles):
    writer = DatasetWriter(tmp_path / "d", ragged_schema(), {})
    for index, file in enumerate(notes):
        sample = ragged_sample(index, 5)
        writer.append(Sample(sample.values, sample.cells, {"file": file} if file else {}))
    dataset = writer.finish({"train": [(0, 2)]})
    assert dataset.titles() == titles
    (tmp_path / "d" / "samples.jsonl").unlink()
    with pytest.raises(DataError, match=r"samples\.jsonl"):
        dataset.titles()
