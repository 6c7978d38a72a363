"""Training on sequences: it learns, resumes bit for bit, masks padding, and compares with trivial baselines."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flare.data.batching import BatchPlan
from flare.inference.surrogate import load
from flare.sequence import checks, load_classifier
from flare.sequence.baselines import compare_accuracy, trivial_baselines
from flare.sequence.batch import evaluation_batches, training_batches
from flare.sequence.classifier import Classifier
from flare.sequence.listops import MAX, MIN, ListOps
from flare.sequence.store import Example, SequenceDataset, SequenceSchema, SequenceWriter, generate_sequences
from flare.sequence.task import ClassTask
from flare.train.config import DataConfig, LossConfig, OptimConfig, TrainConfig
from flare.train.run import resume, start
from flare.train.run_folder import RunFolder
from flare.utils.errors import CheckpointError, ConfigError, DataError, TrainingDiverged
from tests.factory import darcy_dataset

TINY = {"name": "sequence", "attention": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4, "kv_depth": 0}
SIZES = {"flare": {"latents": 4, "kv_depth": 0}, "linformer": {"projected": 4}, "performer": {"features": 8}}


def tiny(attention):
    common = {"name": "sequence", "attention": attention, "channels": 16, "blocks": 2, "heads": 2}
    return common | SIZES.get(attention, {})


@pytest.fixture(scope="module")
def listops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("listops") / "d"
    short = ListOps(min_length=3, max_length=30, max_depth=3)
    return generate_sequences(short, folder, samples=200, val_samples=20, test_samples=30, quiet=True)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Do both documents begin with the same token? Two classes, one logit."""
    schema = SequenceSchema(name="pairs", vocabulary=5, classes=("no", "yes"), longest=9, documents=2)
    writer = SequenceWriter(tmp_path_factory.mktemp("pairs") / "d", schema, {"kind": "user"})
    rng = np.random.default_rng(0)
    for _ in range(80):
        documents = tuple(rng.integers(1, 5, rng.integers(2, 10)) for _ in range(2))
        writer.append(Example(documents, int(documents[0][0] == documents[1][0])))
    return writer.finish({"train": [(0, 60)], "val": [(60, 70)], "test": [(70, 80)]})


def config(dataset, *, data=None, optim=None, **changes):
    own = DataConfig(path=str(dataset.path), batch_size=10, eval_batch_size=7, val_split="val")
    settings = {"data": replace(own, **data or {}), "optim": replace(OptimConfig(lr=3e-3), **optim or {})}
    base = TrainConfig(model=TINY, epochs=2, evaluate_every=1, log_every=1, device="cpu", **settings)
    return replace(base, **changes)


def tensors(run):
    return {p.name: p.read_bytes() for p in sorted((run / "checkpoints" / "last").glob("*.safetensors"))}


def first_token_task(path):
    """Write a dataset whose class is the first token, which a model learns quickly."""
    schema = SequenceSchema(name="first", vocabulary=5, classes=("a", "b", "c", "d"), longest=12)
    rng, writer = np.random.default_rng(0), SequenceWriter(path, schema, {"kind": "user"})
    for _ in range(260):
        tokens = rng.integers(1, 5, rng.integers(3, 13))
        writer.append(Example((tokens,), int(tokens[0]) - 1))
    return writer.finish({"train": [(0, 200)], "val": [(200, 230)], "test": [(230, 260)]})


def test_it_learns_and_the_result_equals_single_predictions(tmp_path):
    dataset = first_token_task(tmp_path / "d")
    settings = config(dataset, model=tiny("vanilla"), epochs=15, evaluate_every=5, optim={"lr": 1e-2})
    result = start(settings, tmp_path / "run")
    assert result["accuracy"]["test"] > 0.9
    model = load_classifier(tmp_path / "run")
    for split in ("val", "test"):
        examples = [dataset[int(i)] for i in dataset.split(split)]
        right = [model.predict(e.tokens) == dataset.schema.classes[e.label] for e in examples]
        assert result["accuracy"][split] == pytest.approx(np.mean(right))
        share = result["accuracy"][split]
        assert result["standard_error"][split] == pytest.approx(math.sqrt(share * (1 - share) / 30))
    evaluations = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert [(r["epoch"], r["split"]) for r in evaluations] == [(5, "val"), (10, "val"), (15, "val")]
    assert evaluations[-1]["accuracy"] == pytest.approx(result["accuracy"]["val"])
    kept = json.loads((tmp_path / "run" / "test_errors.json").read_text())
    assert 1 - np.mean(kept["test"]["wrong"]) == pytest.approx(result["accuracy"]["test"])


