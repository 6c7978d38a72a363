"""Finite points at which a network overflows are refused by every command, and nothing is written."""

import numpy as np
import pytest

from flare.cli import main
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.inference.chunked import check_finite
from flare.utils.errors import DataError
from tests.factory import saved_run
from tests.inference.test_prediction import POINTS, made

FAR = [1e25, 3e38]
"""Coordinates that float32 holds and at which a network overflows."""


@pytest.mark.parametrize("chunk", ["whole", 4])
@pytest.mark.parametrize("far", FAR)
def test_a_non_finite_prediction_is_refused_with_its_first_point(far, chunk):
    surrogate, points = made(components=("x", "y")), np.tile(POINTS, (3, 1))
    points[[5, 20]] = far
    with pytest.raises(DataError, match=r"\d+ points? \(first: \d+\)"):
        surrogate.predict(points, parameters={"speed": 3.0}, chunk=chunk)
    with pytest.raises(DataError, match="latents"):
        surrogate.encode(points, parameters={"speed": 3.0}, chunk=chunk)
    code = surrogate.encode(POINTS, parameters={"speed": 3.0})
    with pytest.raises(DataError, match=r"2 points \(first: 5\)"):
        code.query(points)


def test_chunks_are_counted_together():
    rows = np.zeros((15, 2))
    rows[11], rows[13, 0], rows[14, 1] = [np.nan, np.inf], np.inf, -np.inf

    def show():
        with check_finite() as check:
            for start, stop in ((0, 10), (10, 13), (13, 15)):
                check(start, rows[start:stop])

    with pytest.raises(DataError, match=r"3 points \(first: 11\)"):
        show()


@pytest.mark.parametrize("far", FAR)
def test_commands_write_nothing(tmp_path, capsys, far):
    surrogate = made(components=("x", "y"))
    run, code = str(saved_run(surrogate, tmp_path / "run")), tmp_path / "good.code"
    surrogate.encode(POINTS, parameters={"speed": 3.0}).save(code)
    points = POINTS.copy()
    points[4, 1] = far
    np.savez(tmp_path / "far.npz", points=points, speed=3.0)
    (tmp_path / "far").mkdir()
    np.save(tmp_path / "far" / "points.npy", points.astype(np.float32))
    np.save(tmp_path / "far" / "speed.npy", np.array([3.0], np.float32))
    before, part, out = sorted(tmp_path.iterdir()), str(tmp_path / "far.npz"), str(tmp_path / "out")
    for words in (
        ["predict", run, part, "--out", f"{out}.npz"],
        ["predict", run, part, "--out", f"{out}.vtu"],
        ["predict", run, str(tmp_path / "far"), "--chunk", "4", "--out", out],
        ["encode", run, part, "--out", f"{out}.code"],
        ["probe", run, str(code), "--line", f"0,0:{far},0", "--count", "5", "--out", f"{out}.csv"],
        ["sensitivity", run, part, "--of", "mean", "--field", "heat", "--out", f"{out}.npz"],
    ):
        assert main(words) == 2, words
        assert "not finite" in capsys.readouterr().err
        assert sorted(tmp_path.iterdir()) == before


def test_a_sample_of_a_dataset_beyond_the_model_is_named(tmp_path, capsys):
    surrogate = made(components=("x", "y"))
    run = str(saved_run(surrogate, tmp_path / "run"))
    writer = DatasetWriter(tmp_path / "data", surrogate.schema, {"kind": "user"})
    for far in (1.0, 1.0, FAR[0]):
        writer.append(Sample({"points": POINTS * far, "speed": np.array([3.0]), "heat": np.ones((9, 1))}))
    writer.finish({"all": [(0, 3)]})
    assert main(["predict", run, str(tmp_path / "data"), "--out", str(tmp_path / "out")]) == 2
    assert "data, sample 2: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
