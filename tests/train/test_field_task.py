"""The task of fields: normalizers, refused settings, and the mean field as a trivial baseline."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from flare.data.batching import Share
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, Schema
from flare.data.statistics import input_statistics, target_statistics
from flare.data.writer import DatasetWriter
from flare.train import field_task as fields
from flare.train.config import DataConfig, LossConfig
from flare.train.distributed.ranks import Ranks
from flare.train.field_task import FieldTask, mean_field_errors
from flare.train.run import resume, start
from flare.train.run_folder import RunFolder
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_dataset
from tests.train.test_loop import TINY, config


def points_on_a_line(path, order, samples=6):
    """Return samples of u = 1 + x + c at the same ten points; `order` permutes them."""
    fields = {
        "points": Field(role="points", components=("x",)),
        "u": Field(role="target", components=("u",)),
    }
    writer = DatasetWriter(path, Schema(name="line", fields=fields), {"kind": "user"})
    for index in range(samples):
        x = order(np.random.default_rng(index), np.linspace(0, 1, 10))[:, None]
        writer.append(Sample({"points": x, "u": 1 + x + 0.01 * index}))
    return writer.finish({"train": [(0, samples - 2)], "test": [(samples - 2, samples)]})


@pytest.mark.parametrize(
    ("order", "kind"),
    [(lambda rng, x: x, "point by point"), (lambda rng, x: rng.permutation(x), "one value")],
    ids=["points correspond", "points are in no order"],
)
def test_the_mean_field_is_pointwise_only_if_points_correspond(tmp_path, order, kind):
    dataset = points_on_a_line(tmp_path / "d", order)
    train, test = dataset.split("train"), dataset.split("test")
    errors, found = mean_field_errors(dataset, train, test)
    assert found == kind
    targets = [np.asarray(dataset[int(i)].values["u"], np.float64) for i in range(len(dataset))]
    mean = np.mean(targets[:4], axis=0) if kind == "point by point" else np.mean(targets[:4])
    want = [np.linalg.norm(mean - u) / np.linalg.norm(u) for u in targets[4:]]
    np.testing.assert_allclose(errors[:, 0], want, rtol=1e-6)


# -- normalizers over ranks --------------------------------------------------------------------------------------------


class Together(Ranks):
    """One of several ranks that are threads; `add_up` waits for all of them."""

    tables: list
    meeting: threading.Barrier

    def add_up(self, numbers):
        self.tables[self.all.index] = numbers
        self.meeting.wait(300)
        return sum(self.tables)


def on_ranks(samples, points, work):
    """Return the result or error of `work(rank)` on each of samples x points ranks."""
    tables, meeting = [None] * (samples * points), threading.Barrier(samples * points)

    def answer(place):
        rank = Together(Share(place // points, samples), Share(place % points, points))
        vars(rank).update(tables=tables, meeting=meeting)
        try:
            return work(rank)
        except DataError as error:
            return error
        except Exception as error:  # so that the others do not wait
            meeting.abort()
            return error

    with ThreadPoolExecutor(samples * points) as threads:
        answers = list(threads.map(answer, range(samples * points)))
    broken = [error for error in answers if isinstance(error, Exception) and not isinstance(error, DataError)]
    for error in sorted(broken, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the cause first
    return answers


@pytest.fixture
def ragged(tmp_path):
    return ragged_dataset(tmp_path / "ragged", [5, 12, 1, 30, 8, 17, 3], test=2)


def data(dataset, **changes):
    return DataConfig(path=str(dataset.path), batch_size=2, **changes)


def watch_reading(monkeypatch):
    """Return a list that receives (thread, sample) for every sample read."""
    read, seen = Dataset.__getitem__, []

    def watched(dataset, index):
        seen.append((threading.get_ident(), index))
        return read(dataset, index)

    monkeypatch.setattr(Dataset, "__getitem__", watched)
    return seen


def fitted_on(ranks, dataset):
    task = FieldTask(data(dataset), LossConfig())
    task.ranks = ranks
    return task.surrogate(TINY)


@pytest.mark.parametrize(("samples", "points"), [(1, 3), (2, 2), (10, 1)])
def test_ranks_share_the_reading_and_fit_the_same_normalizers_bit_for_bit(ragged, monkeypatch, samples, points):
    inputs = input_statistics(ragged, ragged.split("train"))
    targets = target_statistics(ragged, ragged.split("train"))
    seen = watch_reading(monkeypatch)
    fitted = on_ranks(samples, points, lambda rank: fitted_on(rank, ragged))
    assert sorted(index for _, index in seen) == list(range(len(ragged))), "each sample once"
    shares = Counter(thread for thread, _ in seen)
    assert max(shares.values()) == -(-len(ragged) // (samples * points))
    for surrogate in fitted:
        for norm, wanted in ((surrogate.input_norm, inputs), (surrogate.target_norm, targets)):
            np.testing.assert_array_equal(norm.shift, wanted.mean.astype(np.float32))
            np.testing.assert_array_equal(norm.scale, wanted.std.astype(np.float32))


def test_all_ranks_raise_the_error_of_a_sample_that_one_of_them_reads(ragged):
    heat = np.load(ragged.path / "heat.npy", mmap_mode="r+")
    heat[int(ragged.offsets[5])] = np.nan
    heat.flush()
    errors = on_ranks(1, 3, lambda rank: fitted_on(rank, ragged))
    assert len(set(map(str, errors))) == 1
    assert "sample 5: 'heat'" in str(errors[0])


GIVEN = {
    "position": {"kind": "minmax", "low": [-2, -1], "high": [2, 1]},
    "speed": "identity",
    "thickness": {"kind": "gaussian", "mean": 1.0, "std": 0.3},
    "force": {"kind": "gaussian", "mean": [20, 20], "std": [50, 60]},
    "heat": {"kind": "gaussian", "mean": 0.003, "std": 0.001},
}


def test_nothing_is_read_if_all_constants_are_given(ragged, monkeypatch):
    seen = watch_reading(monkeypatch)
    surrogate = FieldTask(data(ragged, normalize=GIVEN), LossConfig()).surrogate(TINY)
    assert seen == []
    np.testing.assert_allclose(surrogate.input_norm.scale, [4, 2, 0.3, 1], rtol=1e-6)
    np.testing.assert_allclose(surrogate.target_norm.shift, [20, 20, 0.003], rtol=1e-6)
    one_less = GIVEN | {"heat": {"kind": "gaussian", "mean": 0.003}}
    surrogate = FieldTask(data(ragged, normalize=one_less), LossConfig()).surrogate(TINY)
    assert sorted(index for _, index in seen) == list(range(len(ragged)))
    assert surrogate.target_norm.scale.isfinite().all()


def test_a_resumed_run_takes_its_normalizers_from_the_checkpoint(ragged, tmp_path, monkeypatch):
    start(config(ragged, data={"batch_size": 2}), tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    before = (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").read_bytes()
    monkeypatch.setattr(fields, "sample_moments", lambda *_: pytest.fail("statistics are computed again"))
    resume(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "last" / "model.safetensors").read_bytes() == before


# -- growing samples ---------------------------------------------------------------------------------------------------


def test_the_number_of_points_grows_and_is_logged(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", [64, 64, 64, 64, 64, 20], test=1)
    grown = {"batch_size": 2, "subsample_from": 8, "subsample_growth": 0.75}
    start(config(dataset, epochs=4, data=grown), tmp_path / "run")
    points = [r["points"] for r in RunFolder(tmp_path / "run").records() if r["kind"] == "train"]
    assert points == [2 * n for n in (8, 8, 16, 16, 32, 32, 64, 64)], "two samples a step, two steps an epoch"


def test_padding_does_not_count_as_points(ragged, tmp_path):
    start(config(ragged, epochs=1, data={"batch_size": 5}), tmp_path / "run")
    assert [r["points"] for r in RunFolder(tmp_path / "run").records() if r["kind"] == "train"] == [5 + 12 + 1 + 30 + 8]


def test_an_impossible_growth_or_batch_size_is_refused(ragged):
    with pytest.raises(ConfigError, match=r"subsample_from=20 .*subsample=10"):
        config(ragged, data={"subsample": 10, "subsample_from": 20})
    with pytest.raises(ConfigError, match=r"subsample_from=31 .* 30 points"):
        FieldTask(data(ragged, subsample_from=31), LossConfig())
    FieldTask(data(ragged, subsample_from=30), LossConfig())
    with pytest.raises(ConfigError, match=r"batch_size=6 .* 5 training samples"):
        FieldTask(replace(data(ragged), batch_size=6), LossConfig())