def test_pairs_have_one_logit_and_binary_cross_entropy(pairs, tmp_path):
    settings = config(pairs)
    task = ClassTask(settings)
    model = task.surrogate(settings.model)
    batch = next(evaluation_batches(pairs, task.train, 8))
    assert batch.ids.shape == batch.mask.shape == (8, 2 * int(pairs.lengths[list(batch.indices)].max()))
    logits = model(batch.ids, batch.mask)
    both = torch.cat([torch.zeros_like(logits), logits], 1)
    torch.testing.assert_close(task.loss(model, batch), cross_entropy(both, batch.labels))
    result = start(settings, tmp_path / "run")
    assert set(result["accuracy"]) == {"val", "test"}


def test_a_resumed_run_ends_like_an_uninterrupted_one(listops, tmp_path, monkeypatch):
    model = tiny("performer") | {"dropout": 0.1, "redraw_every": 4}
    settings = config(listops, model=model, epochs=2, checkpoint_minutes=1e-9)
    start(settings, tmp_path / "whole")

    plain, calls = ClassTask.loss, []

    def stopping(*arguments):
        calls.append(arguments)
        if len(calls) == 19:
            raise KeyError
        return plain(*arguments)

    monkeypatch.setattr(ClassTask, "loss", stopping)
    with pytest.raises(KeyError):
        start(settings, tmp_path / "stopped")
    monkeypatch.undo()
    resume(tmp_path / "stopped")
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "whole")


