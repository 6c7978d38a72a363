"""`flare encode`: a sample of any size, as the latents of a trained model."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import add_sampling, add_set, make_parser, settings
from flare.cli.predict import points_at_a_time, scratch_folder
from flare.utils.files import making, refuse_existing

EPILOG = """examples:
  flare encode runs/demo part.csv --out part.code
  flare encode runs/wings part.vtu --set speed=30 --out part.code
  flare encode runs/wings part.stl --set speed=30 --points surface --out part.code
  flare probe runs/demo part.code --line 0,0:1,1 --out diagonal.csv"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("encode", "Encode a sample once, to ask for its fields anywhere with `flare probe`.", EPILOG)
    parser.add_argument("run", help="run folder")
    parser.add_argument("input", help="a mesh, or points and input fields (.npz, .csv, folder of .npy)")
    parser.add_argument("--out", required=True, help="file to write (safetensors); must not exist")
    add_set(parser, "inputs that are not in the file")
    add_sampling(parser)
    parser.add_argument("--chunk", default="auto", help="points at a time: a number, 'auto', or 'whole'")
    parser.add_argument("--scratch", help="folder for what does not fit into memory; default that of --out")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--ema", action="store_true", help="the averaged weights, where the run kept them")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    args = parse(parser, words)
    chunk, scratch = points_at_a_time(args.chunk), scratch_folder(args.scratch, args.out)
    refuse_existing(args.out)

    from flare.code import encode
    from flare.inference import MANY, passes
    from flare.part import part_of
    from flare.surrogate import load
    from flare.trust.calibration import load_calibration
    from flare.utils.progress import progress
    from flare.utils.terminal import say

    surrogate = load(args.run, checkpoint=args.checkpoint, ema=args.ema, device=args.device)
    calibration = load_calibration(args.run, surrogate)
    sample = part_of(
        surrogate,
        args.input,
        given=settings(args.set),
        points=args.points,
        spacing=args.spacing,
        trained=calibration.spacing if calibration else None,
    ).sample
    count = len(sample.values[surrogate.schema.points])
    work = count * (passes(surrogate) - 1)  # nobody needs what the last block would make of the points
    with progress("encoding", work, unit="points x blocks", quiet=count < MANY) as update:
        code = encode(surrogate, sample, chunk=chunk, scratch=scratch, done=update)
    with making(args.out) as path:
        code.save(path)
    print(f"{args.out}: {code.points:,} points as {len(code.latents)} blocks of latents, {code.nbytes:,} bytes")
    if calibration is not None:
        for warning in calibration.warnings(calibration.judge(surrogate, sample, latents=code.latents)):
            say(f"{args.input}: {warning}")
    return 0
