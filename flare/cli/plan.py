"""`flare plan`: memory and time of training and prediction before they are begun, and what would fit at most."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.train.presets import build_config, preset_names, preset_path, read_yaml
from flare.utils.errors import ConfigError
from flare.utils.terminal import say
from flare.utils.text import counted, duration

if TYPE_CHECKING:
    from flare.plan import Planner
    from flare.trial import Setting

EPILOG = """examples:
  flare plan --points 1000000
  flare plan --preset drivaer-1m --points 1000000 --precision 32 --recompute true
  flare plan --points 8000000 --ranks 8 --steps 200000 --memory 80"""
SIZES = ("blocks", "latents", "channels", "heads")


def run(words: Sequence[str]) -> int:
    parser = make_parser("plan", "Memory and time of a FLARE run, from a short calibration on this machine.", EPILOG)
    parser.add_argument("--preset", help=f"settings to start from: {', '.join(preset_names())}, or a YAML file")
    parser.add_argument("--points", type=whole_number, required=True, help="points of a sample")
    parser.add_argument(
        "--batch", type=whole_number, help="samples at a time, of all ranks; default: the preset's, or 1"
    )
    parser.add_argument("--ranks", type=int, default=1, help="how many")
    parser.add_argument("--split", default="points", choices=["points", "samples"], help="what they share")
    parser.add_argument("--blocks", type=int, help="default: the preset's, or 8")
    parser.add_argument("--latents", type=int, help="default: the preset's, or 64")
    parser.add_argument("--channels", type=int, help="default: the preset's, or 64")
    parser.add_argument("--heads", type=int, help="default: the preset's, or 8")
    parser.add_argument("--in-dim", type=int, default=3, help="features per point")
    parser.add_argument("--out-dim", type=int, default=1, help="fields per point")
    parser.add_argument(
        "--precision", choices=["32", "bf16", "16"], help="of the training; default: the preset's, or 32"
    )
    parser.add_argument(
        "--recompute", type=bool, help="compute blocks anew in backward; default: the preset's, or false"
    )
    parser.add_argument("--chunk", default="auto", choices=["auto", "whole"], help="points of a prediction at a time")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--memory", type=float, help="GB of a rank; default: what is free, CPU ranks sharing it")
    parser.add_argument("--steps", type=whole_number, help="of a whole run, to see how long it takes")
    parser.add_argument("--calibration", help="file to keep calibrations in, and to take them from")
    args = parse(parser, words)
    for name in ("ranks", "memory", "steps"):
        if (value := getattr(args, name)) is not None and value <= 0:
            raise ConfigError(f"{name}={value}; it must be above 0")

    from flare.inference import chunk_within
    from flare.plan import Planner
    from flare.trial import prediction
    from flare.utils.environment import memory_of

    training = _training(args)
    given = args.memory * 1e9 / 2**20 if args.memory else None
    budget, alone = given or memory_of(args.device, args.ranks), given or memory_of(args.device)
    width = max(training.channels, training.in_dim, training.out_dim)
    chunk = chunk_within(alone, width) if args.chunk == "auto" else None
    planner = Planner(Path(args.calibration) if args.calibration else None, say)
    shares = f"{training.batch} x {training.points:,} points on each of {counted(args.ranks, 'rank')}"
    together = ", of this machine all together" if args.ranks > 1 and args.device == "cpu" and not given else ""
    print(f"{shares}, precision {training.precision}, {budget / 1024:.1f} GiB each{together}")
    _show_training(planner, training, budget, args)
    _show_prediction(planner, prediction(training, args.points, chunk=chunk), alone)
    return 0


def whole_number(text: str) -> int:
    """`1000000`, `1_000_000` or `1e6`."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None
    if not number.is_integer():
        raise ValueError(f"{text} is no whole number")
    return int(number)


def _training(args: Any) -> Setting:
    """The step of a rank, from the command line where that tells, else from the preset."""
    from flare.plan import per_rank
    from flare.trial import Setting

    record = (
        read_yaml(preset_path(args.preset)) if args.preset else {"model": {"name": "flare"}, "data": {"batch_size": 1}}
    )
    config = build_config(record, args.preset or "settings")
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    batch = args.batch if args.batch is not None else math.ceil(config.data.batch_size / config.optim.accumulate)
    precision = args.precision or config.precision
    if precision == "16" and args.device == "cpu":
        say("precision 16 needs a GPU; on a CPU runs use 32, and that is planned")
        precision = "32"
    by_points = args.split == "points"
    return Setting(
        model=dict(config.model) | given,
        in_dim=args.in_dim,
        out_dim=args.out_dim,
        points=per_rank(args.points, args.ranks) if by_points else args.points,
        batch=batch if by_points else math.ceil(batch / args.ranks),
        precision=precision,
        recompute=config.recompute if args.recompute is None else args.recompute,
        device=args.device,
        shared=args.split if args.ranks > 1 else "",
    )


def _show_training(planner: Planner, setting: Setting, budget: float, args: Any) -> None:
    need = planner.need(setting)
    print(f"{'training':<11} {_memory(need.memory_mb, budget)}; {_time(need.seconds)} a step")
    if args.steps:
        print(f"{'':<11} {args.steps:,} steps take {duration(need.seconds * args.steps)}")
    ranks = {args.split: args.ranks}  # those of a rank are said, these are of all
    label = "at most"
    for what, most in planner.largest(setting, budget).items():
        if most is None:  # no change of that alone would do
            continue
        count = {
            "points": most.points * ranks.get("points", 1),
            "samples at a time": most.batch * ranks.get("samples", 1),
            "latents": most.latents,
        }[what]
        cap = ", as many as a rank has points," if what == "latents" and most.latents == most.points else ""
        print(f"{label:<11} {count:,} {what}{cap} with {_time(planner.need(most).seconds)} a step")
        label = "or"


def _show_prediction(planner: Planner, setting: Setting, budget: float) -> None:
    need = planner.need(setting)
    how = f" in chunks of {setting.chunk:,} points" if setting.streams else ""
    print(f"{'prediction':<11} {_memory(need.memory_mb, budget)}; {_time(need.seconds)} a sample{how}")
    if setting.kind == "scratch":
        print(f"{'':<11} with a scratch file of {setting.row * setting.points / 1e9:.2f} GB")
    if setting.streams:
        print(f"{'at most':<11} any number of points: the memory does not grow, the time as their number")


def _memory(need_mb: float, budget_mb: float) -> str:
    from flare.plan import fits_into

    return f"{need_mb / 1024:8.2f} GiB at the peak, {'fits' if fits_into(need_mb, budget_mb) else 'does NOT fit'}"


def _time(seconds: float) -> str:
    """Three digits up to a minute."""
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)
