"""`flare predict`: fields in physical units for a mesh, a file of points, or the samples of a dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import make_parser, parse, with_unit
from flare.cli.messages import option_names
from flare.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from flare.inference.surrogate import Surrogate

ABOUT = """Predict fields in physical units with a trained surrogate.
For classifiers of sequences, see docs/lra.md."""
OPTIONS = {"points": "--points", "spacing": "--spacing", "chunk": "--chunk"}
"""Argument of the library -> option."""
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
    parser.add_argument("--split", help="split of a dataset; default all samples")
    add_set(parser, "inputs that are not in the mesh")
    add_sampling(parser)
    parser.add_argument("--png", help="also draw the predicted fields of a mesh here (.png)")
    parser.add_argument("--html", help="also write a page about the prediction here")
    parser.add_argument(
        "--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'; the result is the same"
    )
    parser.add_argument("--scratch", help="folder for data that does not fit into memory; default that of --out")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="use the averaged weights, if the run has them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    args.chunk = points_at_a_time(args.chunk)
    args.scratch = scratch_folder(args.scratch, args.out)
    with option_names(OPTIONS):
        work = _choose(args)

    from flare.inference.surrogate import load

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    with option_names(OPTIONS):
        work(surrogate, args)
    return 0


def _choose(args: Any) -> Callable[[Surrogate, Any], None]:
    """Return the function for the kind of input; impossible requests are rejected before torch is loaded."""
    from flare.inference.array_folder import is_array_folder
    from flare.inference.mesh_inputs import check_sampling
    from flare.mesh.io import POINT_FORMATS, ROW_FORMATS, is_mesh_file
    from flare.utils.files import check_not_existing

    source, out = Path(args.input), Path(args.out)
    for path in filter(None, (out, args.png, args.html)):
        check_not_existing(path)
    if args.png and Path(args.png).suffix.lower() != ".png":
        raise ConfigError(f"--png {args.png}: the name must end in .png")
    if not source.exists():
        raise DataError(f"{source} does not exist")
    check_sampling(str(source), args.points, args.spacing)
    of_dataset, of_arrays = (source / "dataset.json").exists(), is_array_folder(source)
    if args.split and not of_dataset:
        raise ConfigError(f"--split {args.split} applies to datasets; {source} is one sample")
    if source.is_dir() and not (of_dataset or of_arrays or is_mesh_file(source) or source.suffix == ".zarr"):
        raise DataError(f"{source} is neither a dataset nor a folder of arrays such as points.npy")
    if not of_dataset and (out.suffix or is_mesh_file(source)):
        if of_arrays and out.suffix.lower() not in (*ROW_FORMATS, *POINT_FORMATS):
            ways = ", ".join((*ROW_FORMATS, *POINT_FORMATS))
            raise DataError(f"{out}: cannot write {out.suffix or 'a file without suffix'}; use {ways}")
        return _predict_mesh
    if args.set or args.png or args.html:
        raise ConfigError("--set, --png and --html apply to one mesh that is written to a file")
    return _predict_dataset if of_dataset else _predict_arrays


def _predict_mesh(surrogate: Surrogate, args: Any) -> None:
    from flare.inference.calibration.calibrate import calibrate_command, load_calibration
    from flare.inference.mesh_inputs import mesh_inputs, split_settings
    from flare.inference.prediction import check_output, describe, fields_without_rows, predict
    from flare.mesh.io import ROW_FORMATS
    from flare.utils.files import create_file
    from flare.utils.terminal import print_status

    calibration = load_calibration(args.run, surrogate)
    inputs = mesh_inputs(
        surrogate,
        args.input,
        **split_settings(surrogate.schema, settings(args.set)),
        points=args.points,
        spacing=args.spacing,
        training_spacing=calibration.spacing if calibration else None,
    )
    check_output(args.out, inputs)
    if inputs.mesh is not None and Path(args.out).suffix.lower() in ROW_FORMATS:
        for message in fields_without_rows(inputs.mesh, surrogate.schema):
            print_status(message)
    prediction = predict(surrogate, inputs, calibration=calibration, chunk=args.chunk, scratch=args.scratch)
    with create_file(args.out) as path:
        prediction.save(path)
    for line in describe(prediction, calibration):
        print(f"{args.out}: {line}")
    if calibration is None:
        how = calibrate_command(args.run, args.checkpoint, args.ema)
        print_status(f"no error bars and no OOD score: these weights are not calibrated ({how})")
    if args.png or args.html:
        from flare.report.page import save_png
        from flare.report.prediction import prediction_figure, write_prediction_page

        if args.png:
            with create_file(args.png) as path:
                save_png(prediction_figure(prediction), path)
        if args.html:
            with create_file(args.html) as path:
                write_prediction_page(path, prediction, describe(prediction, calibration))


def _predict_arrays(surrogate: Surrogate, args: Any) -> None:
    """Predict from disk to disk, for more points than fit into memory."""
    from flare.inference.array_folder import mapped_outputs
    from flare.inference.chunked import MANY, passes, predict_into
    from flare.inference.mesh_inputs import mesh_inputs
    from flare.utils.progress import progress

    schema, sample = surrogate.schema, mesh_inputs(surrogate, args.input).sample
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
    """Parse the value of `--chunk`."""
    if chunk in ("auto", "whole"):
        return chunk
    if not chunk.isdigit() or int(chunk) == 0:
        raise ConfigError(f"--chunk {chunk}: use a number of points, auto, or whole")
    return int(chunk)


def scratch_folder(scratch: str | None, out: str) -> Path:
    """Return the folder for temporary data; the default is not that of the system, which is often in memory."""
    from flare.utils.files import nearest_folder

    if scratch is None:
        return nearest_folder(out)
    if not os.access(scratch, os.W_OK) or not Path(scratch).is_dir():
        raise ConfigError(f"--scratch {scratch} is not a writable folder")
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


def add_set(parser: ArgumentParser, help: str) -> None:
    """Add the option `--set NAME=VALUE ...`, which may be repeated."""
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=help)


def add_sampling(parser: ArgumentParser) -> None:
    """Add the options that place points on a bare surface, for verbs that read a mesh file."""
    parser.add_argument(
        "--points",
        default="auto",
        choices=["auto", "vertices", "surface", "voxels"],
        help="where to place points on a bare surface such as STL; auto: as in the training data",
    )
    parser.add_argument("--spacing", type=float, help="distance of these points; default that of the training points")


def settings(words: Sequence[str]) -> dict[str, list[float]]:
    """Return the values of `--set` by name."""
    found: dict[str, list[float]] = {}
    for name, values in map(_setting, words):
        if name in found:
            raise ConfigError(f"--set {name} is given twice; give every name once")
        found[name] = values
    return found


def _setting(text: str) -> tuple[str, list[float]]:
    """Return a name and its numbers, from `speed=30` or `force=0,0,-9.81`."""
    name, _, values = text.partition("=")
    try:
        return name, [float(value) for value in values.split(",")]
    except ValueError:
        raise ConfigError(f"--set {text}: write NAME=NUMBER, such as speed=30, or force=0,0,-9.81") from None
