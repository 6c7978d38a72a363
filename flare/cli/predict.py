"""`flare predict`: fields in physical units for a file of points, or for every sample of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import with_unit

if TYPE_CHECKING:
    from flare.surrogate import Surrogate

EPILOG = """examples:
  flare predict runs/darcy points.csv --out pressure.csv
  flare predict runs/darcy points.npz --out pressure.npz
  flare predict runs/darcy data/darcy --split test --out data/darcy-predicted"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("predict", "Predict fields in physical units with a trained surrogate.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="points and input fields (.npz, .csv), or a dataset folder")
    parser.add_argument("--out", required=True, help="file (.npz, .csv) or dataset folder to write; must not exist")
    parser.add_argument("--split", help="of a dataset: only these samples; default all")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)

    from flare.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    if Path(args.input).is_dir():
        _predict_dataset(surrogate, args)
    else:
        _predict_file(surrogate, args)
    return 0


def _predict_file(surrogate: Surrogate, args: Any) -> None:
    from flare.data.sample import Sample
    from flare.data.tables import read_inputs, write_outputs
    from flare.files import refuse_existing

    refuse_existing(args.out)
    inputs = read_inputs(args.input, surrogate.schema)
    outputs = surrogate.predict_sample(Sample(inputs))
    write_outputs(args.out, surrogate.schema, inputs, outputs)
    for name, values in outputs.items():
        span = with_unit(f"{values.min():.6g} to {values.max():.6g}", surrogate.units[name])
        print(f"{args.out}: {name}, {len(values):,} points, {span}")


def _predict_dataset(surrogate: Surrogate, args: Any) -> None:
    from flare.data.sample import Sample
    from flare.data.store import Dataset
    from flare.data.writer import DatasetWriter
    from flare.terminal import progress

    dataset = Dataset(args.input)
    surrogate.check_fields(dataset.schema, args.input)
    indices = dataset.split(args.split) if args.split else range(len(dataset))
    provenance = {"kind": "prediction", "run": args.run, "checkpoint": args.checkpoint, "ema": args.ema}
    provenance |= {"inputs": dataset.fingerprint, "samples": [int(i) for i in indices]}
    writer = DatasetWriter(args.out, dataset.schema, provenance)
    with progress("predicting", len(indices), done=len(writer)) as update:
        for index in indices[len(writer) :]:
            sample = dataset[int(index)]
            predicted = {name: v.reshape(len(v), -1) for name, v in surrogate.predict_sample(sample).items()}
            writer.append(Sample({**sample.values, **predicted}, sample.cells))
            update()
    writer.finish({args.split or "all": [(0, len(indices))]})
    print(f"{args.out}: {len(indices)} samples predicted")
