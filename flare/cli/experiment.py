"""`flare experiment NAME`: a question asked of several runs, answered by a table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.utils.errors import ConfigError, nearest
from flare.utils.terminal import say

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

EXPERIMENTS = {
    "small-sets": "FLARE on a small set of each benchmark, made and learnt in minutes",
    "printed-parts": "FLARE on a small set of printed parts, beside simple predictors",
    "cars": "FLARE on cars of the stand-in car-potential, beside simple predictors",
    "scaling": "time and memory of one layer up to a million points, beside softmax and physics attention",
    "million": "blocks x latents at a million points: time, memory and error",
    "lra": "attentions side by side on tasks of the Long Range Arena, beside what can be guessed",
}
HELP = "usage: flare experiment NAME ...\n\n" + "\n".join(f"  {name:<14} {text}" for name, text in EXPERIMENTS.items())


def run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {words[0]!r}; {nearest(words[0], EXPERIMENTS)}")
    verbs = {
        "small-sets": _small_sets,
        "printed-parts": _printed_parts,
        "cars": _cars,
        "scaling": _scaling,
        "million": _million,
        "lra": _lra,
    }
    return verbs[words[0]](words[1:])


def _parser(name: str, page: str, out: str = "folder of the data, the runs and the table") -> ArgumentParser:
    parser = make_parser(f"experiment {name}", f"{EXPERIMENTS[name]}. A stopped one goes on when called again.")
    parser.add_argument("--out", default=f"runs/{name}", help=out)
    parser.add_argument("--page", help=f"a page to put the table into, between its marks, such as {page}")
    parser.add_argument("--record", help="a folder to keep what the table is made of, such as benchmarks/results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make data")
    return parser


def _small_sets(words: Sequence[str]) -> int:
    parser = _parser("small-sets", "docs/solvers.md")
    parser.add_argument("--only", help="such as elasticity,pipe; default all four")
    given = parse(parser, words)

    from flare.reproduce.items.small_sets import BEGIN, CASES, END, run

    names = given.only.split(",") if given.only else list(CASES)
    for name in names:
        if name not in CASES:
            raise ConfigError(f"there is no small set of {name!r}; {nearest(name, CASES)}")
    work = partial(run, Path(given.out), names=names, workers=given.workers, tell=say)
    return _tabulate(work, given, BEGIN, END, {"table.json": "small-sets"})


def _printed_parts(words: Sequence[str]) -> int:
    parser = _parser("printed-parts", "docs/lpbf.md")
    parser.add_argument("--parts", type=int, default=200, help="parts to make")
    parser.add_argument("--test", type=int, default=40, help="the last ones, for testing")
    parser.add_argument("--drafts", type=int, default=500, help="further parts in wider voxels, to train with only")
    given = parse(parser, words)

    from flare.reproduce.items.printed_parts import BEGIN, END, run

    sizes = {key: getattr(given, key) for key in ("parts", "test", "drafts", "workers")}
    return _tabulate(
        partial(run, Path(given.out), **sizes, tell=say), given, BEGIN, END, {"table.json": "printed-parts"}
    )


def _cars(words: Sequence[str]) -> int:
    parser = _parser("cars", "docs/cars.md")
    parser.add_argument("--cars", type=int, default=240, help="cars to make")
    parser.add_argument("--test", type=int, default=40, help="the last ones, for testing")
    parser.add_argument("--points", type=int, default=40_000, help="points of each")
    parser.add_argument("--epochs", type=int, default=50, help="passes over the cars to train with")
    parser.add_argument("--refinement", type=float, default=1.0, help="of the panels; 0.5 costs a sixteenth")
    given = parse(parser, words)

    from flare.reproduce.items.cars import BEGIN, END, run

    sizes = {key: getattr(given, key) for key in ("cars", "test", "points", "epochs", "refinement", "workers")}
    return _tabulate(partial(run, Path(given.out), **sizes, tell=say), given, BEGIN, END, {"table.json": "cars"})


def _scaling(words: Sequence[str]) -> int:
    parser = _parser("scaling", "docs/million.md")
    parser.add_argument("--points", help="such as 1000,10000,100000; default seven sizes from 1,000 to 1,000,000")
    parser.add_argument("--latents", help="such as 128,512,2048, the default; as many slices of physics attention")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a measurement may take; then extrapolate")
    parser.add_argument("--memory", type=float, default=16.0, help="GB a measurement may take")
    parser.add_argument("--threads", type=int, default=1, help="of one process")
    parser.add_argument("--precision", default="32", choices=["32", "bf16", "16"], help="the latter two under autocast")
    parser.add_argument("--backend", default="auto", help="that computes FLARE: auto, native, sdpa or reference")
    given = parse(parser, words)

    from flare.reproduce.items.layer_costs import LATENTS, POINTS
    from flare.reproduce.items.scaling import BEGIN, END, run

    work = partial(
        run,
        Path(given.out),
        points=_numbers(given.points, "--points") or POINTS,
        latents=_numbers(given.latents, "--latents") or LATENTS,
        limit_seconds=given.limit,
        limit_gb=given.memory,
        thread_count=given.threads,
        precision=given.precision,
        backend=given.backend,
        tell=say,
    )
    return _tabulate(work, given, BEGIN, END, {"scaling.json": "scaling"})


def _million(words: Sequence[str]) -> int:
    parser = _parser("million", "docs/million.md")
    parser.add_argument("--data", help="dataset folder; default: Darcy flows on a grid of --points, which are made")
    parser.add_argument("--points", type=int, default=1_000_000, help="of the flows that are made")
    parser.add_argument("--blocks", help="such as 1,2,4,8, the default")
    parser.add_argument("--latents", help="such as 128,512,1024,2048, the default")
    parser.add_argument("--steps", type=int, default=64, help="of each training, one sample each")
    parser.add_argument("--subsample", type=int, help="points of a training step, drawn anew each time; default all")
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="seconds a training may take; longer ones are left out"
    )
    given = parse(parser, words)

    from flare.reproduce.items.million import BEGIN, BLOCKS, END, LATENTS, run

    work = partial(
        run,
        Path(given.out),
        data=Path(given.data) if given.data else None,
        points=given.points,
        blocks=_numbers(given.blocks, "--blocks") or BLOCKS,
        latents=_numbers(given.latents, "--latents") or LATENTS,
        steps=given.steps,
        subsample=given.subsample,
        limit_seconds=given.limit,
        workers=given.workers,
        tell=say,
    )
    return _tabulate(work, given, BEGIN, END, {"million.json": "million"})


def _lra(words: Sequence[str]) -> int:
    from flare.train.presets import sequence_presets

    known = [name.removeprefix("lra/") for name in sequence_presets()]
    parser = _parser("lra", "docs/lra.md", "folder of the runs and the tables; data are in --data")
    parser.add_argument("--tasks", default="listops-small,image-small", help=f"some of {', '.join(known)}")
    parser.add_argument("--contenders", help="such as flare,vanilla,flare-qk-norm; default the six attentions; or all")
    parser.add_argument("--seeds", type=int, default=3, help="runs of every contender, with seeds 0, 1, ...")
    parser.add_argument("--data", default="data", help="folder of the tasks' datasets, each named as its preset")
    parser.add_argument("--steps", type=int, help="optimiser steps of each run; default those of the preset")
    parser.add_argument("--samples", type=int, help="of the short expressions to make; default 54,000")
    parser.add_argument(
        "--protocol", default="own", choices=["own", "dev-split-no-mask"], help="the latter as the published table"
    )
    given = parse(parser, words)

    from flare.reproduce.items.lra import BEGIN, CONTENDERS, END, SIX, run

    tasks = _known(given.tasks, known, "task")
    everything = list(CONTENDERS)
    names = SIX if not given.contenders else everything if given.contenders == "all" else given.contenders.split(",")
    names = _known(",".join(names), everything, "contender")
    for option, value, least in (("--seeds", given.seeds, 1), ("--samples", given.samples, 100)):
        if value is not None and value < least:
            raise ConfigError(f"{option} {value}: at least {least}, please")
    overrides = [("steps", given.steps)] if given.steps is not None else []
    overrides += [("data.protocol", given.protocol)] if given.protocol != "own" else []
    how = {"seeds": given.seeds, "samples": given.samples, "workers": given.workers, "tell": say}
    work = partial(
        run, Path(given.out), tasks=tasks, contenders=names, data=Path(given.data), overrides=overrides, **how
    )
    return _tabulate(work, given, BEGIN, END, {f"{task}/table.json": f"lra-{task}" for task in tasks})


def _known(words: str, known: Sequence[str], what: str) -> list[str]:
    names = [word.strip() for word in words.split(",")]
    for name in names:
        if name not in known:
            raise ConfigError(f"there is no {what} {name!r}; {nearest(name, known)}")
    return names


def _numbers(text: str | None, option: str) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers such as 128,512") from None
    if any(number < 1 for number in numbers):
        raise ConfigError(f"{option} {text}: at least 1 each")
    return numbers


def _tabulate(work: Callable[[], str], given: Any, begin: str, end: str, records: Mapping[str, str]) -> int:
    """Do it, and show the table it gives; also on a page, and what it is made of in a folder, where they are named.

    Args:
        records: file below `--out` -> name to keep it by.
    """
    from flare.train.signals import Interrupted
    from flare.utils.files import around_marks, put_between, replacing

    if given.page:
        around_marks(Path(given.page), begin, end)  # refuses what is no such page, before hours of work
    try:
        table = work()
    except Interrupted as stop:
        say("saved. Give the same command again to go on")
        raise SystemExit(stop.exit_code) from None
    if given.page:
        put_between(Path(given.page), begin, end, table)
    if given.record:
        for source, name in records.items():
            with replacing(Path(given.record) / f"experiment-{name}.json") as temporary:
                temporary.write_bytes((Path(given.out) / source).read_bytes())
    print(table, end="")
    return 0
