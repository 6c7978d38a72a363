"""`flare compare`: several models on one dataset, several seeds, one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flare.cli import parse
from flare.cli.options import make_parser
from flare.cli.train import dotted
from flare.train.config import TrainConfig
from flare.train.presets import preset_names, preset_path, read_yaml
from flare.train.recipes import model_name, needs_grid, recipe_names
from flare.utils.errors import ConfigError, nearest
from flare.utils.terminal import say

EPILOG = """examples:
  flare compare --preset small --out runs/compare
  flare compare --preset small --models flare,lno,transolver --seeds 5 --epochs 20 --out runs/three
  flare compare --preset elasticity --recipe flare --out runs/common     all trained as FLARE is

Runs are in OUT/<model>/seed-<n>, the table in OUT/table.md. A comparison that was stopped goes on with the same
command. A size such as --model.channels 32 holds for every model that has it."""


def run(words: Sequence[str]) -> int:
    parser = make_parser("compare", "Train models side by side, equal epochs, and write a table with spread.", EPILOG)
    parser.add_argument("--preset", required=True, help=f"the dataset: {', '.join(preset_names())}, or a YAML file")
    parser.add_argument("--models", help=f"such as flare,lno; default all: {', '.join(recipe_names())}")
    parser.add_argument("--seeds", type=int, default=3, help="runs of every model, with seeds 0, 1, ...")
    parser.add_argument("--recipe", help="train all as this model is trained; default: each as itself")
    parser.add_argument("--out", help="folder of the runs and the table; default runs/compare-<preset>")
    parser.add_class_arguments(TrainConfig, None, skip={"seed"})
    if any(word.split("=")[0] == "--model" for word in words):
        raise ConfigError("say which models with --models, such as --models flare,lno")
    given = parse(parser, words, defaults=False).as_dict()
    preset, models, recipe, out = (given.pop(name, None) for name in ("preset", "models", "recipe", "out"))
    seeds = given.pop("seeds", 3)
    if not preset:
        raise ConfigError("say what to compare on with --preset, such as --preset small")
    if model_name(read_yaml(preset_path(preset))) == "sequence":
        raise ConfigError("flare compare is for fields; attentions of sequences are compared by:  flare experiment lra")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: the runs of every model, at least 1")
    folder = Path(out or f"runs/compare-{Path(preset).stem}")
    overrides = list(dotted(given))
    return _compare(preset, _names(models, preset, overrides), seeds, recipe, overrides, folder)


def _names(models: str | None, preset: str, overrides: list[tuple[str, object]]) -> list[str]:
    if models is None:
        return _that_fit(preset, overrides)
    names = [name.strip() for name in models.split(",")]
    for name in names:
        if name not in recipe_names():
            raise ConfigError(f"there is no model {name!r}; {nearest(name, recipe_names())}")
    return names


def _that_fit(preset: str, overrides: list[tuple[str, object]]) -> list[str]:
    """All, but for those that read grids where the data are none."""
    from flare.data.dataset import Dataset

    path = dict(overrides).get("data.path") or read_yaml(preset_path(preset)).get("data", {}).get("path", "")
    if Dataset(str(path)).schema.grid is not None:
        return recipe_names()
    left_out = [name for name in recipe_names() if needs_grid(name)]
    say(f"{path} has no grid: without {', '.join(left_out)}")
    return [name for name in recipe_names() if name not in left_out]


def _compare(
    preset: str, models: list[str], seeds: int, recipe: str | None, overrides: list[tuple[str, object]], folder: Path
) -> int:
    from flare.reproduce.items.compare import compare, configurations
    from flare.train.signals import Interrupted

    wanted = configurations(preset, models, seeds, recipe, overrides)
    try:
        rows = compare(wanted, folder, say, recipe=recipe)
    except Interrupted as stop:
        say("saved. Give the same command again to go on")
        raise SystemExit(stop.exit_code) from None
    if rows:
        print((folder / "table.md").read_text(encoding="utf-8") if any(row.errors for row in rows) else "", end="")
    return 0
