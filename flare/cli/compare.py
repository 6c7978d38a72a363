"""`flare compare`: train several models on one dataset with several seeds, and print one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flare.cli import count, make_parser, parse
from flare.cli.train import add_settings
from flare.train.presets import dotted, preset_names, preset_path, read_yaml
from flare.train.recipes import needs_grid, predicts_fields, recipe_names
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.terminal import print_status

EPILOG = """examples:
  flare compare --preset small --out runs/compare
  flare compare --preset small --models flare,lno,transolver --seeds 5 --epochs 20 --out runs/three
  flare compare --preset elasticity --recipe flare --out runs/common     all with the recipe of FLARE

Records are in OUT/records, run folders in OUT/runs, the table in OUT/compare.md and, as CSV and LaTeX, in OUT/tables.
Repeat the command to resume a stopped comparison.
A size such as --model.channels 32 applies to every model that has it."""
GROUPS = {
    "dataset and output": "preset data.path out",
    "models": "models recipe",
    "training": "seeds epochs data.batch_size optim.lr optim.name",
    "machine": "workers device precision",
}


def run(words: Sequence[str]) -> None:
    """Run the command."""
    about = "Train models side by side with equal epochs, and tabulate their errors."
    parser = make_parser("compare", about, EPILOG, GROUPS)
    parser.add_argument("--preset", required=True, help=f"the dataset: {', '.join(preset_names())}, or a YAML file")
    parser.add_argument("--models", help=f"such as flare,lno; default all: {', '.join(recipe_names())}")
    parser.add_argument("--seeds", type=count, default=3, help="runs of every model, with seeds 0, 1, ...")
    parser.add_argument("--workers", type=count, help="processes of one thread; default number of GPUs, or of cores")
    parser.add_argument("--recipe", help="train all models with the recipe of this one; default: each with its own")
    parser.add_argument("-o", "--out", help="folder of the runs and the table; default runs/compare-<preset>")
    add_settings(parser, skip={"seed"})
    if any(word.split("=")[0] == "--model" for word in words):
        raise ConfigError("--model is not an option of compare; name the models with --models, such as flare,lno")
    given = parse(parser, words, needs_words=True, defaults=False).as_dict()
    preset, models, recipe, out = (given.pop(name, None) for name in ("preset", "models", "recipe", "out"))
    seeds, workers = given.pop("seeds", 3), given.pop("workers", None)
    if not preset:
        raise ConfigError("--preset is required, such as --preset small")
    if not predicts_fields(read_yaml(preset_path(preset))):
        raise ConfigError(f"--preset {preset} has sequences; compare attentions with:  flare reproduce table2")
    overrides = list(dotted(given))

    from flare.reproduce.comparison import compare_models, model_cells
    from flare.reproduce.sweep import default_workers

    cells = model_cells(preset, _names(models, preset, overrides), seeds, recipe, overrides)
    folder = Path(out or f"runs/compare-{Path(preset).stem}")
    print(compare_models(cells, folder, seeds=seeds, workers=workers or default_workers()), end="")


def _names(models: str | None, preset: str, overrides: list[tuple[str, object]]) -> list[str]:
    """Return the models of `--models`, or all that can read the data: some need a grid."""
    if models is not None:
        names = [name.strip() for name in models.split(",")]
        for name in names:
            if name not in recipe_names():
                raise ConfigError(f"unknown model {name!r}; {suggest_name(name, recipe_names())}")
        return names
    from flare.data.dataset import Dataset

    path = dict(overrides).get("data.path") or read_yaml(preset_path(preset)).get("data", {}).get("path", "")
    if Dataset(str(path)).schema.grid is not None:
        return recipe_names()
    print_status(f"{path} has no grid: skipping {', '.join(name for name in recipe_names() if needs_grid(name))}")
    return [name for name in recipe_names() if not needs_grid(name)]
