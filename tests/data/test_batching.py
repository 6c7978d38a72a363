"""Batches: padding is harmless, every step sees what it should, workers share pages."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from flare.data.augmentation import Symmetry
from flare.data.batching import WHOLE, BatchPlan, Share, Subsample, evaluation_batches, training_loader
from flare.data.dataset import Dataset
from flare.data.sample import Field, Sample, input_array, target_array
from flare.data.writer import DatasetWriter
from flare.inference.surrogate import Surrogate
from flare.train.losses import relative_l2
from flare.utils.errors import ConfigError
from tests.factory import ragged_dataset, ragged_sample, ragged_schema

SIZES = (5, 12, 1, 30, 8, 17)
MODEL = {"name": "flare", "channels": 16, "blocks": 2, "heads": 4, "latents": 4}


@pytest.fixture
def dataset(tmp_path) -> Dataset:
    return ragged_dataset(tmp_path / "d", SIZES)


def test_a_step_reads_only_fields_of_the_model(tmp_path, monkeypatch):
    schema = ragged_schema(cells=False)
    fields = {**schema.fields, "shear": Field(role="extra", components=("x", "y", "z"))}
    writer = DatasetWriter(tmp_path / "d", replace(schema, fields=fields), {"kind": "user"})
    for index in range(2):
        sample = ragged_sample(index, 9, cells=False)
        writer.append(Sample({**sample.values, "shear": np.ones((9, 3))}))
    dataset = writer.finish({"train": [(0, 2)]})
    seen, real = [], Dataset.read
    monkeypatch.setattr(Dataset, "read", lambda *words, **how: (seen.append(real(*words, **how)), seen[-1])[1])
    plan = BatchPlan(dataset.split("train"), batch_size=2, seed=0)
    plan.begin(0)
    assert len(list(training_loader(dataset, plan, subsample=Subsample(4)))) == 1
    assert [set(sample.values) for sample in seen] == [set(schema.fields)] * 2
    assert "shear" in dataset[0].values


def steps(plan, epoch, first=0):
    plan.begin(epoch, first)
    return [[i for _, i in micro] for micro in plan]


def test_a_padded_batch_holds_the_samples_and_a_mask(dataset):
    (batch,) = evaluation_batches(dataset, [1, 0, 3], 3)
    assert batch.indices == (1, 0, 3)
    assert batch.mask.sum(1).tolist() == [12, 5, 30]
    for row, index in enumerate(batch.indices):
        n = SIZES[index]
        np.testing.assert_array_equal(batch.inputs[row, :n], input_array(dataset.schema, dataset[index]))
        np.testing.assert_array_equal(batch.targets[row, :n], target_array(dataset.schema, dataset[index]))
        assert batch.mask[row, :n].all()
        assert (batch.inputs[row, n:] == 0).all()


def test_equal_sizes_need_no_mask(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", (6, 6, 6), test=1)
    (batch,) = evaluation_batches(dataset, [0, 1, 2], 3)
    assert batch.mask is None


def test_errors_and_gradients_of_a_padded_batch_are_those_of_its_members(dataset):
    model = Surrogate(MODEL, dataset.schema).double()

    def total(batches):
        model.zero_grad()
        errors = torch.cat([relative_l2(model(b.inputs.double(), b.mask), b.targets.double(), b.mask) for b in batches])
        errors.sum().backward()
        return errors, torch.cat([p.grad.flatten() for p in model.parameters()])

    together = total(evaluation_batches(dataset, range(6), 6))
    one_by_one = total(evaluation_batches(dataset, range(6), 1))
    for a, b in zip(together, one_by_one, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_an_epoch_goes_through_every_sample_once_and_changes_the_order(dataset):
    plan = BatchPlan(np.arange(100, 120), 4, seed=1)
    first, second = steps(plan, 0), steps(plan, 1)
    for epoch in (first, second):
        assert sorted(i for batch in epoch for i in batch) == list(range(100, 120))
    assert first != second
    assert steps(plan, 0) == first
    assert steps(BatchPlan(np.arange(100, 120), 4, seed=2), 0) != first


def test_a_plan_begins_anywhere():
    plan = BatchPlan(np.arange(20), 4)
    assert steps(plan, 3, first=2) == steps(plan, 3)[2:]
    plan.begin(3, 2)
    assert len(plan) == 3


def test_the_incomplete_last_batch_is_dropped():
    assert sum(map(len, steps(BatchPlan(np.arange(11), 4), 0))) == 8


@pytest.mark.parametrize(("ranks", "parts"), [(2, 1), (1, 2), (2, 2), (4, 1)])
def test_ranks_and_micro_batches_share_the_same_global_batch(ranks, parts):
    whole = steps(BatchPlan(np.arange(16), 8), 5)
    shares = [steps(BatchPlan(np.arange(16), 8, rank=r, ranks=ranks, parts=parts), 5) for r in range(ranks)]
    for step, batch in enumerate(whole):
        mine = [i for share in shares for micro in share[step * parts : (step + 1) * parts] for i in micro]
        assert sorted(mine) == sorted(batch)
        assert all(len(micro) == 8 // (ranks * parts) for share in shares for micro in share)


def test_impossible_batches_are_refused():
    with pytest.raises(ConfigError, match="multiple of 6"):
        BatchPlan(np.arange(20), 4, ranks=2, parts=3)
    with pytest.raises(ConfigError, match="3 training samples"):
        BatchPlan(np.arange(3), 4)


def loaded(dataset, epoch, subsample=None, **how):
    plan = BatchPlan(np.arange(len(dataset)), 2)
    plan.begin(epoch)
    return list(training_loader(dataset, plan, subsample=Subsample(subsample), **how))


def points_of(batches):
    """Sample -> its real inputs, side by side with its targets."""
    found = {}
    for batch in batches:
        for row, index in enumerate(batch.indices):
            real = slice(None) if batch.mask is None else batch.mask[row]
            found[index] = torch.cat([batch.inputs[row, real], batch.targets[row, real]], dim=1)
    return found


@pytest.mark.parametrize("how", [{}, {"subsample": 10}, {"symmetry": Symmetry(mirror=["x"], turn=["x", "y"])}], ids=str)
def test_ranks_read_only_their_shares_of_a_sample(dataset, how):
    sizes = {}

    class Asked(Dataset):
        def read(self, index, rows=None, **how):
            sample = super().read(index, rows, **how)
            sizes[index] = len(sample.values["position"])
            return sample

    dataset = Asked(dataset.path)
    whole = points_of(loaded(dataset, 1, points=WHOLE, **how))
    shares = []
    for rank in range(3):
        shares.append(points_of(loaded(dataset, 1, points=Share(rank, 3), **how)))
        assert {index: len(values) for index, values in shares[-1].items()} == sizes
    for index, values in whole.items():
        assert torch.equal(torch.cat([share[index] for share in shares]), values)


def test_subsampling_draws_other_points_every_epoch_and_keeps_them_together(dataset):
    def largest(epoch):
        return next(b for b in loaded(dataset, epoch, subsample=10) if 3 in b.indices)

    one, again, other = largest(0), largest(0), largest(1)
    row = one.indices.index(3)
    torch.testing.assert_close(one.inputs, again.inputs)
    assert one.inputs.shape[1] == 10
    assert not torch.equal(one.inputs[row], other.inputs[other.indices.index(3)])
    whole = {tuple(np.round(x, 5)): tuple(y) for x, y in zip(*arrays(dataset, 3), strict=True)}
    for x, y in zip(one.inputs[row].numpy(), one.targets[row].numpy(), strict=True):
        assert whole[tuple(np.round(x, 5))] == tuple(y), "each input still has its own target"


def arrays(dataset, index):
    return input_array(dataset.schema, dataset[index]), target_array(dataset.schema, dataset[index])


def test_a_curriculum_grows_by_a_constant_factor_to_all_points():
    plan = Subsample(None, 100, 4)
    assert [plan.of(1600, epoch) for epoch in range(6)] == [100, 200, 400, 800, 1600, 1600]
    assert [Subsample(400, 100, 2).of(1600, epoch) for epoch in range(4)] == [100, 200, 400, 400]
    assert plan.of(60, 0) == 60, "no more than there are"


def test_loader_processes_give_the_same_batches(dataset):
    for a, b in zip(loaded(dataset, 2, subsample=7), loaded(dataset, 2, subsample=7, workers=2), strict=True):
        assert a.indices == b.indices
        torch.testing.assert_close(a.inputs, b.inputs, rtol=0, atol=0)


def test_loading_leaves_the_random_state_alone(dataset):
    before = torch.get_rng_state()
    loaded(dataset, 0, subsample=3)
    assert torch.equal(torch.get_rng_state(), before)
