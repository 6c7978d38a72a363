"""`flare evaluate`: errors of a trained model beside those of trivial baselines."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse
from flare.cli.surrogates import add_weights, weights


def run(words: Sequence[str]) -> int:
    """Run the command."""
    parser = make_parser("evaluate", "Relative L2 errors of a run's surrogate, or the accuracy of its classifier.")
    add_weights(parser)
    parser.add_argument("--data", help="another dataset of the same fields or tokens; default that of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("-o", "--out", help="also write every sample's error to this JSON file")
    args = parse(parser, words)

    from flare.train.tasks import task_of_run
    from flare.utils.files import check_not_existing, create_file, write_json

    if args.out:
        check_not_existing(args.out)
    task = task_of_run(args.run, args.checkpoint)
    lines, record = task.evaluate_run(args.run, data=args.data, split=args.split, **weights(args))
    print(*lines, sep="\n")
    if args.out:
        with create_file(args.out) as path:
            write_json(path, record)
    return 0
