"""`flare encode`: a sample of any size, as the latents of a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.predict import points_at_a_time

EPILOG = """examples:
  flare encode runs/demo part.csv --out part.code
  flare probe runs/demo part.code --line 0,0:1,1 --out diagonal.csv"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("encode", "Encode a sample once, to ask for its fields anywhere with `flare probe`.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="points and input fields (.npz, .csv, folder of .npy)")
    parser.add_argument("--out", required=True, help="file to write (safetensors); must not exist")
    parser.add_argument("--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)

    from flare.data.tables import read_inputs
    from flare.files import refuse_existing
    from flare.surrogate import load

    refuse_existing(args.out)
    surrogate = load(args.run, checkpoint=args.checkpoint, device=args.device)
    inputs = read_inputs(args.input, surrogate.schema)
    points = inputs.pop(surrogate.schema.points)
    code = surrogate.encode(points, chunk=points_at_a_time(args.chunk), **inputs)
    code.save(args.out)
    print(f"{args.out}: {code.points:,} points as {len(code.latents)} blocks of latents, {code.nbytes:,} bytes")
    return 0
