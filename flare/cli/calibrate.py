"""`flare calibrate`: calibrate the error bars and the OOD score of a run on held-out samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flare.cli import make_parser, parse
from flare.cli.surrogates import add_weights, weights
from flare.utils.errors import ConfigError


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("calibrate", "Calibrate the error bars and the OOD score of a run on held-out samples.")
    add_weights(parser)
    args = parse(parser, words)

    from flare.inference.calibration.calibrate import calibration_path
    from flare.train.run import calibrate_run

    calibration = calibrate_run(args.run, **weights(args))
    if calibration is None:
        raise ConfigError(f"{args.run} is a classifier; only surrogates of fields have error bars")
    for line in calibration_lines(calibration.report):
        print(line)
    print(f"written to {calibration_path(args.run, args.checkpoint, args.ema)}")


def calibration_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the report of a calibration as lines of text."""
    from flare.data.splits import few_samples_note

    lines = []
    if "coverage" in report:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report["coverage"].items())
        lines.append(f"error bars at {report['level']:.0%} cover, on {report['test_samples']} test samples: {shares}")
    note = "" if "no_bars" in report else few_samples_note(report["held_out_samples"])
    lines += [note] if note else []
    for key, missing in (("no_bars", "no error bars"), ("no_familiarity", "no OOD score")):
        if key in report:
            lines.append(f"{missing}: {report[key]}")
    return lines
