"""`flare predict`: fields in physical units for a file of points, or for every sample of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import with_unit
from flare.errors import ConfigError

if TYPE_CHECKING:
    from flare.surrogate import Surrogate

MANY = 1_000_000
"""Points for which a prediction takes long enough to show how far it is."""
EPILOG = """examples:
  flare predict runs/darcy points.csv --out pressure.csv
  flare predict runs/darcy points.npz --out pressure.npz
  flare predict runs/darcy data/darcy --split test --out data/darcy-predicted
  flare predict runs/car points/ --out fields/          folders of .npy files, one per field: any number of points"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("predict", "Predict fields in physical units with a trained surrogate.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="points and input fields (.npz, .csv, folder of .npy), or a dataset folder")
    parser.add_argument("--out", required=True, help="file (.npz, .csv) or folder to write; must not exist")
    parser.add_argument("--split", help="of a dataset: only these samples; default all")
    parser.add_argument(
        "--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'; the answer is the same"
    )
    parser.add_argument("--scratch", help="folder for what does not fit into memory; default the system's")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    args.chunk = points_at_a_time(args.chunk)

    from flare.data.tables import is_folder_of_arrays
    from flare.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    if Path(args.input).is_dir() and not is_folder_of_arrays(args.input):
        _predict_dataset(surrogate, args)
    else:
        _predict_points(surrogate, args)
    return 0


def _predict_points(surrogate: Surrogate, args: Any) -> None:
    from flare.data.tables import mapped_outputs, read_inputs, write_outputs
    from flare.files import refuse_existing
    from flare.inference import as_fields, empty_outputs, predict_into
    from flare.terminal import progress

    refuse_existing(args.out)
    schema = surrogate.schema
    inputs = read_inputs(args.input, schema)
    points = inputs.pop(schema.points)
    sample = surrogate.sample(points, inputs)
    count, passes = len(points), len(getattr(surrogate.network, "blocks", [0]))
    on_disk = not Path(args.out).suffix
    with (
        mapped_outputs(args.out, schema, count) if on_disk else nullcontext(empty_outputs(surrogate, count)) as outputs,
        progress("predicting", count * passes, unit="points x blocks", quiet=count < MANY) as update,
    ):
        predict_into(surrogate, sample, outputs, chunk=args.chunk, scratch=args.scratch, done=update)
        if not on_disk:
            write_outputs(args.out, schema, sample.values, as_fields(outputs))
        for name, values in outputs.items():
            span = with_unit(f"{values.min():.6g} to {values.max():.6g}", surrogate.units[name])
            print(f"{args.out}: {name}, {len(values):,} points, {span}")


def points_at_a_time(chunk: str) -> int | str:
    """`--chunk` as a number, where it is one."""
    if chunk in ("auto", "whole"):
        return chunk
    if not chunk.isdigit() or int(chunk) == 0:
        raise ConfigError(f"--chunk {chunk}: give a number of points, auto, or whole")
    return int(chunk)


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
            fields = surrogate.predict_sample(sample, chunk=args.chunk)
            predicted = {name: values.reshape(len(values), -1) for name, values in fields.items()}
            writer.append(Sample({**sample.values, **predicted}, sample.cells))
            update()
    writer.finish({args.split or "all": [(0, len(indices))]})
    print(f"{args.out}: {len(indices)} samples predicted")
