"""`flare experiment NAME`: run one of the experiments outside the paper's budgets, and print its table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from flare.cli import make_parser, parse
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.terminal import print_status


def _numbers(text: str | None, option: str) -> list[int] | None:
    """Parse `128,512`."""
    try:
        numbers = [int(word) for word in text.split(",")] if text else None
    except ValueError:
        raise ConfigError(f"{option} {text}: give numbers such as 128,512") from None
    if numbers and min(numbers) < 1:
        raise ConfigError(f"{option} {text}: at least 1 each")
    return numbers


def _names(text: str | None, option: str) -> list[str] | None:
    return [word.strip() for word in text.split(",")] if text else None


def _path(text: str | None, option: str) -> Path | None:
    return Path(text) if text else None


@dataclass(frozen=True)
class _Option:
    """A command-line option of an experiment."""

    argument: str
    """Argument of `run`."""
    help: str
    default: Any = None
    """None: the default of `run`."""
    type: Callable[[str], Any] = str
    read: Callable[[str | None, str], Any] | None = None
    """Converts the text of the option."""
    choices: Sequence[str] | None = None


@dataclass(frozen=True)
class _Experiment:
    """An experiment of `flare.reproduce`, and the options of its command."""

    about: str
    module: str
    page: str
    """Page of the documentation that shows its table."""
    records: Mapping[str, str]
    """File in the output folder -> name under which `--record` keeps it."""
    options: Mapping[str, _Option] = field(default_factory=dict)
    workers: bool = True


EXPERIMENTS = {
    "small-sets": _Experiment(
        "FLARE on a small dataset of each benchmark, generated and trained in minutes",
        "flare.reproduce.items.small_sets",
        "docs/solvers.md",
        {"table.json": "small-sets"},
        {"only": _Option("names", "such as elasticity,pipe; default all four", read=_names)},
    ),
    "printed-parts": _Experiment(
        "FLARE on a small dataset of printed parts, beside trivial baselines",
        "flare.reproduce.items.printed_parts",
        "docs/lpbf.md",
        {"table.json": "printed-parts"},
        {
            "parts": _Option("parts", "number of parts", 200, int),
            "test": _Option("test", "number of test parts, the last ones", 40, int),
            "drafts": _Option("drafts", "number of further training parts with wider voxels", 500, int),
        },
    ),
    "cars": _Experiment(
        "FLARE on cars of the stand-in car-potential, beside trivial baselines",
        "flare.reproduce.items.cars",
        "docs/cars.md",
        {"table.json": "cars"},
        {
            "cars": _Option("cars", "number of cars", 240, int),
            "test": _Option("test", "number of test cars, the last ones", 40, int),
            "points": _Option("points", "points of each car", 40_000, int),
            "epochs": _Option("epochs", "epochs of the training", 50, int),
            "refinement": _Option("refinement", "refinement of the panels; 0.5 costs a sixteenth", 1.0, float),
        },
    ),
    "scaling": _Experiment(
        "time and memory of one layer up to a million points, beside softmax and physics attention",
        "flare.reproduce.items.scaling",
        "docs/million.md",
        {"scaling.json": "scaling"},
        {
            "points": _Option("points", "such as 1000,10000; default seven sizes up to 1,000,000", read=_numbers),
            "latents": _Option("latents", "such as 128,512,2048, the default; also slices", read=_numbers),
            "limit": _Option("limit_seconds", "seconds a measurement may take; then extrapolate", 600.0, float),
            "memory": _Option("limit_gb", "largest memory of a measurement in GB", 16.0, float),
            "threads": _Option("thread_count", "threads of a measurement", 1, int),
            "precision": _Option("precision", "bf16 and 16 under autocast", "32", choices=["32", "bf16", "16"]),
            "backend": _Option("backend", "mixer backend of FLARE: auto, native, sdpa or reference", "auto"),
        },
        workers=False,
    ),
    "million": _Experiment(
        "blocks x latents at a million points: time, memory and error",
        "flare.reproduce.items.million",
        "docs/million.md",
        {"million.json": "million"},
        {
            "data": _Option("data", "dataset folder; default: Darcy flows are generated", read=_path),
            "points": _Option("points", "points of the generated flows", 1_000_000, int),
            "blocks": _Option("blocks", "such as 1,2,4,8, the default", read=_numbers),
            "latents": _Option("latents", "such as 128,512,1024,2048, the default", read=_numbers),
            "steps": _Option("steps", "training steps of each model, one sample each", 64, int),
            "subsample": _Option("subsample", "points of a training step, drawn at random; default all", type=int),
            "limit": _Option("limit_seconds", "longest training in seconds; longer ones are skipped", 3600.0, float),
        },
    ),
    "lra": _Experiment(
        "attentions side by side on tasks of the Long Range Arena, beside trivial baselines",
        "flare.reproduce.comparison",
        "docs/lra.md",
        {},
        {
            "tasks": _Option("tasks", "presets of lra/, by comma", "listops-small,image-small", read=_names),
            "contenders": _Option("attentions", "such as flare,flare-qk-norm, or all; default six", read=_names),
            "seeds": _Option("seeds", "runs of every attention, with seeds 0, 1, ...", 3, int),
            "data": _Option("data", "folder of the datasets, each named as its preset", "data", read=_path),
            "steps": _Option("steps", "optimizer steps of each run; default those of the preset", type=int),
            "samples": _Option("samples", "generated samples of listops-small; default 54,000", type=int),
            "protocol": _Option("protocol", "second as published", "own", choices=["own", "dev-split-no-mask"]),
        },
    ),
}
HELP = "usage: flare experiment NAME ...\n\n" + "\n".join(f"  {n:<14} {e.about}" for n, e in EXPERIMENTS.items())


def run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return 0
    if words[0] not in EXPERIMENTS:
        raise ConfigError(f"unknown experiment {words[0]!r}; {suggest_name(words[0], EXPERIMENTS)}")
    name, experiment = words[0], EXPERIMENTS[words[0]]
    parser = make_parser(f"experiment {name}", f"{experiment.about}. Repeat the command to resume a stopped one.")
    parser.add_argument("--out", default=f"runs/{name}", help="folder of data, runs and tables")
    parser.add_argument("--page", help=f"page whose table is replaced, such as {experiment.page}")
    parser.add_argument("--record", help="folder to which the results are copied, such as benchmarks/results")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that generate data")
    for option, about in experiment.options.items():
        how = {"choices": about.choices} if about.choices else {"type": about.type}
        parser.add_argument(f"--{option}", default=about.default, help=about.help, **how)
    given = parse(parser, words[1:])
    settings: dict[str, Any] = {"workers": given.workers} if experiment.workers else {}
    for option, about in experiment.options.items():
        value = getattr(given, option)
        value = about.read(value, f"--{option}") if about.read else value
        if value is not None:
            settings[about.argument] = value
    records = experiment.records
    if name == "small-sets":
        _check_small_sets(settings)
    if name == "lra":
        _read_attentions(settings)
        records = {f"{task}/table.json": f"lra-{task}" for task in settings["tasks"]}
    return _tabulate(import_module(experiment.module), given, settings, records)


def _check_small_sets(settings: Mapping[str, Any]) -> None:
    from flare.reproduce.items.small_sets import SETS

    _check_names(settings.get("names", ()), SETS, "small set")


def _read_attentions(settings: dict[str, Any]) -> None:
    """Check tasks, attentions and numbers, and turn settings into overrides of the presets."""
    from flare.reproduce.sequences import VARIANTS
    from flare.train.presets import sequence_presets

    _check_names(settings["tasks"], [name.removeprefix("lra/") for name in sequence_presets()], "task")
    if settings.get("attentions") == ["all"]:
        settings["attentions"] = list(VARIANTS)
    _check_names(settings.get("attentions", ()), VARIANTS, "attention")
    for option, least in (("seeds", 1), ("samples", 100)):
        if settings.get(option, least) < least:
            raise ConfigError(f"--{option} {settings[option]}: at least {least}")
    protocol = settings.pop("protocol")
    overrides = [("steps", settings.pop("steps"))] if "steps" in settings else []
    settings["overrides"] = overrides + ([("data.protocol", protocol)] if protocol != "own" else [])


def _check_names(names: Sequence[str], known: Any, what: str) -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"unknown {what} {name!r}; {suggest_name(name, known)}")


def _tabulate(module: Any, given: Any, settings: Mapping[str, Any], records: Mapping[str, str]) -> int:
    """Run an experiment, print its table, and copy table and results to where `--page` and `--record` say."""
    from flare.train.signals import Interrupted
    from flare.utils.files import replace_atomically, replace_between_marks, split_at_marks

    if given.page:
        split_at_marks(Path(given.page), module.BEGIN, module.END)  # fails before hours of work
    try:
        table = module.run(Path(given.out), **settings)
    except Interrupted as stop:
        print_status("saved; repeat the command to resume")
        raise SystemExit(stop.exit_code) from None
    if given.page:
        replace_between_marks(Path(given.page), module.BEGIN, module.END, table)
    if given.record:
        for source, name in records.items():
            with replace_atomically(Path(given.record) / f"experiment-{name}.json") as temporary:
                temporary.write_bytes((Path(given.out) / source).read_bytes())
    print(table, end="")
    return 0
