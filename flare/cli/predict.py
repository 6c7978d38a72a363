"""`flare predict`: predict fields in physical units for a mesh, a file of points, or a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import make_parser, new_path, parse, with_unit
from flare.cli.surrogates import add_chunks, add_inputs, add_weights, chunks, read_inputs, weights
from flare.utils.errors import ConfigError, DataError

if TYPE_CHECKING:
    from flare.inference.surrogate import Surrogate

ABOUT = """Predict fields in physical units with a trained surrogate.
For classifiers of sequences, see docs/applications/sequences.md."""
EPILOG = """examples:
  flare predict runs/wings part.vtu --out part_pred.vtu          the same mesh with the fields added
  flare predict runs/wings part.stl --set speed=30 --out part_pred.vtp --png part.png --html part.html
  flare predict runs/darcy points.csv --out pressure.csv
  flare predict runs/darcy points.npz --out pressure.npz
  flare predict runs/darcy data/darcy --split test --out data/darcy-predicted
  flare predict runs/car points/ --out fields/          folders of .npy files, one per field: any number of points"""
GROUPS = {
    "input and output": "run input out set split png html",
    "points of a bare surface": "points spacing",
    "model": "checkpoint ema",
    "machine": "device chunk scratch",
}


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("predict", ABOUT, EPILOG, GROUPS)
    add_weights(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--out", type=new_path, required=True, help="file (.vtu, .npz, ...) or folder to write")
    parser.add_argument("--split", help="split of a dataset, if the input is one; default all samples")
    parser.add_argument("--png", type=new_path, help="picture to write of the predicted fields of a mesh (.png)")
    parser.add_argument("--html", type=new_path, help="page to write about the prediction (.html)")
    add_chunks(parser)
    args = parse(parser, words)

    from flare.inference.array_folder import is_array_folder

    work, is_dataset = _predict_mesh, (Path(args.input) / "dataset.json").exists()
    if args.split and not is_dataset:
        raise ConfigError(f"--split {args.split} applies to datasets; {args.input} is one sample")
    if is_dataset or (is_array_folder(args.input) and not Path(args.out).suffix):
        work = _predict_dataset if is_dataset else _predict_arrays
        if args.set or args.png or args.html or args.spacing or args.points != "auto":
            raise ConfigError("--set, --place-points, --spacing, --png and --html apply to one mesh, written to a file")
    how = chunks(args)

    from flare.inference.surrogate import load

    work(load(args.run, **weights(args)), args, how)


def _predict_mesh(surrogate: Surrogate, args: Any, how: dict[str, Any]) -> None:
    from flare.inference.calibration.calibrate import calibrate_command, load_calibration
    from flare.inference.prediction import check_output, describe, fields_without_rows, predict
    from flare.mesh.io import ROW_FORMATS
    from flare.utils.files import create_file
    from flare.utils.terminal import print_status

    calibration = load_calibration(args.run, surrogate)
    inputs = read_inputs(surrogate, args, calibration)
    check_output(args.out, inputs)
    if inputs.mesh is not None and Path(args.out).suffix.lower() in ROW_FORMATS:
        for message in fields_without_rows(inputs.mesh, surrogate.schema):
            print_status(message)
    prediction = predict(surrogate, inputs, calibration=calibration, **how)
    with create_file(args.out) as path:
        prediction.save(path)
    lines = describe(prediction, calibration)
    for line in lines:
        print(f"{args.out}: {line}")
    if calibration is None:
        command = calibrate_command(args.run, args.checkpoint, args.ema)
        print_status(f"no error bars and no OOD score: these weights are not calibrated ({command})")
    if args.png or args.html:
        from flare.report.page import save_png
        from flare.report.prediction import prediction_figure, write_prediction_page

        if args.png:
            with create_file(args.png) as path:
                save_png(prediction_figure(prediction), path)
        if args.html:
            with create_file(args.html) as path:
                write_prediction_page(path, prediction, lines)


def _predict_arrays(surrogate: Surrogate, args: Any, how: dict[str, Any]) -> None:
    """Predict from disk to disk, for more points than fit into memory."""
    from flare.inference.array_folder import mapped_outputs
    from flare.inference.chunked import predict_into, prediction_progress

    schema, sample = surrogate.schema, read_inputs(surrogate, args).sample
    points = len(sample.values[schema.points])
    with mapped_outputs(args.out, schema, points) as outputs, prediction_progress(surrogate, points) as update:
        predict_into(surrogate, sample, outputs, done=update, **how)
        for name, values in outputs.items():
            span = with_unit(f"{values.min():.6g} to {values.max():.6g}", surrogate.units[name])
            print(f"{args.out}: {name}, {len(values):,} points, {span}")


def _predict_dataset(surrogate: Surrogate, args: Any, how: dict[str, Any]) -> None:
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
                fields = surrogate.predict_sample(sample, **how)
            except DataError as error:
                writer.close()
                raise DataError(f"{args.input}, sample {index}: {error}") from None
            predicted = {name: values.reshape(len(values), -1) for name, values in fields.items()}
            writer.append(Sample({**sample.values, **predicted}, sample.cells))
            update()
    writer.finish({args.split or "all": [(0, len(indices))]})
    print(f"{args.out}: {counted(len(indices), 'sample')} predicted")