def test_averaged_weights_are_evaluated_too(listops, tmp_path):
    start(config(listops, optim={"ema": 0.9}), tmp_path / "run")
    records = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert all(0 <= r["accuracy_ema"] <= 1 for r in records)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["accuracy_ema"]) == {"val", "test"}
    assert result["accuracy_ema"]["val"] == pytest.approx(records[-1]["accuracy_ema"])
    averaged = load_classifier(tmp_path / "run", ema=True)
    right = [averaged.predict(listops[i].tokens) == str(listops[i].label) for i in listops.split("test")]
    assert result["accuracy_ema"]["test"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize(("later", "stops"), [(1.0, False), (1e4, True)])
def test_only_a_loss_far_above_that_of_chance_is_divergence(listops, tmp_path, monkeypatch, later, stops):
    plain, count = ClassTask.loss, [0]

    def scaled(*arguments):
        count[0] += 1
        return plain(*arguments) * (1e-6 if count[0] < 10 else later)

    monkeypatch.setattr(ClassTask, "loss", scaled)
    if stops:
        with pytest.raises(TrainingDiverged):
            start(config(listops), tmp_path / "run")
    else:
        assert start(config(listops), tmp_path / "run")["steps"] == 30


def test_batches_of_similar_length_hold_every_sample_once_and_little_padding(listops):
    train, lengths = listops.split("train"), listops.lengths.max(1)
    plain, sorted_by_length = BatchPlan(train, 10), BatchPlan(train, 10, lengths=lengths)
    assert sorted(i for batch in sorted_by_length for _, i in batch) == sorted(train)

    def padding(plan):
        masks = [batch.mask for batch in training_batches(listops, plan)]
        return np.mean([0 if mask is None else 1 - mask.float().mean() for mask in masks])

    assert padding(sorted_by_length) < 0.25 * padding(plain)
    first = list(sorted_by_length)
    shares = [list(BatchPlan(train, 10, lengths=lengths, rank=rank, ranks=2)) for rank in range(2)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(batch) for batch in first]
    assert list(sorted_by_length) == first
    sorted_by_length.begin(1)
    assert list(sorted_by_length) != first
    means = [np.mean([lengths[i] for _, i in batch]) for batch in first]
    assert means != sorted(means), "short batches do not come first"


def test_evaluation_does_not_depend_on_the_size_of_batches(listops):
    settings = config(listops)
    torch.manual_seed(1)
    model = ClassTask(settings).surrogate(settings.model).eval()
    tasks = [ClassTask(config(listops, data={"eval_batch_size": size})) for size in (1, 7, 30)]
    first, *others = (task.errors(model, torch.device("cpu"), listops.split("test")) for task in tasks)
    assert all(np.array_equal(first, other) for other in others)


def test_the_published_protocol_pads_to_one_length_without_mask_and_never_reads_the_test_split(listops, tmp_path):
    settings = config(listops, data={"protocol": "dev-split-no-mask"}, model=TINY | {"length": 40})
    task = ClassTask(settings)
    for batch in task.batches(BatchPlan(task.train, 10), 1):
        assert batch.mask is None
        assert batch.ids.shape == (10, 40)
    assert set(task.evaluated) == {"val"}
    result = start(settings, tmp_path / "run")
    assert set(result["accuracy"]) == set(result["guesses"]["chance"]) == {"val"}
    assert (result["split"], result["protocol"], result["test_samples"]) == ("val", "dev-split-no-mask", 0)
    torch.manual_seed(0)
    model = task.surrogate(settings.model).eval()
    batch = next(iter(task.batches(BatchPlan(task.train, 10), 1)))
    scrambled = torch.where(batch.ids == 0, 3, batch.ids)
    assert not torch.allclose(model(scrambled), model(batch.ids)), "padding counts as tokens"


def test_a_model_trained_without_a_mask_predicts_without_one(listops, tmp_path):
    settings = config(listops, data={"protocol": "dev-split-no-mask"}, model=TINY | {"length": 40}, steps=3)
    start(settings, tmp_path / "run")
    model, task, asked = load_classifier(tmp_path / "run"), ClassTask(settings), []
    model.network.register_forward_pre_hook(lambda _, given: asked.append(given))
    for batch in evaluation_batches(listops, task.evaluated["val"][:5], 1, fixed=task.fixed):
        model.predict(listops[batch.indices[0]].tokens)
        ids, mask = asked[-1]
        assert mask is None
        assert torch.equal(ids, batch.ids)


@pytest.mark.parametrize(
    ("tokens", "fact"),
    [
        ([], "float64"),
        (np.zeros(0, int), "0 tokens"),
        ([1] * 31, "31 tokens"),
        ([1, 99], "1 … 99"),
        ([1, -1], "-1 … 1"),
        ([1, 0], "0 … 1"),
    ],
)
def test_invalid_tokens_are_refused(listops, tokens, fact):
    with pytest.raises(DataError, match=fact):
        Classifier(TINY, listops.schema).predict(np.array(tokens))


def test_images_of_another_size_are_refused():
    images = SequenceSchema(name="image", vocabulary=4, classes=("a", "b", "c"), longest=9, pad=None)
    model = Classifier(TINY | {"length": 12}, images)
    assert model.predict([0] * 9) in images.classes
    for size in (8, 12):
        with pytest.raises(DataError, match=f"{size} tokens"):
            model.predict([0] * size)


def test_trivial_baselines_use_only_training_labels(listops):
    train, test = listops.split("train"), listops.split("test")
    found = trivial_baselines(listops, (listops, train), {"test": test})
    labels = [listops[int(i)].label for i in train]
    common = max(range(10), key=labels.count)
    assert found["chance"]["test"] == 0.1
    assert found["majority class"]["test"] == np.mean([listops[int(i)].label == common for i in test])
    best = {}
    for root in {int(listops[int(i)].tokens[0]) for i in train}:
        of_root = [listops[int(i)].label for i in train if listops[int(i)].tokens[0] == root]
        best[root] = max(range(10), key=of_root.count)
    right = [listops[int(i)].label == best.get(int(listops[int(i)].tokens[0]), 0) for i in test]
    assert found["root operator"]["test"] == np.mean(right)
    assert (best[MIN], best[MAX]) == (0, 9)


@pytest.mark.parametrize(
    ("accuracy", "words"),
    [
        (0.10, "not clearly above chance"),
        (0.1715, "not clearly above the majority class"),
        (0.30, "not clearly above the root operator"),
        (0.359, "not clearly above the root operator"),
        (0.367, "not clearly above the root operator"),
        (0.50, "13.7 points above the root operator"),
    ],
)
def test_published_accuracies_on_listops_are_not_above_the_root_operator(accuracy, words):
    assert compare_accuracy(accuracy, 2000, {"chance": 0.1, "majority class": 0.17, "root operator": 0.363}) == words


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"model": {"name": "flare"}}, "model.name='flare'"),
        ({"model": TINY | {"attention": "flair"}}, "'flair'.*'flare'"),
        ({"model": TINY | {"latent": 4}}, "'latent'.*'latents'"),
        ({"model": tiny("linear") | {"latents": 4}}, "'linear' has no option 'latents'"),
        ({"model": TINY | {"vocabulary": 4}}, "'vocabulary'"),
        ({"model": TINY | {"length": 10}}, r"model.length=10 .* 30 tokens"),
        ({"data": {"subsample": 4}}, "data.subsample$"),
        ({"data": {"subsample_from": 4}}, "data.subsample_from$"),
        ({"data": {"mirror": ["x"], "turn": ["x", "y"]}}, "data.mirror, data.turn$"),
        ({"data": {"normalize": {"u": "identity"}}}, "data.normalize$"),
        ({"ranks_share": "points"}, "ranks_share=points$"),
        ({"recompute": True}, "SequenceEncoder"),
        ({"data": {"val_split": "dev"}}, "'dev'"),
        ({"data": {"val_samples": 21}}, "21"),
        ({"data": {"protocol": "dev-split-no-mask", "val_split": None}}, "data.val_split"),
        ({"loss": LossConfig(offset=1.0)}, "loss$"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(listops, tmp_path, changes, fact):
    with pytest.raises((ConfigError, DataError), match=fact):
        start(config(listops, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "value"), [("labels", 200), ("tokens", 16), ("tokens", 0)])
def test_labels_and_tokens_out_of_range_are_refused_before_the_first_step(listops, tmp_path, name, value, monkeypatch):
    monkeypatch.setattr(checks, "PIECE", 3)
    copy = tmp_path / "d"
    shutil.copytree(listops.path, copy)
    settings = config(SequenceDataset(copy), steps=3, checkpoint_minutes=1e-9)
    monkeypatch.setattr(ClassTask, "errors", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(settings, tmp_path / "stopped")
    array = np.load(copy / f"{name}.npy")
    array[5] = value
    np.save(copy / f"{name}.npy", array)
    with pytest.raises(DataError, match=f"{name}.npy: entry 5 is {value};"):
        start(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match=f"{name}.npy: entry 5 is {value};"):
        resume(tmp_path / "stopped")
    np.save(copy / f"{name}.npy", array.astype(float))
    with pytest.raises(DataError, match=f"{name}.npy.*float64.*uint8"):
        SequenceDataset(copy)


def test_fields_and_sequences_are_not_mistaken_for_each_other(listops, tmp_path):
    darcy = darcy_dataset(tmp_path / "d", samples=6, test=2, resolution=6)
    with pytest.raises(ConfigError, match="dev-split-no-mask"):
        start(config(darcy, data={"protocol": "dev-split-no-mask", "val_split": None}), tmp_path / "a")
    with pytest.raises(ConfigError, match="sequence"):
        start(config(darcy, data={"val_split": None, "batch_size": 2}), tmp_path / "b")
    start(config(listops, steps=2), tmp_path / "run")
    with pytest.raises(CheckpointError, match="sequences"):
        load(tmp_path / "run")
    with pytest.raises(DataError, match="1 document"):
        load_classifier(tmp_path / "run").predict(np.ones(3, int), np.ones(3, int))
