"""Normalizers: fitted on the training split alone, exact inverses, given constants, errors with sample and field."""

import numpy as np
import pytest
import torch

from flare.data.dataset import Dataset
from flare.data.normalization import Affine, check_normalizer_names, fit_normalizer
from flare.data.sample import INPUT_ROLES
from flare.data.statistics import channel_statistics, input_statistics, target_statistics
from flare.train.config import DataConfig, LossConfig
from flare.train.field_task import FieldTask
from flare.utils.errors import ConfigError, DataError
from tests.factory import ragged_dataset


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return ragged_dataset(tmp_path / "d")


def test_streamed_statistics_equal_those_of_all_points():
    rng = np.random.default_rng(0)
    parts = [1e6 + rng.normal(size=(n, 3)) for n in (5, 1, 400, 33)]
    whole, got = np.concatenate(parts), channel_statistics(parts)
    assert got.count == len(whole)
    np.testing.assert_allclose(got.mean, whole.mean(0), rtol=1e-14)
    np.testing.assert_allclose(got.std, whole.std(0, ddof=1), rtol=1e-9)
    np.testing.assert_array_equal([got.low, got.high], [whole.min(0), whole.max(0)])


def put(dataset, name, row, value):
    array = np.load(dataset.path / f"{name}.npy", mmap_mode="r+")
    array[row] = value
    array.flush()
    return Dataset(dataset.path)


def encoded(dataset, settings, split="train"):
    statistics = input_statistics(dataset, dataset.split("train"))
    norm = fit_normalizer(dataset.schema, INPUT_ROLES, statistics, settings)
    from flare.data.sample import input_array

    return norm, norm.encode(
        torch.from_numpy(np.concatenate([input_array(dataset.schema, dataset[int(i)]) for i in dataset.split(split)]))
    )


def test_gaussian_is_the_default_and_per_channel(dataset):
    _, x = encoded(dataset, {})
    torch.testing.assert_close(x.mean(0), torch.zeros(4), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std(0), torch.ones(4), rtol=0, atol=1e-5)


def test_minmax_and_identity_are_chosen_by_field(dataset):
    norm, x = encoded(dataset, {"position": "minmax", "speed": "identity"})
    torch.testing.assert_close(x[:, :2].min(0).values, torch.zeros(2), rtol=0, atol=1e-6)
    torch.testing.assert_close(x[:, :2].max(0).values, torch.ones(2), rtol=0, atol=1e-6)
    assert norm.shift[3] == 0
    assert norm.scale[3] == 1


def test_published_constants_replace_statistics(dataset):
    setting = {"kind": "minmax", "low": [-2.0, -1.0], "high": [2.0, 1.0]}
    norm, _ = encoded(dataset, {"position": setting, "thickness": {"kind": "gaussian", "mean": 7.0, "std": 2.0}})
    assert norm.shift[:3].tolist() == [-2.0, -1.0, 7.0]
    assert norm.scale[:3].tolist() == [4.0, 2.0, 2.0]


def test_the_test_split_does_not_matter(dataset):
    before = encoded(dataset, {})[0]
    test = dataset.offsets[4]
    for name in ("position", "thickness"):
        put(dataset, name, slice(test, None), 1000.0)
    after = encoded(Dataset(dataset.path), {})[0]
    assert torch.equal(before.shift, after.shift)
    assert torch.equal(before.scale, after.scale)


def test_decode_inverts_encode():
    norm = Affine([3.0, -5.0], [1e-4, 250.0]).double()
    x = torch.randn(10, 2).double()
    torch.testing.assert_close(norm.decode(norm.encode(x)), x, rtol=1e-12, atol=1e-12)


def test_a_constant_channel_becomes_zero(dataset):
    norm, x = encoded(put(dataset, "thickness", slice(None), 3.0), {})
    assert norm.scale[2] == 1
    assert (x[:, 2] == 0).all()


@pytest.mark.parametrize(
    ("name", "rows", "value", "message"),
    [
        ("heat", 5 + 7, np.nan, r"sample 1.*'heat'.*1 of 12.*\(first: 7\)"),
        ("force", slice(0, 5), 0.0, r"sample 0.*'force'"),
    ],
)
def test_nan_and_zero_targets_are_refused_with_their_sample(dataset, name, rows, value, message):
    broken = put(dataset, name, rows, value)
    with pytest.raises(DataError, match=message):
        target_statistics(broken, broken.split("train"))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gausian", "position.*'gaussian'"),
        (5, "position is 5"),
        ({"kind": "identity", "mean": 1.0}, "position.*mean"),
        ({"kind": "gaussian", "mean": "abc"}, "position.mean.*'abc'"),
        ({"kind": "minmax", "low": [1.0, 2.0, 3.0]}, "position.low.* 2 "),
    ],
)
def test_unknown_settings_are_refused(dataset, setting, message):
    with pytest.raises(ConfigError, match=message):
        encoded(dataset, {"position": setting})


def test_settings_for_fields_that_do_not_exist_are_refused(dataset):
    with pytest.raises(ConfigError, match=r"'positon'.*'position'"):
        check_normalizer_names({"positon": "identity"}, dataset.schema)


def test_nan_in_the_inputs_of_the_test_split_is_found_before_training(dataset):
    put(dataset, "thickness", int(dataset.offsets[5]) + 2, np.nan)
    task = FieldTask(DataConfig(path=str(dataset.path), batch_size=2), LossConfig())
    with pytest.raises(DataError, match=r"sample 5.*'thickness'.*1 of 17.*\(first: 2\)"):
        task.surrogate({"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 2})
