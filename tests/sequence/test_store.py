"""Datasets of sequences: complete or refused, with the same bytes however they were made."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from flare.cli import main
from flare.sequence.checks import check_sequences
from flare.sequence.listops import ListOps
from flare.sequence.store import Example, SequenceDataset, SequenceSchema, SequenceWriter, generate_sequences
from flare.utils.errors import DataError
from tests.factory import content

SHORT = ListOps(min_length=5, max_length=60)
JOB = {"samples": 250, "val_samples": 20, "test_samples": 30, "seed": 5, "quiet": True}
PAIRS = SequenceSchema(name="pairs", vocabulary=257, classes=("no", "yes"), longest=9, documents=2)


def pair(index):
    rng = np.random.default_rng(index)
    return Example(tuple(rng.integers(1, 257, rng.integers(1, 10)) for _ in range(2)), index % 2, {"index": index})


def pairs(path, count=7):
    writer = SequenceWriter(path, PAIRS, {"kind": "user"})
    for index in range(len(writer), count):
        writer.append(pair(index))
    return writer


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    return generate_sequences(SHORT, tmp_path_factory.mktemp("one") / "d", **JOB)


def test_both_documents_of_a_pair_come_back(tmp_path):
    dataset = pairs(tmp_path / "d").finish({"train": [(0, 4)], "val": [(4, 5)], "test": [(5, 7)]})
    assert dataset.schema == PAIRS
    assert dataset.split("test").tolist() == [5, 6]
    for index in range(7):
        for found, given in zip(dataset[index].documents, pair(index).documents, strict=True):
            np.testing.assert_array_equal(found, given)
        assert dataset[index].label == index % 2
    assert dataset.lengths.tolist() == [[len(t) for t in pair(index).documents] for index in range(7)]
    assert pickle.loads(pickle.dumps(dataset))[3].tokens.tolist() == pair(3).tokens.tolist()


def test_two_workers_make_the_same_bytes(listops, tmp_path):
    generate_sequences(SHORT, tmp_path / "d", **JOB, workers=2)
    assert content(tmp_path / "d") == content(listops.path)


def generate_until(monkeypatch, path, count):
    """Generate the dataset and interrupt the job after so many samples."""
    append = SequenceWriter.append

    def stop(writer, example):
        if len(writer) == count:
            raise KeyboardInterrupt
        append(writer, example)

    monkeypatch.setattr(SequenceWriter, "append", stop)
    with pytest.raises(KeyboardInterrupt):
        generate_sequences(SHORT, path, **JOB)
    monkeypatch.undo()


def test_stopped_and_resumed_gives_the_same_bytes(listops, tmp_path, monkeypatch):
    generate_until(monkeypatch, tmp_path / "d", 136)
    with (tmp_path / "d.partial" / "tokens.npy").open("ab") as file:
        file.write(b"half a sequence")
    with pytest.raises(DataError, match=str(tmp_path / "d")):
        SequenceDataset(tmp_path / "d")
    generate_sequences(SHORT, tmp_path / "d", **JOB)
    assert content(tmp_path / "d") == content(listops.path)


def test_a_folder_without_departures_of_an_older_version_is_resumed(listops, tmp_path, monkeypatch):
    """Departures are recorded, not compared: they change neither the fingerprint nor a resumed job."""
    generate_until(monkeypatch, tmp_path / "d", 9)

    def before(folder):
        about = json.loads((folder / "dataset.json").read_text())
        assert about["provenance"]["departures"].pop("samples").startswith("220 of 98,000 to train and validate")
        (folder / "dataset.json").write_text(json.dumps(about))

    before(tmp_path / "d.partial")
    assert content(generate_sequences(SHORT, tmp_path / "d", **JOB).path) == content(listops.path)
    before(tmp_path / "d")
    assert generate_sequences(SHORT, tmp_path / "d", **JOB).fingerprint == listops.fingerprint


def test_the_provenance_is_complete(listops):
    about = json.loads((listops.path / "dataset.json").read_text())
    assert about["splits"] == {"train": [[0, 200]], "val": [[200, 220]], "test": [[220, 250]]}
    assert set(about["checksums"]) == {"tokens.npy", "offsets.npy", "labels.npy", "samples.jsonl"}
    assert about["provenance"]["kind"] == "recreated"
    assert about["provenance"]["options"]["max_length"] == 60
    assert about["provenance"]["versions"]["numpy"] == np.__version__
    assert about["schema"]["pad"] == 0


@pytest.mark.parametrize(
    ("second", "label", "fact"),
    [
        (np.array([0]), 0, "0 … 0"),
        (np.array([257]), 0, "257 … 257"),
        (np.ones(10, int), 0, "10 tokens"),
        (np.array([], int), 0, "0 tokens"),
        (np.array([1.0]), 0, "float64"),
        (np.array([1]), 2, "label 2"),
    ],
)
def test_invalid_samples_are_refused(tmp_path, second, label, fact):
    writer = SequenceWriter(tmp_path / "d", PAIRS, {"kind": "user"})
    with pytest.raises(DataError, match=f"sample 0 of .*{fact}"):
        writer.append(Example((np.array([1]), second), label))
    assert len(writer) == 0
    writer.close()


def test_damage_is_found(tmp_path):
    sound = pairs(tmp_path / "d").finish({"train": [(0, 7)]})
    assert check_sequences(sound, quiet=True) == []
    tokens = np.load(tmp_path / "d" / "tokens_2.npy", mmap_mode="r+")
    tokens[3] = 0
    tokens.flush()
    changed, token = check_sequences(SequenceDataset(tmp_path / "d"), quiet=True)
    assert changed.where.endswith("tokens_2.npy")
    assert (token.where, token.first) == ("tokens_2.npy", 3)
    np.save(tmp_path / "d" / "labels.npy", np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"labels.npy.*\(3,\).*\(7,\)"):
        SequenceDataset(tmp_path / "d")


def test_samples_that_an_earlier_split_also_has_are_counted(tmp_path):
    writer = pairs(tmp_path / "d")
    for index in (2, 5, 2):
        writer.append(replace(pair(index), label=0))
    writer.append(replace(pair(3), documents=pair(3).documents[::-1]))
    dataset = writer.finish({"train": [(0, 7)], "val": [], "test": [(7, 11)]})
    (remark,) = check_sequences(dataset, quiet=True)
    assert "'test'" in remark.where
    assert "3 of 4" in remark.what
    assert not remark.serious


def test_the_command_line_makes_shows_and_checks(tmp_path, capsys):
    out = str(tmp_path / "d")
    sizes = ["--samples", "40", "--val-samples", "5", "--test-samples", "5", "--workers", "1"]
    assert main(["data", "make", "listops", "--min-length", "5", "--max-length", "60", *sizes, "--out", out]) == 0
    assert main(["data", "info", out]) == 0
    assert main(["data", "check", out]) == 0
    shown = capsys.readouterr().out
    assert "splits: train 30, val 5, test 5" in shown
    assert "vocabulary 16" in shown
    assert main(["data", "make", "pathfinder", "--samples", "20", "--workers", "1", "--out", out + "2"]) == 0
    assert "splits: train 16, val 2, test 2" in capsys.readouterr().out, "the shares of the benchmark"
    few = "18 of 180,000 to train and validate, 2 of 20,000 to test"
    assert SequenceDataset(out + "2").about["provenance"]["departures"] == {"samples": few}
    assert main(["data", "make", "listop", "--out", out]) == 2
    assert "'listops'" in capsys.readouterr().err


def test_an_interrupted_job_reports_what_it_keeps(tmp_path):
    sizes = ["--samples", "1000000", "--val-samples", "10", "--test-samples", "10", "--workers", "2"]
    words = ["data", "make", "listops", *sizes, "--out", str(tmp_path / "d")]
    how = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    how["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    job = subprocess.Popen([sys.executable, "-m", "flare", *words], **how)
    log, until = tmp_path / "d.partial" / "samples.jsonl", time.monotonic() + 200
    while not (log.exists() and log.stat().st_size) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(job.pid, signal.SIGINT)  # as a terminal does: to every process of the job
    printed = job.communicate(timeout=100)[1]
    kept = log.read_bytes().count(b"\n")
    assert kept > 0
    lines = [line for line in printed.splitlines() if not line.startswith("making listops: ")]  # without progress
    assert f"{kept} of 1000000" in lines[0]
    assert (len(lines), job.returncode) == (2, 130)
