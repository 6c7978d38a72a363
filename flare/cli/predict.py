"""`flare predict`: fields in physical units for a mesh, a file of points, or every sample of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import add_sampling, add_set, make_parser, settings
from flare.cli.words import with_unit
from flare.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from flare.surrogate import Surrogate

ABOUT = """Predict fields in physical units with a trained surrogate.
Fields only: a classifier of sequences is asked from Python, see docs/lra.md."""
EPILOG = """examples:
  flare predict runs/wings part.vtu --out part_pred.vtu          the same mesh with the fields added
  flare predict runs/wings part.stl --set speed=30 --out part_pred.vtp --png part.png --html part.html
  flare predict runs/darcy points.csv --out pressure.csv
  flare predict runs/darcy points.npz --out pressure.npz
  flare predict runs/darcy data/darcy --split test --out data/darcy-predicted
  flare predict runs/car points/ --out fields/          folders of .npy files, one per field: any number of points"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("predict", ABOUT, EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="mesh, points and input fields (.npz, .csv, folder of .npy), or a dataset folder")
    parser.add_argument("--out", required=True, help="file (.vtu, .vtp, .npz, .csv, ...) or folder; must not exist")
    parser.add_argument("--split", help="of a dataset: only these samples; default all")
    add_set(parser, "inputs that are not in the mesh")
    add_sampling(parser)
    parser.add_argument("--png", help="also draw the predicted fields of a mesh here (.png)")
    parser.add_argument("--html", help="also write a page about the prediction here")
    parser.add_argument(
        "--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'; the answer is the same"
    )
    parser.add_argument("--scratch", help="folder for what does not fit into memory; default that of --out")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    args.chunk = points_at_a_time(args.chunk)
    args.scratch = scratch_folder(args.scratch, args.out)
    work = _choose(args)

    from flare.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    work(surrogate, args)
    return 0


def _choose(args: Any) -> Callable[[Surrogate, Any], None]:
    """What is to be done. What cannot be is said here, before torch is loaded."""
    from flare.data.tables import FORMATS, is_folder_of_arrays, refuse_format
    from flare.mesh.file import OF_POINTS, is_mesh
    from flare.part import refuse_sampling
    from flare.utils.files import refuse_existing

    source, out = Path(args.input), Path(args.out)
    for path in filter(None, (out, args.png, args.html)):
        refuse_existing(path)
    if args.png and Path(args.png).suffix.lower() != ".png":
        raise ConfigError(f"--png {args.png}: the picture is a PNG; let its name end in .png")
    if not source.exists():
        raise DataError(f"{source} does not exist")
    refuse_sampling(source, args.points, args.spacing)
    of_dataset, of_arrays = (source / "dataset.json").exists(), is_folder_of_arrays(source)
    if args.split and not of_dataset:
        raise ConfigError(f"--split {args.split} is for datasets; {source} is one sample")
    if source.is_dir() and not (of_dataset or of_arrays or is_mesh(source) or source.suffix == ".zarr"):
        raise DataError(f"{source} has neither the dataset.json of a dataset nor arrays such as points.npy")
    if not of_dataset and (out.suffix or is_mesh(source)):
        if of_arrays or source.suffix.lower() in FORMATS:
            refuse_format(out, more=OF_POINTS)
        return _predict_part
    if args.set or args.png or args.html:
        raise ConfigError("--set, --png and --html are for one part that is written to a file")
    return _predict_dataset if of_dataset else _predict_arrays


def _predict_part(surrogate: Surrogate, args: Any) -> None:
    from flare.prediction import describe, predict_file
    from flare.trust.calibration import how_to_calibrate, load_calibration
    from flare.utils.files import making
    from flare.utils.terminal import say

    calibration = load_calibration(args.run, surrogate)
    prediction = predict_file(
        surrogate,
        args.input,
        given=settings(args.set),
        calibration=calibration,
        points=args.points,
        spacing=args.spacing,
        out=args.out,
        chunk=args.chunk,
        scratch=args.scratch,
    )
    with making(args.out) as path:
        prediction.save(path)
    for line in describe(prediction, calibration):
        print(f"{args.out}: {line}")
    if calibration is None:
        how = how_to_calibrate(args.run, args.checkpoint, args.ema)
        say(f"no error bars, no warning of strange parts: these weights are not calibrated ({how})")
    if args.png or args.html:
        from flare.report.page import save_png
        from flare.report.prediction import prediction_figure, write_prediction_page

        if args.png:
            with making(args.png) as path:
                save_png(prediction_figure(prediction), path)
        if args.html:
            with making(args.html) as path:
                write_prediction_page(path, prediction, describe(prediction, calibration))


def _predict_arrays(surrogate: Surrogate, args: Any) -> None:
    """From disk to disk: more points than fit into memory."""
    from flare.data.tables import mapped_outputs
    from flare.inference import MANY, passes, predict_into
    from flare.part import part_of
    from flare.utils.progress import progress

    schema, sample = surrogate.schema, part_of(surrogate, args.input).sample
    count = len(sample.values[schema.points])
    with (
        mapped_outputs(args.out, schema, count) as outputs,
        progress("predicting", count * passes(surrogate), unit="points x blocks", quiet=count < MANY) as update,
    ):
        predict_into(surrogate, sample, outputs, chunk=args.chunk, scratch=args.scratch, done=update)
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


def scratch_folder(scratch: str | None, out: str) -> Path:
    """Where features wait that are too many for the memory: not in the system's folder, which is often memory, too."""
    from flare.utils.files import nearest_folder

    if scratch is None:
        return nearest_folder(out)
    if not os.access(scratch, os.W_OK) or not Path(scratch).is_dir():
        raise ConfigError(f"--scratch {scratch} is no folder to write into; make it first")
    return Path(scratch)


def _predict_dataset(surrogate: Surrogate, args: Any) -> None:
    from flare.data.dataset import Dataset
    from flare.data.sample import Sample
    from flare.data.writer import DatasetWriter
    from flare.utils.progress import progress
    from flare.utils.text import counted

    dataset = Dataset(args.input)
    surrogate.check_fields(dataset.schema, args.input)
    indices = dataset.split(args.split) if args.split else range(len(dataset))
    provenance = {"kind": "prediction", "run": args.run, "checkpoint": args.checkpoint, "ema": args.ema}
    provenance |= {"inputs": dataset.fingerprint, "samples": [int(i) for i in indices]}
    writer = DatasetWriter(args.out, dataset.schema, provenance)
    with progress("predicting", len(indices), done=len(writer)) as update:
        for index in indices[len(writer) :]:
            sample = dataset[int(index)]
            try:
                fields = surrogate.predict_sample(sample, chunk=args.chunk, scratch=args.scratch)
            except DataError as error:
                writer.close()
                raise DataError(f"{args.input}, sample {index}: {error}") from None
            predicted = {name: values.reshape(len(values), -1) for name, values in fields.items()}
            writer.append(Sample({**sample.values, **predicted}, sample.cells))
            update()
    writer.finish({args.split or "all": [(0, len(indices))]})
    print(f"{args.out}: {counted(len(indices), 'sample')} predicted")
