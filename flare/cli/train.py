"""`flare train`: a preset, overrides, a run folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.words import show_accuracies, show_fields, verdict
from flare.train.config import TrainConfig
from flare.train.presets import (
    build_config,
    merged,
    preset_name,
    preset_names,
    preset_path,
    read_yaml,
    sequence_presets,
    setting_names,
)
from flare.train.recipes import model_name, with_attention, with_fast_recipe, with_grid, with_model, with_optimizer
from flare.utils.errors import ConfigError, FlareError
from flare.utils.terminal import say
from flare.utils.text import counted, duration

EPILOG = """examples:
  flare train --preset darcy --data.path data/darcy --out runs/darcy
  flare train --preset darcy --model transolver --out runs/peer          with that model's own recipe
  flare train --preset darcy --model transolver --recipe flare --out runs/fair
  flare train --preset darcy --optim.lr 5e-4 --model.latents 64 --epochs 50 --out runs/small
  flare train --preset lra/listops --model.attention performer --out runs/listops-performer
  flare train --preset darcy --recipe fast --minutes 60 --out runs/quick
  flare train --resume runs/darcy
  flare train --resume runs/mine --epochs 200                            longer, where the schedule is wsd
  torchrun --nproc-per-node 2 -m flare train --preset darcy --out runs/two"""

RECIPE = """how to train: fast (Muon; the default without a preset), paper (the default with one), or as the named model
is trained in the paper"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("train", "Train a surrogate, or go on with a run.", EPILOG)
    presets = ", ".join([*preset_names(), *sequence_presets()])
    parser.add_argument("--preset", help=f"settings to start from: {presets}, or a YAML file")
    parser.add_argument("--recipe", help=RECIPE)
    parser.add_argument("--out", help="run folder to write; default runs/<preset>")
    parser.add_argument("--resume", metavar="RUN", help="go on with this run, with its own settings")
    parser.add_argument("--if-exists", default="refuse", choices=["refuse", "resume"], help="when --out holds a run")
    parser.add_argument("--fit", default="check", choices=["check", "ignore"], help="refuse a run that is too big")
    parser.add_argument("--report", type=bool, default=True, help="write report.html and its pictures at the end")
    parser.add_class_arguments(TrainConfig, None)
    given = parse(parser, [*short_names(words)], free=_model_options, defaults=False).as_dict()
    own = ("preset", "recipe", "out", "resume", "if_exists", "fit", "report")
    options = {name: given.pop(name, None) for name in own}
    overrides = list(dotted(given))
    folder, result = _resume(options, overrides) if options["resume"] else _start(options, overrides)
    if result:  # only the first rank has one
        _show(result)
        if "accuracy" not in result:
            _calibrate(folder)
        if options["report"] is not False:
            _report(folder)
    return 0


def _model_options() -> set[str]:
    """Settings of all models, which are free keys to the parser: a mistaken one may be meant for them."""
    from flare.models import MODELS, model_options
    from flare.sequence.classifier import known_settings
    from flare.sequence.encoder import ATTENTIONS

    names = {name for model in MODELS for name in model_options(model)}
    return {f"--model.{name}" for name in names.union(*map(known_settings, ATTENTIONS))}


