"""`flare evaluate`: the errors of a trained surrogate, beside those of the training-mean field."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import show_fields, verdict
from flare.errors import DataError, FlareError


def run(words: Sequence[str]) -> int:
    parser = make_parser("evaluate", "Relative L2 errors of a run's surrogate, per sample, in physical values.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--data", help="another dataset of the same fields; default the one of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--out", help="also write every sample's error to this JSON file")
    args = parse(parser, words)

    from flare.data.store import Dataset
    from flare.files import refuse_existing, write_json
    from flare.surrogate import load
    from flare.terminal import say
    from flare.train.fields import FieldTask, mean_field_errors, median, sample_errors
    from flare.train.run import RunFolder

    if args.out:
        refuse_existing(args.out)
    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    config = RunFolder(args.run).config()
    dataset = Dataset(args.data or config.data.path)
    surrogate.check_fields(dataset.schema, dataset.path)
    split = args.split or config.data.test_split
    test = dataset.split(split)[: None if args.data or args.split else config.data.test_samples]
    if len(test) == 0:
        raise DataError(f"{dataset.path}: split {split!r} is empty")
    by_field = sample_errors(surrogate, dataset, test, config.data.eval_batch_size, surrogate.device)
    errors, names = by_field.mean(1), dataset.schema.named("target")
    record = {"samples": test.tolist(), "rel_l2": errors.tolist()}
    weights = f"{args.checkpoint} weights" + (", averaged" if args.ema else "")
    print(f"{dataset.path}, {split}: {len(errors)} samples, {weights}")
    print(f"rel-L2 mean           {errors.mean():.4f}")
    print(f"median, worst         {median(errors):.4f}, {errors.max():.4f} (sample {int(test[errors.argmax()])})")
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
        write_json(args.out, record)
    return 0
