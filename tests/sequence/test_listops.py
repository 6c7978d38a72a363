"""ListOps: values by hand, statistics of the benchmark, and errors that name the line of a file."""

import numpy as np
import pytest

from flare.cli import main
from flare.sequence.files import read_sequences
from flare.sequence.listops import ListOps, ListOpsFiles, evaluate, from_text, to_text
from flare.sequence.store import generate_sequences
from flare.utils.errors import ConfigError, DataError

BY_HAND = [
    ("7", 7),
    ("[MAX 4 3 [MIN 2 3 ] 1 0 ]", 4),
    ("[MED 1 2 3 4 ]", 2),
    ("[SM 9 9 ]", 8),
    ("[MIN 3 1 2 ]", 1),
    ("[MAX 0 0 ]", 0),
    ("[MED 9 0 ]", 4),
    ("[MED 5 1 9 ]", 5),
    ("[MED 2 2 7 8 ]", 4),
    ("[MED 8 8 9 9 ]", 8),
    ("[SM 1 2 3 4 ]", 0),
    ("[SM 5 5 5 ]", 5),
    ("[SM [MAX 3 9 ] [MIN 4 2 ] ]", 1),
    ("[MIN [SM 9 1 ] 5 ]", 0),
    ("[MAX [MED 1 8 ] [MED 6 7 8 ] ]", 7),
    ("[MED [MIN 1 9 ] [MAX 1 9 ] [SM 1 9 ] 6 ]", 3),
    ("[SM [SM [SM 7 7 ] 7 ] 7 ]", 8),
    ("[MIN [MAX [MED [SM 6 6 ] 4 ] 1 ] 9 ]", 3),
    ("[MAX [MIN 2 8 ] [MIN 7 3 ] [MIN 5 4 ] ]", 4),
    ("[MED 0 [SM 3 4 [MAX 2 6 ] ] [MIN 9 8 7 ] 5 [MED 1 1 ] ]", 3),
]
SPEC_LABELS = [17.0, 9.0, 7.7, 8.1, 9.1, 8.7, 8.0, 7.5, 8.2, 16.7]
"""Percent of each value among 20,000 expressions of the public generator."""
FIRST = "( ( ( [MAX 4 ) 3 ) ] )"


def test_expressions_evaluated_by_hand():
    assert [evaluate(from_text(text)) for text, _ in BY_HAND] == [value for _, value in BY_HAND]


@pytest.mark.parametrize("text", ["", "[MAX ]", "[MAX 1", "1 2", "]", "[MAX 1 ] ]", "[MAX 1 2 ] 3"])
def test_incomplete_expressions_have_no_value(text):
    with pytest.raises(DataError, match="expression"):
        evaluate(from_text(text))


def independent_value(text):
    """By Python's own evaluation of the same expression as a call."""
    functions = {
        "[MIN": lambda *x: min(x),
        "[MAX": lambda *x: max(x),
        "[MED": lambda *x: int(np.median(x)),
        "[SM": lambda *x: sum(x) % 10,
    }
    names = {word: f"{word[1:].lower()}_" for word in functions}
    code = " ".join(f"{names[w]}(" if w in names else "), " if w == "]" else f"{w}, " for w in text.split())
    return eval(code.rstrip(", "), {names[w]: f for w, f in functions.items()})


def test_random_expressions_are_evaluated_as_python_does():
    for index in range(50):
        example = ListOps().sample(np.random.default_rng([1, index]))
        assert example.label == independent_value(to_text(example.tokens))


def statistics(count):
    lengths, labels, roots = np.empty(count), np.empty(count, int), np.empty(count, int)
    for index in range(count):
        example = ListOps().sample(np.random.default_rng([0, index]))
        lengths[index], labels[index], roots[index] = len(example.tokens), example.label, example.tokens[0]
    return lengths, 100 * np.bincount(labels, minlength=10) / count, np.bincount(roots, minlength=15)[11:15] / count


def test_lengths_and_labels_are_those_of_the_benchmark():
    lengths, labels, roots = statistics(6000)
    assert lengths.min() >= 501
    assert lengths.max() <= 1999
    assert lengths.mean() == pytest.approx(1039, rel=0.01)
    np.testing.assert_allclose(np.percentile(lengths, [5, 25, 50, 75, 95]), [540, 706, 961, 1315, 1805], rtol=0.025)
    np.testing.assert_allclose(labels, SPEC_LABELS, atol=1.5)  # 3 standard errors
    np.testing.assert_allclose(roots, 0.25, atol=0.017)


