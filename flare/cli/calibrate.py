"""`flare calibrate`: error bars and familiarity of a run, from samples it has not learnt from."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import make_parser


def run(words: Sequence[str]) -> int:
    parser = make_parser("calibrate", "Measure how far the predictions of a run can be trusted, and keep that with it.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)

    from flare.trust.calibration import FILES, calibrate_run, tell

    calibration = calibrate_run(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    for line in tell(calibration.report):
        print(line)
    print(f"kept in {args.run}/{FILES[args.checkpoint, args.ema]}")
    return 0
