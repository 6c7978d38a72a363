"""Image: every layout of CIFAR-10 gives the same dataset, and errors name the file."""

import io
import json
import os
import pickle
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from flare.sequence.files import read_sequences
from flare.sequence.image import ImageFiles, downsample, to_gray
from flare.utils.errors import ConfigError, DataError
from tests.factory import content

COUNT = 4  # images of a batch
RNG = np.random.default_rng(0)
COLORS = RNG.integers(0, 256, (6, COUNT, 1024, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 10, (6, COUNT), dtype=np.uint8)
FEW = {"samples": "20 of 50,000 to train and validate, 4 of 10,000 to test"}
NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def planes(batch):
    return COLORS[batch].swapaxes(1, 2).reshape(COUNT, 3072)


def write_binary(folder):
    for batch, name in enumerate(NAMES):
        np.concatenate([LABELS[batch][:, None], planes(batch)], axis=1).tofile(folder / f"{name}.bin")


def python_2_pickle(batch):
    """Written by hand with the operations that the published files have: protocol 2, byte strings, lists in parts."""

    def short(text):
        return b"U" + bytes([len(text)]) + text

    labels = [b"K" + bytes([label]) for label in LABELS[batch].tolist()]
    data = planes(batch).tobytes()
    return b"".join(
        [
            b"\x80\x02}q\x01(",
            short(b"batch_label") + b"q\x02" + short(b"training batch 1 of 5") + b"q\x03",
            short(b"labels") + b"q\x04]q\x05(" + b"".join(labels[:3]) + b"e(" + b"".join(labels[3:]) + b"e",
            short(b"data") + b"q\x06cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08",
            b"K\x00\x85" + short(b"b") + b"\x87Rq\x09(K\x01K" + bytes([COUNT]) + b"M\x00\x0c\x86cnumpy\ndtype\nq\x0a",
            short(b"u1") + b"K\x00K\x01\x87Rq\x0b(K\x03" + short(b"|"),
            b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"T" + struct.pack("<i", len(data)) + data + b"tb",
            short(b"filenames") + b"]q\x0c(" + b"".join(short(b"data_%d.png" % i) for i in range(COUNT)) + b"e",
            b"u.",
        ]
    )


def write_python_2(folder):
    for batch, name in enumerate(NAMES):
        (folder / name).write_bytes(python_2_pickle(batch))


def write_sheets(folder):
    for batch, name in enumerate(NAMES):
        Image.fromarray(COLORS[batch]).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps(LABELS[:5].ravel().tolist()))
    (folder / "test_lables.json").write_text(json.dumps(LABELS[5].tolist()))


