"""`flare train`: parse the options, call `flare.train`, print the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flare.cli import make_parser, parse
from flare.cli.calibrate import calibration_lines
from flare.train.config import TrainConfig
from flare.train.presets import preset_names, sequence_presets
from flare.utils.errors import ConfigError
from flare.utils.text import duration

EPILOG = """examples:
  flare train data/mine                                                  into runs/mine-flare
  flare train data/mine --model transolver --epochs 100 -o runs/baseline
  flare train --preset darcy --out runs/darcy                            the paper's settings
  flare train --preset darcy --model transolver --recipe flare --out runs/fair
  flare train --preset darcy --lr 5e-4 --model.latents 64 --epochs 50 --out runs/small
  flare train --preset lra/listops --model.attention performer --out runs/listops-performer
  flare train --preset darcy --recipe fast --minutes 60 --out runs/quick
  flare train --resume runs/darcy
  flare train --resume runs/mine --epochs 200                            longer, if the schedule is wsd
  torchrun --nproc-per-node 2 -m flare train --preset darcy --out runs/two"""

RECIPE = """how to train: fast (Muon; the default without a preset), paper (the default with one), or as the named model
is trained in the paper"""
ALIASES = {"data.batch_size": "--batch-size", "optim.lr": "--lr", "optim.name": "--optimizer"}
"""Setting -> short option."""
HELP = {
    "model": "model, see flare models; its options follow, such as --model.channels 64",
    "minutes": "duration of the whole run, instead of --epochs",
    "optim.lr": "peak learning rate; default that of the optimizer or preset",
    "optim.name": "optimizer: adamw, muon, soap, or a registered one; default that of the recipe",
    "precision": "single precision, or mixed precision with bfloat16 or (on CUDA) float16; default 32",
}
"""Setting -> help that is shorter than its docstring, or says more about the command line."""
GROUPS = {
    "dataset and output": "dataset out preset resume report",
    "model": "model",
    "training": "recipe epochs minutes data.batch_size optim.lr optim.name seed",
    "machine": "device precision recompute memory_check",
}
OWN = ("preset", "recipe", "out", "resume", "if_exists", "memory_check", "report")
"""Options that are arguments of `flare.train`, not settings."""


def run(words: Sequence[str]) -> None:
    """Run the command."""
    parser = make_parser("train", "Train a surrogate, or resume a run.", EPILOG, GROUPS)
    presets = ", ".join([*preset_names(), *sequence_presets()])
    parser.add_argument("dataset", nargs="?", help="dataset folder; short for --data.path")
    parser.add_argument("--preset", help=f"settings to start from: {presets}, or a YAML file")
    parser.add_argument("--recipe", help=RECIPE)
    parser.add_argument("-o", "--out", help="run folder; default runs/<dataset>-<model>, or runs/<preset>")
    parser.add_argument("--resume", metavar="RUN", help="resume this run with its own settings")
    parser.add_argument("--if-exists", default="refuse", choices=["refuse", "resume"], help="if --out holds a run")
    parser.add_argument("--memory-check", type=bool, default=True, help="refuse a run that does not fit into memory")
    parser.add_argument("--report", type=bool, default=True, help="write report.html and its pictures at the end")
    add_settings(parser)
    words = [*with_model_name(words)]
    given = parse(parser, words, needs_words=True, free=_model_options, defaults=False).as_dict()
    dataset = given.pop("dataset", None)
    if dataset is not None and given.get("data", {}).get("path") is not None:
        raise ConfigError(f"the dataset is given twice: {dataset} and --data.path {given['data']['path']}")
    _train(dataset, {name: given.pop(name) for name in OWN if name in given}, given)


def _train(dataset: str | None, options: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    from flare.train import train
    from flare.train.tasks import task_of_run

    done = train(dataset, settings=settings, **options)
    if not done.result:  # another rank than the first
        return
    result = done.result
    effort = f"{result['steps']:,} steps in {duration(result['seconds'])}, {result['parameters']:,} parameters"
    print(*task_of_run(done.path).summary(result), f"trained               {effort}", sep="\n")
    for line in calibration_lines(done.calibration.report) if done.calibration else []:
        print(f"calibration           {line}")
    if (done.path / "report.html").exists() and options.get("report") is not False:
        print(f"report                {done.path / 'report.html'}")


def _model_options() -> set[str]:
    """Return the settings of all models, which the parser takes without knowing them."""
    from flare.models import MODELS, model_options
    from flare.sequence.attention import ATTENTIONS
    from flare.sequence.classifier import known_settings

    names = {name for model in MODELS for name in model_options(model)}
    return {f"--model.{name}" for name in names.union(*map(known_settings, ATTENTIONS))}


def add_settings(parser: Any, **how: Any) -> None:
    """Add all settings of a training, those of `ALIASES` under a short name as well."""
    parser.add_class_arguments(TrainConfig, None, **how)
    options = parser._option_string_actions
    for setting, alias in ALIASES.items():
        options[alias] = options[f"--{setting}"]
        options[alias].option_strings.insert(0, alias)
    options["--model"].metavar = "NAME"
    for setting, text in HELP.items():
        options[f"--{setting}"].help = text


def with_model_name(words: Sequence[str]) -> Iterator[str]:
    """Replace `--model NAME` by `--model.name NAME`; `--model {...}` gives the whole model."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        is_name = name == "--model" and not (value if equals else following).startswith("{")
        yield f"--model.name{equals}{value}" if is_name else word