def short_names(words: Sequence[str]) -> Iterator[str]:
    """`--model lno` is short for `--model.name lno`, and `--optimizer muon` for `--optim.name muon`."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        is_name = name == "--model" and not (value if equals else following).startswith("{")
        full = "--model.name" if is_name else "--optim.name" if name == "--optimizer" else name
        yield f"{full}{equals}{value}"


def _resume(options: Mapping[str, Any], overrides: list[tuple[str, Any]]) -> tuple[Path, dict[str, Any]]:
    length = {name: value for name, value in overrides if name in ("epochs", "steps")}
    others = [name for name in ("preset", "recipe", "out") if options[name]]
    others += [name for name, _ in overrides if name not in length]
    if others:
        raise ConfigError(f"--resume keeps the settings of the run; drop {', '.join(f'--{name}' for name in others)}")
    folder = Path(options["resume"])
    _refuse_too_big_to_resume(options, folder)
    return folder, _guarded(folder, lambda start: start.extend(folder, **length) if length else start.resume(folder))


def _start(options: Mapping[str, Any], overrides: list[tuple[str, Any]]) -> tuple[Path, dict[str, Any]]:
    preset = options["preset"]
    path = preset_path(preset) if preset else None
    record = read_yaml(path) if path else {"model": {"name": "flare"}}
    model, own, recipe = dict(overrides).get("model.name"), model_name(record), options["recipe"]
    is_fast = recipe == "fast" or (recipe is None and path is None)
    of_model = None if recipe in ("paper", "fast") else recipe
    if of_model or model not in (None, own):
        record = with_model(record, preset_name(path) if path else "", model or own, of_model)
        overrides = [(name, value) for name, value in overrides if name != "model.name"]
    if is_fast:
        record = with_fast_recipe(record, preset_name(path) if path else "")
    optimizer = dict(overrides).get("optim.name")
    if optimizer is not None:
        record = with_optimizer(record, optimizer)
    attention = dict(overrides).get("model.attention")
    if model_name(record) == "sequence" and attention is not None:
        record = with_attention(record, preset_name(path) if path else "", str(attention))
    record = with_grid(merged(record, overrides))
    where = "settings" if path is None else f"{path} with overrides" if overrides else str(path)
    config = build_config(record, where)
    if options["out"]:
        folder = Path(options["out"])
    elif path is not None:
        folder = Path("runs") / "-".join(
            [path.stem, *(word for word in (model, recipe) if word not in (None, own, "paper"))]
        )
    else:
        raise ConfigError("say where the run goes with --out, or start from a --preset")
    from flare.train.run_folder import RunFolder

    if options["if_exists"] == "resume" and RunFolder(folder).exists:
        _refuse_too_big_to_resume(options, folder)
        return folder, _guarded(folder, lambda start: start.resume(folder, expected=config))
    _refuse_too_big(options, config)
    return folder, _guarded(folder, lambda start: start.start(config, folder))


def _refuse_too_big_to_resume(options: Mapping[str, Any], folder: Path) -> None:
    """The ranks may be fewer now, or the machine another. A finished run is only read."""
    from flare.train.run_folder import RunFolder

    if not (folder / "result.json").exists():
        _refuse_too_big(options, RunFolder(folder).config())


def _refuse_too_big(options: Mapping[str, Any], config: TrainConfig) -> None:
    if options["fit"] != "ignore":
        from flare.train.fit import refuse_too_big

        refuse_too_big(config)


def _guarded(folder: Path, work: Any) -> dict[str, Any]:
    """Run, and where a signal ends it say how to go on."""
    from flare.train import run as start
    from flare.train.signals import Interrupted

    try:
        return work(start)
    except Interrupted as stop:
        say(f"saved. Go on with:  flare train --resume {folder}")
        raise SystemExit(stop.exit_code) from None


def _show(result: Mapping[str, Any]) -> None:
    """The numbers a person wants first, on standard output."""
    if "accuracy" in result:
        show_accuracies(result)
    else:
        _show_errors(result)
    effort = f"{result['steps']:,} steps in {duration(result['seconds'])}, {result['parameters']:,} parameters"
    print(f"trained               {effort}")


def _show_errors(result: Mapping[str, Any]) -> None:
    from flare.data.benchmarks.cards import beside_the_paper

    error, baseline = result["rel_l2"], result["rel_l2_mean_field"]
    print(f"test rel-L2           {error:.4f}   mean of {counted(result['test_samples'], 'sample')}, last weights")
    print(f"training-mean field   {baseline:.4f}   {result['mean_field']}; {verdict(error, baseline)}")
    if paper := beside_the_paper(result):
        print(f"the paper             {paper}")
    show_fields({name: (of["rel_l2"], of["rel_l2_mean_field"]) for name, of in result["fields"].items()})


def _calibrate(folder: Path) -> None:
    """Error bars are made while the dataset is at hand; a run without them is still a run."""
    from flare.surrogate import load
    from flare.trust.calibration import calibrate_run, load_calibration, tell

    try:
        lines = tell((load_calibration(folder, load(folder)) or calibrate_run(folder, device="auto")).report)
    except FlareError as error:
        lines = [f"no error bars: {error}"]
    for line in lines:
        print(f"calibration           {line}")


def _report(folder: Path) -> None:
    """The result is safe by now: a picture that cannot be drawn is said, and costs nothing else."""
    page = folder / "report.html"
    if not page.exists():
        from flare.report.run import write_run_report

        say("writing the report ...")
        try:
            write_run_report(folder)
        except FlareError as error:
            say(f"no report: {error}")
            return
    print(f"report                {page}")


def dotted(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as dotted ones; `model` and `data.normalise` hold free keys, which merge one by one too."""
    known = set(setting_names())
    for key, value in record.items():
        name = f"{prefix}{key}"
        free = name in ("model", "data.normalise")
        if isinstance(value, Mapping) and (name not in known or free):
            yield from dotted(value, f"{name}.")
        else:
            yield name, value
