"""`flare experiment NAME`: a question asked of several runs, answered by a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flare.cli import parse
from flare.cli.options import make_parser
from flare.errors import ConfigError, nearest
from flare.terminal import say

EXPERIMENTS = {"small-sets": "FLARE on a small set of each benchmark, made and learnt in minutes"}
HELP = "usage: flare experiment NAME ...\n\n" + "\n".join(f"  {name:<14} {text}" for name, text in EXPERIMENTS.items())


def run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in EXPERIMENTS:
        raise ConfigError(f"there is no experiment {words[0]!r}; {nearest(words[0], EXPERIMENTS)}")
    return _small_sets(words[1:])


def _small_sets(words: Sequence[str]) -> int:
    parser = make_parser(
        "experiment small-sets", f"{EXPERIMENTS['small-sets']}. A stopped one goes on when called again."
    )
    parser.add_argument("--out", default="runs/small-sets", help="folder of the datasets, the runs and the table")
    parser.add_argument("--only", help="such as elasticity,pipe; default all four")
    parser.add_argument("--page", help="a page to put the table into, between its marks, such as docs/solvers.md")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that make data")
    given = parse(parser, words)

    from flare.experiments.small_sets import BEGIN, CASES, END, run
    from flare.files import put_between
    from flare.train.signals import Interrupted

    names = given.only.split(",") if given.only else list(CASES)
    for name in names:
        if name not in CASES:
            raise ConfigError(f"there is no small set of {name!r}; {nearest(name, CASES)}")
    try:
        table = run(Path(given.out), names=names, workers=given.workers, tell=say)
    except Interrupted as stop:
        say("saved. Give the same command again to go on")
        raise SystemExit(stop.exit_code) from None
    if given.page:
        put_between(Path(given.page), BEGIN, END, table)
    print(table, end="")
    return 0
