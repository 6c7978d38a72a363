"""`flare spectra`: compute eigenvalues and eigenvectors of the mixing matrices of a trained FLARE model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from flare.cli import count, make_parser, new_path, parse
from flare.cli.surrogates import add_weights, weights
from flare.utils.errors import DataError


def run(words: Sequence[str]) -> None:
    """Write spectra and pictures, and print the ranks."""
    parser = make_parser("spectra", "Analyze the mixing matrices of every FLARE layer of a run, averaged over samples.")
    add_weights(parser, ema=False)
    parser.add_argument("--data", help="another dataset with the same fields; default that of the run")
    parser.add_argument("--split", help="split to average over; default the test split of the run")
    parser.add_argument("--samples", type=count, default=20, help="number of samples to average over")
    parser.add_argument("--vectors", type=count, default=6, help="number of leading eigenvectors, for the first sample")
    parser.add_argument("-o", "--out", type=new_path, help="folder to write; default <run>/spectra")
    args = parse(parser, words)

    from flare.data.dataset import Dataset
    from flare.inference.spectra import surrogate_eigenvectors, surrogate_spectra
    from flare.inference.surrogate import load
    from flare.report.page import save_png
    from flare.report.run import leading_eigenvectors
    from flare.report.spectra import spectra_figure
    from flare.train.run_folder import RunFolder
    from flare.utils.files import create_file, replace_atomically, save_arrays
    from flare.utils.progress import progress
    from flare.utils.text import counted

    surrogate = load(args.run, **weights(args))
    data = RunFolder(args.run).config(training=False).data
    dataset = Dataset(args.data or data.path)
    surrogate.check_fields(dataset.schema, dataset.path)
    indices = [int(i) for i in dataset.split(args.split or data.test_split)[: args.samples]]
    if not indices:
        raise DataError(f"{dataset.path}: split {args.split or data.test_split!r} is empty")
    out = Path(args.out or Path(args.run) / "spectra")

    with progress("spectra", len(indices)) as update:

        def counted_indices() -> Iterator[int]:
            for index in indices:
                yield index
                update()

        spectra = surrogate_spectra(surrogate, dataset, counted_indices())
    sample, schema = dataset[indices[0]], dataset.schema
    pairs = surrogate_eigenvectors(surrogate, dataset, indices[0], count=args.vectors)
    with create_file(out) if args.out else nullcontext(out) as folder:
        spectra.save(folder / "spectra.npz")
        save_png(spectra_figure(spectra), folder / "spectra.png")
        with replace_atomically(folder / "eigenvectors.npz") as path:
            fields = {f"block_{b + 1}": vectors.cpu().numpy() for b, (_, vectors) in enumerate(pairs)}
            save_arrays(path, {"points": sample.values[schema.points], **fields})
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
    print(f"wrote spectra.npz, spectra.png, eigenvectors.npz and pictures of eigenvectors to {out}")
