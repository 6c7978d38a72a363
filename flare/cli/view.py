"""`flare view`: show a run, a dataset or a file in the browser, or write it to one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import count, make_parser, new_path, parse
from flare.utils.errors import ConfigError

if TYPE_CHECKING:
    from flare.view.source import Source

EXAMPLES = """examples:
  flare view runs/demo                          truth, prediction and error of every sample, spectra, eigenvectors
  flare view data/elasticity-demo               a dataset
  flare view part.vtu                           a mesh with its fields; 'results/*.vtu' for several
  flare view runs/demo --out demo.html          the same page as one file that needs no network"""


def run(words: Sequence[str]) -> None:
    """Run the command."""
    about = "Show a run, a dataset or files in the browser, or write them to one HTML file."
    parser = make_parser("view", about, EXAMPLES)
    add = parser.add_argument
    add("what", help="run folder, dataset folder, or files that `flare data import` reads: VTU, STL, CSV, ...")
    add("--data", help="for a run: another dataset with the same fields")
    add("--split", help="show only the samples of this split")
    add("--checkpoint", default="last", choices=["last", "best"], help="for a run: weights to use")
    add("--device", default="auto", help="for a run: device such as cpu; auto is a GPU if there is one")
    add("--modes", type=count, default=6, help="for a run: number of leading eigenvectors per head")
    add("-o", "--out", type=new_path, help="write the page with its data to this HTML file instead of serving it")
    add("--samples", type=count, default=3, help="with --out: number of samples; of a run median, best, worst, ...")
    add("--ids", help="with --out: ids of the samples, such as 17,4,8")
    add("--port", type=int, default=0, help="port of the server; default a free one")
    add("--open", type=bool, default=True, help="open the page in a browser")
    args = parse(parser, words)
    if args.ids and not args.out:
        raise ConfigError("--ids chooses the samples for --out; the served page has all samples")
    try:
        ids = list(dict.fromkeys(map(int, args.ids.split(",")))) if args.ids else []
    except ValueError:
        raise ConfigError(f"--ids {args.ids}: expected ids of samples, such as 17,4,8") from None
    if args.out:
        _write(args, ids)
    else:
        _serve(_open_source(args), args.port, open_page=args.open)


def _open_source(args: Any) -> Source:
    what = Path(args.what)
    if (what / "config.yaml").exists():
        from flare.view.runs import RunSource

        options = {"checkpoint": args.checkpoint, "device": args.device, "modes": args.modes}
        return RunSource(what, data=args.data, split=args.split, **options)
    if args.data:
        raise ConfigError(f"--data gives a run another dataset; {what} is not a run folder")
    is_file = what.exists() or what.suffix or any(mark in args.what for mark in "*?[")
    if is_file and not (what / "dataset.json").exists():  # a dataset folder may have a dot in its name
        if args.split:
            raise ConfigError(f"--split is for runs and datasets; files such as {what} have no splits")
        from flare.view.cases import CaseSource

        return CaseSource(args.what)
    from flare.data.dataset import Dataset
    from flare.view.datasets import DatasetSource

    return DatasetSource(Dataset(what), split=args.split)


def _write(args: Any, ids: list[int]) -> None:
    from flare.utils.text import counted
    from flare.view.standalone import choose_samples, write_standalone

    source = _open_source(args)
    catalogue = write_standalone(source, args.out, ids or choose_samples(source.catalogue(), args.samples))
    size, samples = Path(args.out).stat().st_size / 1e6, counted(len(catalogue["samples"]), "sample")
    print(f"{args.out}: {samples}, {size:.1f} MB, needs no network")
    if catalogue["spectra"] and not catalogue["spectra"]["painted"]:
        print("Eigenvectors are left out because of their size; reduce --samples or --modes to include them.")


def _serve(source: Source, port: int, *, open_page: bool) -> None:
    from flare.view.server import ViewServer

    with ViewServer(source, port=port) as server:
        print(f"{server.url}  (stop with Ctrl-C)", flush=True)
        if open_page:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
