"""`flare export`: write a trained surrogate as one file for programs without flare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flare.cli import make_parser, parse, with_unit
from flare.cli.surrogates import add_weights, weights
from flare.utils.errors import ConfigError

EPILOG = """examples:
  flare export runs/demo --format onnx                   runs/demo/demo.onnx
  flare export runs/demo --format torch --out stress.pt2
  flare export runs/demo --format onnx --mask --out batches.onnx"""
SUFFIX = {"torch": ".pt2", "onnx": ".onnx"}


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("export", "Write a trained surrogate as torch.export or ONNX, with its normalizers.", EPILOG)
    add_weights(parser, device=False)
    parser.add_argument("--format", required=True, choices=[*SUFFIX], help="torch.export (.pt2) or ONNX")
    parser.add_argument("-o", "--out", help="file to write; must not exist; default RUN/NAME.pt2 or .onnx")
    parser.add_argument("--mask", action="store_true", help="add a second input: the mask of real points")
    parser.add_argument("--trials", type=int, default=4, help="random sizes at which file and model are compared")
    args = parse(parser, words)

    from flare.inference.export import export
    from flare.inference.surrogate import load

    out = args.out or f"{args.run}/{Path(args.run).resolve().name}{SUFFIX[args.format]}"
    if not out.endswith(SUFFIX[args.format]):
        raise ConfigError(f"--out {out}: a file of --format {args.format} ends in {SUFFIX[args.format]}")
    surrogate = load(args.run, **weights(args))
    done = export(surrogate, out, mask=args.mask, trials=args.trials)
    print(f"{done.path}: {done.path.stat().st_size / 2**20:.1f} MiB, physical values in and out")
    print(f"compared with the model at {len(done.sizes)} sizes of up to {max(n for _, n in done.sizes):,} points:")
    schema = surrogate.schema
    units = [schema.fields[name].unit for name in schema.named("target") for _ in schema.fields[name].components]
    for (name, difference), unit in zip(done.differences.items(), units, strict=True):
        print(f"  {name}: {with_unit(f'differs by at most {difference:.1e}', unit)}")
