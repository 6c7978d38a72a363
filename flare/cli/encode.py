"""`flare encode`: encode a sample of any size with a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import make_parser, new_path, parse
from flare.cli.surrogates import add_chunks, add_inputs, add_weights, chunks, print_ood_warnings, read_inputs, weights
from flare.utils.files import create_file

EPILOG = """examples:
  flare encode runs/demo part.csv --out part.code
  flare encode runs/wings part.vtu --set speed=30 --out part.code
  flare encode runs/wings part.stl --set speed=30 --place-points surface --out part.code
  flare probe runs/demo part.code --line 0,0:1,1 --out diagonal.csv"""


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("encode", "Encode a sample once, to evaluate its fields anywhere with `flare probe`.", EPILOG)
    add_weights(parser)
    add_inputs(parser)
    parser.add_argument("-o", "--out", type=new_path, required=True, help="file to write (safetensors)")
    add_chunks(parser)
    args = parse(parser, words)
    how = chunks(args)

    from flare.inference.calibration.calibrate import load_calibration
    from flare.inference.chunked import prediction_progress
    from flare.inference.encoding import encode
    from flare.inference.surrogate import load

    surrogate = load(args.run, **weights(args))
    calibration = load_calibration(args.run, surrogate)
    sample = read_inputs(surrogate, args, calibration).sample
    # The last block is not needed for the encoding.
    with prediction_progress(surrogate, len(sample.values[surrogate.schema.points]), skipped=1) as update:
        encoding = encode(surrogate, sample, done=update, **how)
    with create_file(args.out) as path:
        encoding.save(path)
    size = f"{len(encoding.latents)} blocks of latents, {encoding.nbytes:,} bytes"
    print(f"{args.out}: {encoding.points:,} points as {size}")
    print_ood_warnings(surrogate, args, sample, calibration, latents=encoding.latents)
