"""`flare encode`: the encoding of a sample of any size by a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, parse
from flare.cli.messages import option_names
from flare.cli.predict import OPTIONS, add_sampling, add_set, points_at_a_time, scratch_folder, settings
from flare.utils.files import check_not_existing, create_file

EPILOG = """examples:
  flare encode runs/demo part.csv --out part.code
  flare encode runs/wings part.vtu --set speed=30 --out part.code
  flare encode runs/wings part.stl --set speed=30 --points surface --out part.code
  flare probe runs/demo part.code --line 0,0:1,1 --out diagonal.csv"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("encode", "Encode a sample once, to evaluate its fields anywhere with `flare probe`.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="a mesh, or points and input fields (.npz, .csv, folder of .npy)")
    parser.add_argument("--out", required=True, help="file to write (safetensors); must not exist")
    add_set(parser, "inputs that are not in the file")
    add_sampling(parser)
    parser.add_argument("--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'")
    parser.add_argument("--scratch", help="folder for data that does not fit into memory; default that of --out")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="use the averaged weights, if the run has them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    chunk, scratch = points_at_a_time(args.chunk), scratch_folder(args.scratch, args.out)
    check_not_existing(args.out)

    from flare.inference.calibration.calibrate import load_calibration
    from flare.inference.chunked import MANY, passes
    from flare.inference.encoding import encode
    from flare.inference.mesh_inputs import mesh_inputs, split_settings
    from flare.inference.surrogate import load
    from flare.utils.progress import progress
    from flare.utils.terminal import print_status

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    calibration = load_calibration(args.run, surrogate)
    with option_names(OPTIONS):
        sample = mesh_inputs(
            surrogate,
            args.input,
            **split_settings(surrogate.schema, settings(args.set)),
            points=args.points,
            spacing=args.spacing,
            training_spacing=calibration.spacing if calibration else None,
        ).sample
    count = len(sample.values[surrogate.schema.points])
    work = count * (passes(surrogate) - 1)  # the last block is not needed for the encoding
    with progress("encoding", work, unit="points x blocks", quiet=count < MANY) as update:
        encoding = encode(surrogate, sample, chunk=chunk, scratch=scratch, done=update)
    with create_file(args.out) as path:
        encoding.save(path)
    print(
        f"{args.out}: {encoding.points:,} points as {len(encoding.latents)} blocks of latents, {encoding.nbytes:,} "
        f"bytes"
    )
    if calibration is not None:
        for warning in calibration.warnings(calibration.assess(surrogate, sample, latents=encoding.latents)):
            print_status(f"{args.input}: {warning}")
    return 0
