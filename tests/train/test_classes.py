"""Training on sequences through the one loop: it learns, goes on bit for bit, masks padding, and says what a number is
worth."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from flare.data.batching import BatchPlan
from flare.sequence import load_classifier, ranges
from flare.sequence.batch import evaluation_batches, training_batches
from flare.sequence.classifier import Classifier
from flare.sequence.encoder import ATTENTIONS
from flare.sequence.guesses import guesses, reading
from flare.sequence.listops import MAX, MIN, ListOps
from flare.sequence.store import Example, SequenceDataset, SequenceSchema, SequenceWriter, generate_sequences
from flare.surrogate import load
from flare.train.classes import ClassTask
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
    rng, writer = (
        np.random.default_rng(0),
        SequenceWriter(tmp_path_factory.mktemp("pairs") / "d", schema, {"kind": "user"}),
    )
    for _ in range(80):
        documents = tuple(rng.integers(1, 5, rng.integers(2, 10)) for _ in range(2))
        writer.append(Example(documents, int(documents[0][0] == documents[1][0])))
    return writer.finish({"train": [(0, 60)], "val": [(60, 70)], "test": [(70, 80)]})


def config(dataset, *, data=None, optim=None, **changes):
    base = TrainConfig(
        data=replace(
            DataConfig(path=str(dataset.path), batch_size=10, eval_batch_size=7, val_split="val"), **data or {}
        ),
        model=TINY,
        optim=replace(OptimConfig(lr=3e-3), **optim or {}),
        epochs=2,
        evaluate_every=1,
        log_every=1,
        device="cpu",
    )
    return replace(base, **changes)


def task_of(settings):
    return ClassTask(settings)


def tensors(run):
    return {p.name: p.read_bytes() for p in sorted((run / "checkpoints" / "last").glob("*.safetensors"))}


# -- it learns, and the numbers are what they say ----------------------------------------------------------------------


def first_token_task(path):
    """The class is the first of some tokens: nothing a model could not learn in a moment."""
    schema = SequenceSchema(name="first", vocabulary=5, classes=("a", "b", "c", "d"), longest=12)
    rng, writer = np.random.default_rng(0), SequenceWriter(path, schema, {"kind": "user"})
    for _ in range(260):
        tokens = rng.integers(1, 5, rng.integers(3, 13))
        writer.append(Example((tokens,), int(tokens[0]) - 1))
    return writer.finish({"train": [(0, 200)], "val": [(200, 230)], "test": [(230, 260)]})


def test_it_learns_and_the_result_is_what_anyone_would_count(tmp_path):
    dataset = first_token_task(tmp_path / "d")
    settings = config(dataset, model=tiny("vanilla"), epochs=30, evaluate_every=10, optim={"lr": 1e-2})
    result = start(settings, tmp_path / "run")
    assert result["accuracy"]["test"] > 0.9, "it learns"
    model = load_classifier(tmp_path / "run")
    for split in ("val", "test"):
        examples = [dataset[int(i)] for i in dataset.split(split)]
        right = [model.predict(e.tokens) == dataset.schema.classes[e.label] for e in examples]
        assert result["accuracy"][split] == pytest.approx(np.mean(right))
        share = result["accuracy"][split]
        assert result["standard_error"][split] == pytest.approx(math.sqrt(share * (1 - share) / 30))
    evaluations = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert [(r["epoch"], r["split"]) for r in evaluations] == [(10, "val"), (20, "val"), (30, "val")]
    assert evaluations[-1]["accuracy"] == pytest.approx(result["accuracy"]["val"])
    kept = json.loads((tmp_path / "run" / "test_errors.json").read_text())
    assert 1 - np.mean(kept["test"]["wrong"]) == pytest.approx(result["accuracy"]["test"])


def test_pairs_have_one_logit_and_binary_cross_entropy(pairs, tmp_path):
    settings = config(pairs)
    task = task_of(settings)
    model = task.surrogate(settings.model)
    batch = next(evaluation_batches(pairs, task.train, 8))
    assert batch.ids.shape == batch.mask.shape == (8, 2 * int(pairs.lengths[list(batch.indices)].max()))
    logits = model(batch.ids, batch.mask)
    both = torch.cat([torch.zeros_like(logits), logits], 1)
    torch.testing.assert_close(task.loss(model, batch), cross_entropy(both, batch.labels))
    result = start(settings, tmp_path / "run")
    assert set(result["accuracy"]) == {"val", "test"}


def test_so_many_steps_in_place_of_epochs(listops, tmp_path):
    result = start(config(listops, steps=17, epochs=99, evaluate_every=1), tmp_path / "run")
    assert (result["steps"], result["epochs"]) == (17, round(17 / 15, 2))
    evaluations = [r["step"] for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert evaluations == [15, 17], "after the epoch of 150 samples, and at the end"


@pytest.mark.parametrize("attention", ["flare", "performer"])
def test_a_stopped_run_ends_as_one_that_was_not(listops, tmp_path, attention, monkeypatch):
    model = tiny(attention) | {"dropout": 0.1} | ({"redraw_every": 4} if attention == "performer" else {})
    settings = config(listops, model=model, epochs=2, checkpoint_minutes=1e-9)
    start(settings, tmp_path / "whole")

    class Stop(Exception):
        pass

    plain, count = ClassTask.loss, [0]

    def stopping(*arguments):
        count[0] += 1
        if count[0] == 19:
            raise Stop
        return plain(*arguments)

    monkeypatch.setattr(ClassTask, "loss", stopping)
    with pytest.raises(Stop):
        start(settings, tmp_path / "stopped")
    monkeypatch.undo()
    resume(tmp_path / "stopped")
    assert tensors(tmp_path / "stopped") == tensors(tmp_path / "whole")


def test_averaged_weights_are_judged_too(listops, tmp_path):
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
def test_a_loss_that_rises_from_nothing_may_be_chance_but_one_far_above_guessing_is_divergence(
    listops, tmp_path, monkeypatch, later, stops
):
    plain, count = ClassTask.loss, [0]

    def scaled(*arguments):
        count[0] += 1
        return plain(*arguments) * (1e-6 if count[0] < 10 else later)

    monkeypatch.setattr(ClassTask, "loss", scaled)
    if stops:
        with pytest.raises(TrainingDiverged, match="the loss rose to"):
            start(config(listops), tmp_path / "run")
    else:
        assert start(config(listops), tmp_path / "run")["steps"] == 30


# -- batches -----------------------------------------------------------------------------------------------------------


def test_batches_of_like_length_hold_every_sample_once_and_little_padding(listops):
    train, lengths = listops.split("train"), listops.lengths.max(1)
    plain, sorted_by_length = BatchPlan(train, 10), BatchPlan(train, 10, lengths=lengths)
    assert sorted(i for batch in sorted_by_length for _, i in batch) == sorted(train)

    def padding(plan):
        return np.mean(
            [1 - b.mask.float().mean() if b.mask is not None else 0 for b in training_batches(listops, plan)]
        )

    assert padding(sorted_by_length) < 0.25 * padding(plain)
    first = list(sorted_by_length)
    assert list(sorted_by_length) == first
    sorted_by_length.begin(1)
    assert list(sorted_by_length) != first, "another epoch, another order"
    means = [np.mean([lengths[i] for _, i in batch]) for batch in first]
    assert means != sorted(means), "short batches do not come first"


def test_lengths_change_neither_ranks_nor_the_point_to_go_on_from(listops):
    train, lengths = listops.split("train"), listops.lengths.max(1)
    whole = list(BatchPlan(train, 10, lengths=lengths))
    shares = [list(BatchPlan(train, 10, lengths=lengths, rank=r, ranks=2)) for r in range(2)]
    assert [sorted(a + b) for a, b in zip(*shares, strict=True)] == [sorted(batch) for batch in whole]
    tokens = [sum(lengths[i] for batch in share for _, i in batch) for share in shares]
    assert max(tokens) < 1.02 * min(tokens), "and none always has the longest"
    later = BatchPlan(train, 10, lengths=lengths)
    later.begin(0, 6)
    assert list(later) == whole[6:]


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("pool", ["mean", "cls", "max"])
def test_padding_never_leaks(listops, attention, pool):
    """Whatever stands at padded places, and however many there are, no logit changes."""
    torch.manual_seed(0)
    model = Classifier(tiny(attention) | {"pool": pool}, listops.schema).double().eval()
    batch = next(evaluation_batches(listops, listops.split("test"), 12))
    assert batch.mask is not None
    logits = model(batch.ids, batch.mask)
    scrambled = torch.where(batch.mask, batch.ids, torch.randint_like(batch.ids, 16))
    assert not torch.equal(scrambled, batch.ids)
    torch.testing.assert_close(model(scrambled, batch.mask), logits, rtol=0, atol=1e-12)
    alone = [next(evaluation_batches(listops, np.array([i]), 1)) for i in batch.indices]
    assert all(one.mask is None for one in alone)
    each = torch.cat([model(one.ids, one.mask) for one in alone])
    torch.testing.assert_close(each, logits, rtol=0, atol=1e-9)


def test_evaluation_does_not_depend_on_the_size_of_batches(listops):
    settings = config(listops)
    torch.manual_seed(1)
    model = task_of(settings).surrogate(settings.model).eval()
    device = torch.device("cpu")
    wrong = [
        task_of(replace(settings, data=replace(settings.data, eval_batch_size=size))).errors(
            model, device, listops.split("test")
        )
        for size in (1, 7, 30)
    ]
    assert np.array_equal(wrong[0], wrong[1])
    assert np.array_equal(wrong[0], wrong[2])


# -- the published protocol --------------------------------------------------------------------------------------------


def test_the_published_protocol_pads_all_alike_hides_the_mask_and_never_opens_the_test(listops, tmp_path):
    settings = config(listops, data={"protocol": "dev-split-no-mask"}, model=TINY | {"length": 40})
    task = task_of(settings)
    for batch in task.batches(BatchPlan(task.train, 10), 1):
        assert batch.mask is None
        assert batch.ids.shape == (10, 40)
    assert set(task.judged) == {"val"}
    result = start(settings, tmp_path / "run")
    assert set(result["accuracy"]) == set(result["guesses"]["chance"]) == {"val"}
    assert (result["split"], result["protocol"], result["test_samples"]) == ("val", "dev-split-no-mask", 0)
    torch.manual_seed(0)
    model = task.surrogate(settings.model).eval()
    batch = next(iter(task.batches(BatchPlan(task.train, 10), 1)))
    scrambled = torch.where(batch.ids == 0, 3, batch.ids)
    assert not torch.allclose(model(scrambled), model(batch.ids)), "padding counts"


def test_the_published_protocol_judges_by_the_test_where_that_is_the_dev_split(listops, tmp_path):
    """As of Text, whose published table validates on the test."""
    settings = config(listops, data={"protocol": "dev-split-no-mask", "val_split": "test", "val_samples": 9}, steps=3)
    result = start(settings, tmp_path / "run")
    assert result["samples"] == {"test": 9}


def test_a_model_trained_without_a_mask_is_asked_without_one(listops, tmp_path):
    settings = config(listops, data={"protocol": "dev-split-no-mask"}, model=TINY | {"length": 40}, steps=3)
    start(settings, tmp_path / "run")
    model, task, asked = load_classifier(tmp_path / "run"), task_of(settings), []
    model.network.register_forward_pre_hook(lambda _, given: asked.append(given))
    for batch in evaluation_batches(listops, task.judged["val"][:5], 1, fixed=task.fixed):
        model.predict(listops[batch.indices[0]].tokens)
        ids, mask = asked[-1]
        assert mask is None
        assert torch.equal(ids, batch.ids)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "the sequence: tokens are float64"),
        (np.zeros(0, int), "the sequence: 0 tokens; listops has 1 to 30"),
        ([1] * 31, "the sequence: 31 tokens"),
        ([1, 99], "token ids go from 1 to 99; allowed are 0 … 15, and not 0, the pad"),
        ([1, -1], "token ids go from -1 to 1"),
        ([1, 0], "and not 0, the pad"),
    ],
)
def test_what_is_no_sequence_of_the_task_has_no_class(listops, tokens, message):
    with pytest.raises(DataError, match=message):
        Classifier(TINY, listops.schema).predict(np.array(tokens))


def test_a_ragged_list_and_a_picture_of_another_size_have_no_class(listops):
    with pytest.raises(DataError, match="the sequence: its parts differ in length"):
        Classifier(TINY, listops.schema).predict([[1, 2], [3]])
    pictures = SequenceSchema(name="image", vocabulary=4, classes=("a", "b", "c"), longest=9, pad=None)
    model = Classifier(TINY | {"length": 12}, pictures)
    assert model.predict([0] * 9) in pictures.classes
    for size in (8, 12):
        with pytest.raises(DataError, match=f"{size} tokens; every sequence of image has 9"):
            model.predict([0] * size)


# -- what a number is worth --------------------------------------------------------------------------------------------


def test_guesses_are_counted_from_training_labels_alone(listops):
    train, test = listops.split("train"), listops.split("test")
    found = guesses(listops, (listops, train), {"test": test})
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
def test_the_published_listops_numbers_are_recognised(accuracy, words):
    assert reading(accuracy, 2000, {"chance": 0.1, "majority class": 0.17, "root operator": 0.363}) == words


def test_guesses_may_be_learnt_from_another_dataset(listops, pairs):
    train, test = listops.split("train"), listops.split("test")
    few = guesses(listops, (listops, train[:1]), {"test": test})
    only = listops[int(train[0])].label
    assert few["majority class"]["test"] == np.mean([listops[int(i)].label == only for i in test])
    assert guesses(listops, None, {"test": test}) == {"chance": {"test": 0.1}}


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "flare"}}, "does not read sequences; use --model.name sequence"),
        ({"model": TINY | {"attention": "flair"}}, "unknown attention 'flair'; did you mean 'flare'"),
        ({"model": TINY | {"latent": 4}}, "attention 'flare' has no option 'latent'; did you mean 'latents'"),
        (
            {"model": tiny("linear") | {"latents": 4}},
            "no option 'latents'; its own are: kernel, mlp_ratio, normalise; 'latents' is of flare",
        ),
        ({"model": TINY | {"vocabulary": 4}}, "attention 'flare' has no option 'vocabulary'"),
        (
            {"model": TINY | {"length": 10}},
            r"model.length=10; .* 30 tokens \(the longest here has 2\d\)\. Leave model.length out, or say 30 or more",
        ),
        ({"data": {"subsample": 4}}, "holds sequences; drop what is for fields only: data.subsample$"),
        ({"data": {"subsample_from": 4}}, "for fields only: data.subsample_from$"),
        ({"data": {"mirror": ["x"], "turn": ["x", "y"]}}, "for fields only: data.mirror, data.turn$"),
        ({"data": {"normalise": {"u": "identity"}}}, "for fields only: data.normalise$"),
        ({"split": "points"}, "for fields only: split points$"),
        ({"recompute": True}, "SequenceEncoder cannot compute its blocks anew"),
        ({"data": {"val_split": "dev"}}, "no split 'dev'"),
        ({"data": {"val_samples": 21}}, "21 samples of split 'val' are asked for"),
        ({"data": {"protocol": "dev-split-no-mask", "val_split": None}}, "name it: --data.val_split"),
        ({"data": {"val_split": "test", "val_samples": 3}}, "both 'test', which is judged once"),
        ({"loss": LossConfig(offset=1.0)}, "for fields only: loss$"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(listops, tmp_path, changes, message):
    with pytest.raises((ConfigError, DataError), match=message):
        start(config(listops, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", 200, r"labels.npy: entry 5 is 200; classes are 0 … 9; .* flare data check"),
        ("tokens", 16, r"tokens.npy: entry 5 is 16; tokens are 0 … 15, and not 0, the pad; .* flare data check"),
        ("tokens", 0, r"tokens.npy: entry 5 is 0; tokens"),
    ],
)
def test_labels_and_tokens_out_of_range_are_refused_before_the_first_step(
    listops, tmp_path, name, value, message, monkeypatch
):
    monkeypatch.setattr(ranges, "PIECE", 3)
    copy = tmp_path / "d"
    shutil.copytree(listops.path, copy)
    settings = config(SequenceDataset(copy), steps=3, checkpoint_minutes=1e-9)
    monkeypatch.setattr(ClassTask, "errors", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start(settings, tmp_path / "stopped")
    array = np.load(copy / f"{name}.npy")
    array[5] = value
    np.save(copy / f"{name}.npy", array)
    with pytest.raises(DataError, match=message):
        start(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(DataError, match=message):
        resume(tmp_path / "stopped")
    np.save(copy / f"{name}.npy", array.astype(float))
    with pytest.raises(DataError, match=f"{name}.npy holds float64, but dataset.json asks for uint8"):
        SequenceDataset(copy)


def test_a_dataset_without_validation_samples_names_the_way_out(tmp_path):
    """As `flare data read text --val 0` makes it."""
    short = ListOps(min_length=3, max_length=30, max_depth=3)
    dataset = generate_sequences(short, tmp_path / "d", samples=30, val_samples=0, test_samples=10, quiet=True)
    with pytest.raises(DataError, match=r"split 'val' is empty; .* --data.val_split \(null for none\)"):
        start(config(dataset), tmp_path / "run")
    assert set(task_of(config(dataset, data={"val_split": None})).judged) == {"test"}


def test_fields_and_sequences_are_not_taken_for_each_other(listops, tmp_path):
    darcy = darcy_dataset(tmp_path / "d", samples=6, test=2, resolution=6)
    with pytest.raises(ConfigError, match="'dev-split-no-mask' is of sequences"):
        start(config(darcy, data={"protocol": "dev-split-no-mask", "val_split": None}), tmp_path / "a")
    with pytest.raises(ConfigError, match="sequence"):
        start(config(darcy, data={"val_split": None, "batch_size": 2}), tmp_path / "b")
    start(config(listops, steps=2), tmp_path / "run")
    with pytest.raises(CheckpointError, match="holds a classifier of sequences"):
        load(tmp_path / "run")
    with pytest.raises(DataError, match="asks for 1 document"):
        load_classifier(tmp_path / "run").predict(np.ones(3, int), np.ones(3, int))


def test_a_split_to_watch_serves_fields_too(tmp_path):
    darcy = darcy_dataset(tmp_path / "d", samples=12, test=4, resolution=6)
    model = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 2, "kv_depth": 0, "ffn_depth": 0}
    settings = config(darcy, model=model, data={"val_split": "train", "val_samples": 3, "batch_size": 2})
    result = start(settings, tmp_path / "run")
    evaluations = [r for r in RunFolder(tmp_path / "run").records() if r["kind"] == "evaluate"]
    assert {r["split"] for r in evaluations} == {"train"}
    assert evaluations[-1]["rel_l2"] == pytest.approx(result["rel_l2_train"])
    assert result["split"] == "test"
