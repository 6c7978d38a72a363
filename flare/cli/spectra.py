"""`flare spectra`: eigenvalues and eigenvectors of the mixing in a trained FLARE."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from flare.cli import parse
from flare.cli.options import make_parser
from flare.utils.errors import ConfigError, DataError


def run(words: Sequence[str]) -> int:
    parser = make_parser("spectra", "Eigen-analysis of every FLARE layer of a run, averaged over samples.")
    parser.add_argument("run", help="run folder")
    parser.add_argument("--data", help="another dataset of the same fields; default the one of the run")
    parser.add_argument("--split", help="default the run's test split")
    parser.add_argument("--samples", type=int, default=20, help="how many samples of it to average over")
    parser.add_argument("--vectors", type=int, default=6, help="leading eigenvectors to keep, of the first sample")
    parser.add_argument("--checkpoint", default="last", choices=["last", "best"], help="which weights")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    parser.add_argument("--out", help="folder to write; default <run>/spectra")
    args = parse(parser, words)
    if args.samples < 1 or args.vectors < 1:
        raise ConfigError(f"--samples {args.samples} --vectors {args.vectors}: both must be at least 1")

    import numpy as np

    from flare.data.dataset import Dataset
    from flare.report.page import save_png
    from flare.report.run import leading_eigenvectors
    from flare.report.spectra import spectra_figure
    from flare.spectra import surrogate_eigenvectors, surrogate_spectra
    from flare.surrogate import load
    from flare.train.run_folder import RunFolder
    from flare.utils.files import making, refuse_existing, replacing
    from flare.utils.progress import progress
    from flare.utils.text import counted

    if args.out:
        refuse_existing(args.out)
    surrogate = load(args.run, checkpoint=args.checkpoint, device=args.device)
    data = RunFolder(args.run).config().data
    dataset = Dataset(args.data or data.path)
    surrogate.check_fields(dataset.schema, dataset.path)
    indices = [int(i) for i in dataset.split(args.split or data.test_split)[: args.samples]]
    if not indices:
        raise DataError(f"{dataset.path}: the split is empty")
    out = Path(args.out or Path(args.run) / "spectra")

    with progress("spectra", len(indices)) as update:

        def one_by_one():  # type: ignore[no-untyped-def]
            for index in indices:
                yield index
                update()

        spectra = surrogate_spectra(surrogate, dataset, one_by_one())
    sample, schema = dataset[indices[0]], dataset.schema
    pairs = surrogate_eigenvectors(surrogate, dataset, indices[0], count=args.vectors)
    with making(out) if args.out else nullcontext(out) as folder:
        spectra.save(folder / "spectra.npz")
        save_png(spectra_figure(spectra), folder / "spectra.png")
        with replacing(folder / "eigenvectors.npz") as path:
            fields = {f"block_{b + 1}": vectors.cpu().numpy() for b, (_, vectors) in enumerate(pairs)}
            np.savez(path, points=sample.values[schema.points], **fields)  # type: ignore[arg-type]
        if sample.values[schema.points].shape[1] in (2, 3):
            for block, pair in enumerate(pairs):
                figure = leading_eigenvectors(dataset, indices[0], pair, spectra, block)
                save_png(figure, folder / f"eigenvectors_block_{block + 1}.png")

    print(f"mean of {counted(spectra.samples, 'sample')}; M = {spectra.eigenvalues.shape[-1]} latents per head")
    print("block   effective rank of the heads          above FP32 epsilon")
    for block in range(len(pairs)):
        ranks, counts = spectra.effective_rank[block], spectra.numerical_rank[block]
        span = f"{ranks.min():5.1f} to {ranks.max():5.1f}, mean {ranks.mean():5.1f}"
        print(f"{block + 1:>5}   {span:<36} {int(counts.min())} to {int(counts.max())}")
    print(f"written to {out}: spectra.npz, spectra.png, eigenvectors.npz, pictures of eigenvectors")
    return 0