def png(colors):
    file = io.BytesIO()
    Image.fromarray(colors.reshape(32, 32, 3)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def write_hub(folder):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, batches in (("train", range(5)), ("test", [5])):
        pictures = [png(image) for batch in batches for image in COLORS[batch]]
        labels = [int(label) for batch in batches for label in LABELS[batch]]
        table = pyarrow.table({"img": pictures, "label": labels})
        parquet.write_table(table, folder / f"{name}-00000-of-00001.parquet")


def read(folder, **options):
    return read_sequences(ImageFiles(folder=str(folder), **{"val": 5} | options), folder / "d", quiet=True)


@pytest.mark.parametrize("write", [write_binary, write_python_2, write_sheets, write_hub])
def test_every_layout_gives_the_same_tokens(tmp_path, write):
    write(tmp_path)
    dataset = read(tmp_path)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [15, 5, 4]
    order = np.random.default_rng(0).permutation(20)
    tokens = np.stack([dataset[index].tokens for index in range(24)])
    np.testing.assert_array_equal(tokens[:20], to_gray(COLORS[:5]).reshape(20, 1024)[order])
    np.testing.assert_array_equal(tokens[20:], to_gray(COLORS[5]))
    np.testing.assert_array_equal(dataset.labels, [*LABELS[:5].ravel()[order], *LABELS[5]])


def test_gray_is_that_of_the_benchmark():
    """floor(255.5 (0.2989 R + 0.5870 G + 0.1140 B)) by hand."""
    colors = np.array([[0, 0, 0], [255, 255, 255], [1, 1, 1], [255, 0, 0], [0, 255, 0], [0, 0, 255]], np.uint8)
    assert to_gray(colors).tolist() == [0, 255, 1, 76, 149, 29]


def test_an_interrupted_reading_resumes_to_the_same_bytes(tmp_path, monkeypatch):
    from flare.sequence.store import SequenceWriter

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_binary(tmp_path / name)
    read(tmp_path / "a")
    append = SequenceWriter.append

    def stop(writer, example):
        if len(writer) == 7:
            raise OSError(28)
        append(writer, example)

    monkeypatch.setattr(SequenceWriter, "append", stop)
    with pytest.raises(DataError, match="7 of 24"):
        read(tmp_path / "b")
    monkeypatch.undo()
    read(tmp_path / "b")
    assert content(tmp_path / "a" / "d") == content(tmp_path / "b" / "d")


class Harmful:
    def __reduce__(self):
        return os._exit, (99,)


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def swap_header(path, width, height):
    """Change the size in the header of a PNG image."""
    content = path.read_bytes()
    path.write_bytes(content[:8] + chunk(b"IHDR", struct.pack(">II", width, height) + content[24:29]) + content[33:])


def put(name, text, at=0):
    """Replace the content of a file from a place on."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:at] + text)


@pytest.mark.parametrize(
    ("write", "spoil", "fact"),
    [
        (write_binary, put("data_batch_2.bin", b"x" * 99), "data_batch_2.bin has 99 bytes"),
        (write_binary, put("data_batch_3.bin", b"\x0b" + bytes(3 * 3073 - 1), at=3073), "3.bin: image 1 .* 11"),
        (write_binary, lambda f: (f / "data_batch_5.bin").unlink(), "data_batch_5.bin"),
        (write_binary, lambda f: (f / "test_batch.bin").unlink(), "test_batch.bin"),
        (write_python_2, put("data_batch_2", b"", at=5000), "data_batch_2 "),
        (write_python_2, put("test_batch", pickle.dumps(Harmful())), "test_batch: 0 labels"),
        (write_sheets, put("test_lables.json", b"[1, 2]"), "test_lables.json .* 4 labels"),
        (write_sheets, put("test_lables.json", b"[1, 2"), "test_lables.json"),
        (write_sheets, put("test_lables.json", b"[1, 2, 10, 3]"), "test_batch.png: image 2 has the label 10"),
        (write_sheets, lambda f: swap_header(f / "data_batch_1.png", 60_000, 60_000), "data_batch_1.png"),
        (write_sheets, put("data_batch_1.png", b"\x89PNG"), "data_batch_1.png"),
    ],
)
def test_bad_files_are_named(tmp_path, write, spoil, fact):
    write(tmp_path)
    spoil(tmp_path)
    with pytest.raises(DataError, match=fact):
        read(tmp_path)


@pytest.mark.parametrize(
    ("image", "label", "fact"),
    [
        (png(COLORS[0][0]), -1, "image 1 .*-1"),
        (png(COLORS[0][0]), None, "image 1 .*None"),
        (None, 1, "row 2.*PNG"),
        ({"bytes": b"\x89PNG", "path": None}, 1, "row 2.*PNG"),
    ],
)
def test_a_bad_row_of_the_hub_is_named(tmp_path, image, label, fact):
    write_hub(tmp_path)
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = pyarrow.table({"img": [png(COLORS[0][0]), image], "label": [3, label]})
    parquet.write_table(rows, tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(DataError, match=f"train-00000-of-00001.parquet.*{fact}"):
        read(tmp_path)


def test_smaller_images_and_fewer_gray_levels_are_recorded_as_departures(tmp_path):
    write_binary(tmp_path)
    whole, small, coarse = (
        read_sequences(ImageFiles(folder=str(tmp_path), val=5, **how), tmp_path / str(len(how) and how), quiet=True)
        for how in ({}, {"side": 16}, {"levels": 16})
    )
    assert (small.schema.longest, whole.schema.longest) == (256, 1024)
    picture = whole[3].tokens.reshape(32, 32).astype(float)
    for row, column in ((0, 0), (3, 7), (15, 15)):
        block = picture[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert small[3].tokens[16 * row + column] == int(block.mean() + 0.5)
    assert np.array_equal(small.labels, whole.labels)
    assert downsample(np.full(1024, 255, np.uint8), 8).tolist() == [255] * 64
    assert (coarse.schema.vocabulary, coarse.schema.pad) == (16, None)
    assert all(np.array_equal(coarse[i].tokens, whole[i].tokens // 16) for i in range(len(whole)))
    found = [dataset.about["provenance"]["departures"] for dataset in (whole, small, coarse)]
    assert found == [FEW, {"side": 16, **FEW}, {"levels": 16, **FEW}]


@pytest.mark.parametrize("wrong", [{"side": 10}, {"levels": 300}, {"val": -1}, {"val": 20}])
def test_impossible_options_are_refused(tmp_path, wrong):
    write_binary(tmp_path)
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        read(tmp_path, **wrong)
