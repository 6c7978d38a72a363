"""`flare evaluate`: how good a trained model is, beside the simplest predictors there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import show_accuracies, show_fields, verdict
from flare.utils.errors import DataError, FlareError

if TYPE_CHECKING:
    from flare.sequence.guesses import Samples
    from flare.sequence.store import SequenceDataset
    from flare.train.config import TrainConfig


def run(words: Sequence[str]) -> int:
    parser = make_parser("evaluate", "Relative L2 errors of a run's surrogate, or the accuracy of its classifier.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--data", help="another dataset of the same fields or tokens; default the one of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--out", help="also write every sample's error to this JSON file")
    args = parse(parser, words)

    from pathlib import Path

    from flare.surrogate import find_checkpoint
    from flare.train.run_folder import RunFolder
    from flare.utils.files import refuse_existing

    if args.out:
        refuse_existing(args.out)
    find_checkpoint(Path(args.run), args.checkpoint)  # says best what is wrong with a folder that is no run
    config = RunFolder(args.run).config()
    (_classes if config.model["name"] == "sequence" else _fields)(args, config)
    return 0


def _classes(args: Any, config: TrainConfig) -> None:
    import numpy as np

    from flare.sequence.classifier import load_classifier
    from flare.sequence.guesses import guesses, reading, standard_error
    from flare.sequence.ranges import refuse_out_of_range
    from flare.sequence.store import SequenceDataset
    from flare.train.classes import last_judged, predicted_labels
    from flare.utils.files import making, write_json

    classifier = load_classifier(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    dataset = SequenceDataset(args.data or config.data.path)
    refuse_out_of_range(dataset)
    classifier.check_sequences(dataset.schema, dataset.path)
    split, count = last_judged(config.data)
    split = args.split or split
    judged = dataset.split(split)[: None if args.data or args.split else count]
    if len(judged) == 0:
        raise DataError(f"{dataset.path}: split {split!r} is empty")
    size, device = config.data.eval_batch_size, next(classifier.parameters()).device
    answers = predicted_labels(classifier, dataset, judged, size, device, fixed=classifier.fixed)
    right = answers == dataset.labels[judged]
    accuracy, guessed = float(right.mean()), guesses(dataset, _training_samples(config, dataset), {split: judged})
    weights = f"{args.checkpoint} weights" + (", averaged" if args.ema else "")
    print(f"{dataset.path}, {split}: {len(judged)} samples, {weights}")
    show_accuracies(
        {
            "accuracy": {split: accuracy},
            "standard_error": {split: standard_error(accuracy, len(judged))},
            "guesses": guessed,
            "reading": reading(accuracy, len(judged), {kind: of[split] for kind, of in guessed.items()}),
            "protocol": config.data.protocol,
            "split": split,
        }
    )
    for label, name in enumerate(dataset.schema.classes):
        of_class = dataset.labels[judged] == label
        share = f"{100 * right[of_class].mean():.1f} % right" if of_class.any() else "none"
        print(f"  {name:<20}{np.count_nonzero(of_class):>6} samples, {share}")
    if args.out:
        with making(args.out) as path:
            write_json(path, {"samples": judged.tolist(), "predicted": answers.tolist(), "right": right.tolist()})


def _training_samples(config: TrainConfig, judged: SequenceDataset) -> Samples | None:
    """What can be guessed is learnt from the run's training samples; where they are gone, from those of the dataset."""
    from flare.sequence.ranges import refuse_out_of_range
    from flare.sequence.store import SequenceDataset
    from flare.train.tasks import first_samples
    from flare.utils.terminal import say

    data = config.data
    try:
        own = SequenceDataset(data.path)
        refuse_out_of_range(own)
        return own, first_samples(own, data.train_split, data.train_samples)
    except FlareError as error:
        try:
            instead = judged, first_samples(judged, data.train_split, None)
        except FlareError:
            say(f"no guesses but chance: {error}; and {judged.path} has no samples to train with")
            return None
        say(f"guesses are of the training samples of {judged.path}: {error}")
        return instead


def _fields(args: Any, config: TrainConfig) -> None:
    from flare.data.dataset import Dataset
    from flare.surrogate import load
    from flare.train.field_task import FieldTask, mean_field_errors, median, sample_errors
    from flare.utils.files import making, write_json
    from flare.utils.terminal import say

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    dataset = Dataset(args.data or config.data.path)
    surrogate.check_fields(dataset.schema, dataset.path)
    split = args.split or config.data.test_split
    test = dataset.split(split)[: None if args.data or args.split else config.data.test_samples]
    if len(test) == 0:
        raise DataError(f"{dataset.path}: split {split!r} is empty")
    by_field = sample_errors(surrogate, dataset, test, config.data.eval_batch_size, surrogate.device)
    errors, names, files = by_field.mean(1), dataset.schema.named("target"), dataset.files()
    record = {"samples": test.tolist(), "rel_l2": errors.tolist()}
    if any(files):
        record["files"] = [files[i] for i in test]
    weights = f"{args.checkpoint} weights" + (", averaged" if args.ema else "")
    print(f"{dataset.path}, {split}: {len(errors)} samples, {weights}")
    print(f"rel-L2 mean           {errors.mean():.4f}")
    worst = dataset.titles()[test[errors.argmax()]]
    print(f"median, worst         {median(errors):.4f}, {errors.max():.4f} (sample {worst})")
    try:
        task = FieldTask(config.data, config.loss)
    except FlareError as error:
        say(f"no training-mean field to compare with: {error}")
    else:
        baseline, kind = mean_field_errors(task.dataset, task.train, test, dataset)
        print(f"training-mean field   {baseline.mean():.4f}   {kind}; {verdict(errors.mean(), baseline.mean())}")
        show_fields(dict(zip(names, zip(by_field.mean(0), baseline.mean(0), strict=True), strict=True)))
        record["rel_l2_mean_field"] = baseline.mean(1).tolist()
    if args.out:
        with making(args.out) as path:
            write_json(path, record)
