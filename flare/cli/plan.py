"""`flare plan`: memory and time of training and prediction before they are begun, and what would fit at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.errors import ConfigError
from flare.terminal import duration, say
from flare.train.presets import preset_names, preset_path, read_yaml

EPILOG = """examples:
  flare plan --points 1000000
  flare plan --preset drivaer-1m --points 1000000 --precision 32 --recompute true
  flare plan --points 8000000 --ranks 8 --steps 200000 --memory 80"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("plan", "Memory and time of a FLARE run, from a short calibration on this machine.", EPILOG)
    parser.add_argument("--preset", help=f"the model's sizes: {', '.join(preset_names())}, or a YAML file")
    parser.add_argument("--points", type=int, required=True, help="points of a sample")
    parser.add_argument("--batch", type=int, default=1, help="samples at a time")
    parser.add_argument("--ranks", type=int, default=1, help="ranks that share the points of a sample")
    parser.add_argument("--blocks", type=int, help="default: the preset's, or 8")
    parser.add_argument("--latents", type=int, help="default: the preset's, or 64")
    parser.add_argument("--channels", type=int, help="default: the preset's, or 64")
    parser.add_argument("--heads", type=int, help="default: the preset's, or 8")
    parser.add_argument("--in-dim", type=int, default=3, help="features per point")
    parser.add_argument("--out-dim", type=int, default=1, help="fields per point")
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "16"], help="of the training")
    parser.add_argument("--recompute", type=bool, default=False, help="compute blocks anew in backward")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    parser.add_argument("--memory", type=float, help="GB of a rank; default: what is free on the device")
    parser.add_argument("--steps", type=int, help="of a whole run, to see how long it takes")
    parser.add_argument("--calibration", help="file to keep the calibration in, or to take it from")
    args = parse(parser, words)
    if args.ranks < 1:
        raise ConfigError(f"ranks={args.ranks}; at least 1")

    from flare.plan import memory_of

    budget = args.memory * 1e9 / 2**20 if args.memory else memory_of(args.device)
    print(f"{args.points:,} points x {args.batch} on {args.ranks} rank(s), {budget / 1024:.1f} GiB each")
    for training in (True, False):
        _show(args, _setting(args, training), budget)
    return 0


def _setting(args: Any, training: bool) -> Any:
    from flare.plan import Setting, per_rank

    model = dict(read_yaml(preset_path(args.preset)).get("model", {})) if args.preset else {"name": "flare"}
    model |= {name: getattr(args, name) for name in ("blocks", "latents", "channels", "heads") if getattr(args, name)}
    return Setting(
        model=model,
        in_dim=args.in_dim,
        out_dim=args.out_dim,
        points=per_rank(args.points, args.ranks),
        batch=args.batch,
        training=training,
        precision=args.precision,
        recompute=args.recompute and training,
        device=args.device,
    )


def _show(args: Any, setting: Any, budget: float) -> None:
    from flare.plan import calibrated

    kind = "training" if setting.training else "prediction"
    path = Path(f"{args.calibration}.{kind}.json") if args.calibration else None
    calibration = calibrated(setting, path, say)
    need = calibration.predict(setting)
    verdict = "fits" if need.memory_mb <= budget else "does NOT fit"
    print(f"{kind:<11} {need.memory_mb / 1024:8.2f} GiB at the peak, {verdict}; {need.seconds:.3g} s a step")
    if args.steps and setting.training:
        print(f"{'':<11} {args.steps:,} steps take {duration(need.seconds * args.steps)}")
    most = calibration.largest(setting, budget)
    points = f"{most['points'] * args.ranks:,} points"
    print(f"{'at most':<11} {points}, or batch {most['batch']:,}, or {most['latents']:,} latents")
    smaller = calibration.predict(replace(setting, points=max(1, most["points"])))
    print(f"{'':<11} {smaller.seconds:.3g} s a step at {points}")
