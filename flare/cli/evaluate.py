"""`flare evaluate`: the errors of a trained surrogate, beside those of the training-mean field."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from flare.cli import parse
from flare.cli.options import make_parser


def run(words: Sequence[str]) -> int:
    parser = make_parser("evaluate", "Relative L2 errors of a run's surrogate, per sample, in physical values.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--data", help="another dataset of the same fields; default the one of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--out", help="also write every sample's error to this JSON file")
    args = parse(parser, words)

    import numpy as np
    import torch

    from flare.files import refuse_existing, write_json
    from flare.surrogate import load
    from flare.train.fields import FieldTask, mean_field_errors
    from flare.train.run import RunFolder

    if args.out:
        refuse_existing(args.out)
    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    config = RunFolder(args.run).config()
    data = replace(config.data, path=args.data or config.data.path, test_split=args.split or config.data.test_split)
    task = FieldTask(data, config.loss)
    surrogate.check_fields(task.dataset.schema, data.path)
    errors = task.errors(surrogate, torch.device(args.device))
    baseline, kind = mean_field_errors(task.dataset, task.train, task.test)
    weights = f"{args.checkpoint} weights" + (", averaged" if args.ema else "")
    print(f"{data.path}, {data.test_split}: {len(errors)} samples, {weights}")
    print(f"rel-L2 mean           {errors.mean():.4f}")
    print(
        f"median, worst         {np.median(errors):.4f}, {errors.max():.4f} (sample {int(task.test[errors.argmax()])})"
    )
    print(f"training-mean field   {baseline.mean():.4f}   {kind}")
    if args.out:
        record = {"samples": task.test.tolist(), "rel_l2": errors.tolist(), "rel_l2_mean_field": baseline.tolist()}
        write_json(args.out, record)
    return 0
