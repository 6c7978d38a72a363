"""`flare export`: write a trained surrogate as one file for programs without flare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flare.cli import make_parser, parse, with_unit

EPILOG = """examples:
  flare export runs/demo --format onnx                   runs/demo/demo.onnx
  flare export runs/demo --format torch --out stress.pt2
  flare export runs/demo --format onnx --mask true --out batches.onnx"""


def run(words: Sequence[str]) -> int:
    """Run the command."""
    parser = make_parser("export", "Write a trained surrogate as torch.export or ONNX, with its normalizers.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("--format", required=True, choices=["torch", "onnx"], help="torch.export (.pt2) or ONNX")
    parser.add_argument("--out", help="file to write; must not exist. Default: beside the run's checkpoints")
    parser.add_argument("--mask", type=bool, default=False, help="add a second input, the mask of real points")
    parser.add_argument("--trials", type=int, default=4, help="random sizes to compare, beside fixed ones")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, if the run has them")
    args = parse(parser, words)

    from flare.inference.export import SUFFIX, TOLERANCE, export
    from flare.inference.surrogate import load

    out = args.out or Path(args.run) / f"{Path(args.run).resolve().name}{SUFFIX[args.format]}"
    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema)
    done = export(surrogate, out, format=args.format, mask=args.mask, trials=args.trials)
    most = max(points for _, points in done.sizes)
    print(f"{done.path}: {done.path.stat().st_size / 2**20:.1f} MiB, physical values in and out")
    print(f"compared with the model at {len(done.sizes)} sizes of up to {most:,} points:")
    schema = surrogate.schema
    units = [schema.fields[name].unit for name in schema.named("target") for _ in schema.fields[name].components]
    for (name, difference), step, unit in zip(done.differences.items(), done.steps.values(), units, strict=True):
        apart = with_unit(f"differs by at most {difference:.1e}", unit) if difference else "is equal to the last digit"
        print(f"  {name}: {apart}; {with_unit(f'float32 has steps of {step:.1e}', unit)} there")
    if done.error > TOLERANCE:
        print(f"  largest difference {done.error:.0e} of a field's range; float32 and float64 of the model differ by")
        print(f"  {done.rounding:.0e}, so a smaller difference is not possible")
    return 0
