"""`flare plan`: predict the memory and time of a run, and the largest sizes that fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import count, make_parser, parse
from flare.train.presets import build_config, preset_names, preset_path, read_yaml
from flare.utils.terminal import print_status
from flare.utils.text import counted, duration

if TYPE_CHECKING:
    from flare.train.planning import Planner
    from flare.train.workload import Workload

EPILOG = """examples:
  flare plan --points 1000000
  flare plan --preset drivaer-1m --points 1000000 --precision 32 --recompute
  flare plan --points 8000000 --ranks 8 --steps 200000 --memory 80"""
GROUPS = {
    "run": "preset points batch precision recompute steps chunk",
    "model": "blocks latents channels heads in_dim out_dim",
    "machine": "ranks ranks_share device memory cache",
}
SIZES = {"blocks": 8, "latents": 64, "channels": 64, "heads": 8}


def run(words: Sequence[str]) -> None:
    """Run the command."""
    from jsonargparse.typing import PositiveFloat

    about = "Predict the memory and time of a FLARE run from short measurements on this machine."
    parser = make_parser("plan", about, EPILOG, GROUPS)
    add = parser.add_argument
    add("--preset", help=f"settings to start from: {', '.join(preset_names())}, or a YAML file")
    add("--points", type=count, required=True, help="points per sample")
    add("--batch", type=count, help="samples at a time on all ranks; default that of the preset, or 1")
    add("--ranks", type=count, default=1, help="number of ranks")
    add("--ranks-share", default="points", choices=["points", "samples"], help="what the ranks share")
    for name, default in SIZES.items():
        add(f"--{name}", type=int, help=f"{name} of the model; default those of the preset, or {default}")
    add("--in-dim", type=int, default=3, help="features per point")
    add("--out-dim", type=int, default=1, help="fields per point")
    add("--precision", choices=["32", "bf16", "16"], help="of training; default that of the preset, or 32")
    add("--recompute", type=bool, help="recompute blocks in the backward pass; default as in the preset")
    add("--chunk", default="auto", choices=["auto", "whole"], help="points at a time in a prediction")
    add("--device", default="cpu", choices=["cpu", "cuda"], help="device of training and prediction")
    add("--memory", type=PositiveFloat, help="GB per rank; default what is free, divided among CPU ranks")
    add("--steps", type=count, help="steps of the whole run, to predict its duration")
    add("--cache", metavar="FILE", help="file that keeps measurements for later calls")
    args = parse(parser, words)

    from flare.inference.chunked import chunk_within
    from flare.train.planning import Planner
    from flare.train.workload import prediction_workload
    from flare.utils.environment import available_memory_mb

    training = _training_workload(args)
    given = args.memory * 1e9 / 2**20 if args.memory else None
    per_rank, whole = given or available_memory_mb(args.device, args.ranks), given or available_memory_mb(args.device)
    width = max(training.size("channels"), training.in_dim, training.out_dim)
    chunk = chunk_within(whole, width) if args.chunk == "auto" else None
    planner = Planner(Path(args.cache) if args.cache else None)
    share = f"{training.batch} x {training.points:,} points on each of {counted(args.ranks, 'rank')}"
    print(f"{share}, precision {training.precision}, {per_rank / 1024:.1f} GiB each")
    _show_training(planner, training, per_rank, args)
    _show_prediction(planner, prediction_workload(training, args.points, chunk=chunk), whole)


def _training_workload(args: Any) -> Workload:
    """Return the training step of one rank, from the options and otherwise from the preset."""
    from flare.train.workload import Workload

    record = read_yaml(preset_path(args.preset)) if args.preset else {"data": {"batch_size": 1}}
    config = build_config(record, args.preset or "settings")
    given = {name: getattr(args, name) for name in SIZES if getattr(args, name) is not None}
    batch = args.batch if args.batch is not None else math.ceil(config.data.batch_size / config.optim.accumulate)
    precision = args.precision or config.precision
    if precision == "16" and args.device == "cpu":
        print_status("precision 16 needs a GPU; planning for precision 32, which a CPU run uses instead")
        precision = "32"
    by_points = args.ranks_share == "points"
    return Workload(
        model=dict(config.model) | given,
        in_dim=args.in_dim,
        out_dim=args.out_dim,
        points=math.ceil(args.points / args.ranks) if by_points else args.points,
        batch=batch if by_points else math.ceil(batch / args.ranks),
        precision=precision,
        recompute=config.recompute if args.recompute is None else args.recompute,
        device=args.device,
        shared=args.ranks_share if args.ranks > 1 else "",
    )


def _show_training(planner: Planner, workload: Workload, memory_mb: float, args: Any) -> None:
    usage = planner.predict(workload)
    print(f"training    {_memory(usage.memory_mb, memory_mb)}; {_time(usage.seconds)} a step")
    if args.steps:
        print(f"            {args.steps:,} steps take {duration(usage.seconds * args.steps)}")
    ranks = {args.ranks_share: args.ranks}  # workloads are per rank; what is printed is the total of all ranks
    for what, most in planner.largest(workload, memory_mb).items():
        if most is not None:
            number = {
                "points": most.points * ranks.get("points", 1),
                "samples at a time": most.batch * ranks.get("samples", 1),
                "latents": most.size("latents"),
            }[what]
            print(f"at most     {number:,} {what} with {_time(planner.predict(most).seconds)} a step")


def _show_prediction(planner: Planner, workload: Workload, memory_mb: float) -> None:
    usage = planner.predict(workload)
    chunks = f" in chunks of {workload.chunk:,} points" if workload.is_streamed else ""
    print(f"prediction  {_memory(usage.memory_mb, memory_mb)}; {_time(usage.seconds)} a sample{chunks}")
    if workload.kind == "scratch":
        print(f"            with a scratch file of {workload.point_bytes * workload.points / 1e9:.2f} GB")


def _memory(need_mb: float, memory_mb: float) -> str:
    from flare.train.planning import fits

    return f"{need_mb / 1024:8.2f} GiB at the peak, {'fits' if fits(need_mb, memory_mb) else 'does NOT fit'}"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 60 else duration(seconds)
