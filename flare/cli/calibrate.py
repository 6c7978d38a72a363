"""`flare calibrate`: error bars and familiarity of a run, from samples it has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import make_parser


def run(words: Sequence[str]) -> int:
    parser = make_parser("calibrate", "Measure how far the predictions of a run can be trusted, and keep that with it.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)

    from flare.trust.calibration import FILE, calibrate_run, tell

    calibration = calibrate_run(args.run, device=args.device)
    for line in tell(calibration.report):
        print(line)
    print(f"kept in {args.run}/{FILE}")
    return 0
