"""`flare evaluate`: errors of a trained model beside those of trivial baselines."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse


def run(words: Sequence[str]) -> int:
    """Run the command."""
    parser = make_parser("evaluate", "Relative L2 errors of a run's surrogate, or the accuracy of its classifier.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--data", help="another dataset of the same fields or tokens; default that of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, if the run has them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--out", help="also write every sample's error to this JSON file")
    args = parse(parser, words)

    from flare.train.tasks import task_of_run
    from flare.utils.files import check_not_existing, create_file, write_json

    if args.out:
        check_not_existing(args.out)
    weights = {"checkpoint": args.checkpoint, "ema": args.ema, "device": args.device}
    task = task_of_run(args.run, args.checkpoint)
    lines, record = task.evaluate_run(args.run, data=args.data, split=args.split, **weights)
    print(*lines, sep="\n")
    if args.out:
        with create_file(args.out) as path:
            write_json(path, record)
    return 0