@pytest.mark.slow
def test_the_full_size_has_the_statistics_of_the_benchmark(tmp_path):
    sizes = {"samples": ListOps.samples, "val_samples": ListOps.val_samples, "test_samples": ListOps.test_samples}
    dataset = generate_sequences(ListOps(), tmp_path / "d", **sizes, workers=2, quiet=True)
    lengths = dataset.lengths[:, 0]
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [96_000, 2_000, 2_000]
    assert lengths.mean() == pytest.approx(1039, rel=0.01)
    np.testing.assert_allclose(np.percentile(lengths, [5, 25, 50, 75, 95]), [540, 706, 961, 1315, 1805], rtol=0.01)
    shares = 100 * np.bincount(dataset.labels) / len(dataset)
    np.testing.assert_allclose(shares, SPEC_LABELS, atol=0.6)  # 2 to 3 standard errors of the spec's 20,000
    distinct = {dataset[index].tokens.tobytes() for index in range(len(dataset))}
    assert len(distinct) == len(dataset)
    roots = np.array([dataset[index].tokens[0] for index in range(len(dataset))])
    best = sum(np.bincount(dataset.labels[roots == root]).max() for root in range(11, 15)) / len(dataset)
    assert best == pytest.approx(0.363, abs=0.005)


def test_shallow_expressions_are_as_shallow_as_asked():
    for index in range(50):
        tokens = ListOps(min_length=3, max_length=40, max_depth=3).sample(np.random.default_rng(index)).tokens
        depth = np.cumsum(np.isin(tokens, range(11, 15)).astype(int) - (tokens == 15))
        assert depth.max() <= 2


def test_impossible_lengths_are_refused():
    with pytest.raises(ConfigError, match="min_length=60"):
        ListOps(min_length=60, max_length=61)
    with pytest.raises(ConfigError, match="max_depth=2"):
        ListOps(max_depth=2).sample(np.random.default_rng(0))


@pytest.fixture
def files(tmp_path):
    for name, end, lines in (
        ("train", "\r\n", [f"{FIRST}\t4", "( ( ( [SM 9 ) 9 ) ] )\t8", "5\t5"]),
        ("val", "\n", [f"{FIRST}\t4"]),
        ("test", "\r\n", ["( ( ( ( [MED 1 ) 2 ) ( ( ( [MIN 3 ) 9 ) ] ) ) ] )\t2"]),
    ):
        (tmp_path / f"basic_{name}.tsv").write_bytes(end.join(["Source\tTarget", *lines, ""]).encode())
    return tmp_path


def read(folder):
    return read_sequences(ListOpsFiles(folder=str(folder)), folder / "d", quiet=True)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "byte order mark"])
def test_the_published_files_are_read(files, mark):
    for name in ("train", "val"):
        path = files / f"basic_{name}.tsv"
        path.write_bytes(mark + path.read_bytes())
    dataset = read(files)
    assert [len(dataset.split(name)) for name in ("train", "val", "test")] == [3, 1, 1]
    assert [to_text(dataset[i].tokens) for i in (0, 4)] == ["[MAX 4 3 ]", "[MED 1 2 [MIN 3 9 ] ]"]
    assert dataset.labels.tolist() == [4, 8, 5, 4, 2]
    assert dataset.about["provenance"]["kind"] == "published"
    departures = {"samples": "4 of 98,000 to train and validate, 1 of 2,000 to test"}
    assert dataset.about["provenance"]["departures"] == departures


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (f"Source\tTarget\n{FIRST}\t4\n{FIRST}\t5\n", "line 3: .* 5, .* 4"),
        (f"Source\tTarget\n{FIRST}\t4\n( ( ( [MAX 4", "line 3: "),
        ("Source\tTarget\n( ( ( [MAX 4 ) 3\t4\n", "line 2: "),
        ("Source\tTarget\n( ( ( [AVG 4 ) 3 ) ] )\t4\n", r"line 2: '\[AVG'"),
        (f"{FIRST}\t4\n", "line 1: .* header"),
        ("Source\tTarget\n5\t5\n\xff\t5\n".encode("latin1"), "line 3: byte 0 is 0xff"),
        ("Source\tTarget\n".encode("utf-16"), "line 1: byte 0 is 0xff"),
    ],
)
def test_bad_files_are_named_with_the_line(files, content, fact, capsys):
    (files / "basic_train.tsv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=f"basic_train.tsv, {fact}"):
        read(files)
    assert not (files / "d").exists()
    assert main(["data", "read", "listops", "--folder", str(files), "--out", str(files / "d")]) == 2
    assert "basic_train.tsv, line" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["basic_train.tsv", "basic_test.tsv"])
@pytest.mark.parametrize("content", ["", "Source\tTarget\n"])
def test_a_file_without_expressions_is_refused_by_name(files, file, content):
    (files / file).write_text(content)
    with pytest.raises(DataError, match=file):
        read(files)
    assert not list(files.glob("d*"))
