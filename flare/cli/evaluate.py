"""`flare evaluate`: print the errors of a trained model beside those of trivial baselines."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, new_path, parse
from flare.cli.surrogates import add_weights, weights


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("evaluate", "Compute the relative L2 errors of a surrogate, or the accuracy of a classifier.")
    add_weights(parser)
    parser.add_argument("--data", help="another dataset of the same fields or tokens; default that of the run")
    parser.add_argument("--split", help="split to evaluate on; default the test split of the run")
    parser.add_argument("-o", "--out", type=new_path, help="JSON file to write, with the error of every sample")
    args = parse(parser, words)

    from flare.train.tasks import task_of_run
    from flare.utils.files import create_file, write_json

    task = task_of_run(args.run, args.checkpoint)
    lines, record = task.evaluate_run(args.run, data=args.data, split=args.split, **weights(args))
    print(*lines, sep="\n")
    if args.out:
        with create_file(args.out) as path:
            write_json(path, record)
