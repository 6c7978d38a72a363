"""Options and inputs that the verbs of a trained surrogate share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import count
from flare.utils.errors import ConfigError
from flare.utils.terminal import print_status

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from flare.data.sample import Sample
    from flare.inference.calibration.calibrate import Calibration
    from flare.inference.mesh_inputs import ModelInputs
    from flare.inference.surrogate import Surrogate


def add_weights(parser: ArgumentParser, *, ema: bool = True, device: bool = True) -> None:
    """Add the run folder and the options that choose its weights and their device."""
    parser.add_argument("run", help="run folder")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="weights to use")
    if ema:
        parser.add_argument("--ema", action="store_true", help="use the averaged weights, if the run has them")
    if device:
        parser.add_argument("--device", default="auto", help="device such as cpu; auto is a GPU if there is one")


def weights(args: Any) -> dict[str, Any]:
    """Return the values of the options of `add_weights`, as keyword arguments of `load`."""
    return {name: args[name] for name in ("checkpoint", "ema", "device") if name in args}


def add_inputs(parser: ArgumentParser) -> None:
    """Add the input file, and the options for what it lacks."""
    parser.add_argument("input", help="a mesh, or points and input fields (.npz, .csv, folder of .npy)")
    add_set(parser)
    help_text = "where to place points on a bare surface such as STL; auto: as in the training data"
    places = ["auto", "vertices", "surface", "voxels"]
    parser.add_argument("--place-points", dest="points", default="auto", choices=places, help=help_text)
    parser.add_argument("--spacing", type=float, help="distance of these points; default that of the training points")


def add_set(parser: ArgumentParser) -> None:
    """Add the option `--set NAME=VALUE ...`, which may be repeated."""
    how: dict[str, Any] = {"nargs": "+", "action": "extend", "default": [], "metavar": "NAME=VALUE"}
    parser.add_argument("--set", help="inputs that are not in the file, the same at every point", **how)


def add_chunks(parser: ArgumentParser) -> None:
    """Add the options for samples of many points."""
    parser.add_argument("--chunk", type=points_per_chunk, default="auto", help="points at a time: N, auto or whole")
    parser.add_argument("--scratch", help="folder for data that does not fit into memory; default that of --out")


def points_per_chunk(text: str) -> int | str:
    """Parse a number of points, `auto` or `whole`."""
    return text if text in ("auto", "whole") else count(text)


def chunks(args: Any) -> dict[str, Any]:
    """Return the values of the options of `add_chunks`, as keyword arguments of a prediction."""
    from flare.utils.files import nearest_folder

    scratch = args.scratch
    if scratch and not (Path(scratch).is_dir() and os.access(scratch, os.W_OK)):
        raise ConfigError(f"--scratch {scratch} is not a writable folder")
    # Not the folder of the system, which is often in memory.
    return {"chunk": args.chunk, "scratch": Path(scratch or nearest_folder(args.out))}


def read_inputs(surrogate: Surrogate, args: Any, calibration: Calibration | None = None) -> ModelInputs:
    """Read the inputs of a model from the file and options of `add_inputs`."""
    from flare.inference.mesh_inputs import mesh_inputs, split_settings

    return mesh_inputs(
        surrogate,
        args.input,
        **split_settings(surrogate.schema, settings(args.set)),
        points=args.points,
        spacing=args.spacing,
        training_spacing=calibration.spacing if calibration else None,
    )


def print_ood_warnings(
    surrogate: Surrogate, args: Any, sample: Sample, calibration: Calibration | None, **how: Any
) -> None:
    """Print a warning if a sample differs from the training data, or that the weights are not calibrated."""
    from flare.inference.calibration.calibrate import calibrate_command

    if calibration is None:
        command = calibrate_command(args.run, args.checkpoint, args.get("ema", False))
        print_status(f"no OOD score: these weights are not calibrated ({command})")
        return
    for warning in calibration.warnings(calibration.assess(surrogate, sample, **how)):
        print_status(f"{args.input}: {warning}")


def settings(words: Sequence[str]) -> dict[str, list[float]]:
    """Return the values of `--set` by name, from words such as `speed=30` and `force=0,0,-9.81`."""
    found: dict[str, list[float]] = {}
    for word in words:
        name, _, values = word.partition("=")
        if name in found:
            raise ConfigError(f"--set {name} is given twice; give every name once")
        try:
            found[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise ConfigError(f"--set {word}: write NAME=NUMBER, such as speed=30, or force=0,0,-9.81") from None
    return found
