"""Models side by side on one dataset: equal epochs, several seeds, one table with the spread.

Every run has a folder of its own, `<out>/<model>/seed-<n>`. What is finished is not trained again, so a comparison that
was stopped goes on with the same command. A model that diverges is said to, and the others go on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flare.models import build_model, check_options, model_options
from flare.reproduce.runs import train_all
from flare.train.config import TrainConfig
from flare.train.field_task import FieldTask
from flare.train.presets import build_config, merged, preset_name, preset_path, read_yaml
from flare.train.recipes import with_grid, with_model
from flare.utils.errors import ConfigError, nearest
from flare.utils.files import replacing, write_json


@dataclass(frozen=True)
class Row:
    """What the seeds of one model gave."""

    model: str
    parameters: int
    batch: int
    steps: int
    errors: list[float]
    """Relative L2 on the test split, one for each seed that came to its end."""
    seconds: list[float]
    diverged: int
    """Seeds that did not."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.errors) if self.errors else float("inf")

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for one seed, which has none."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None


def configurations(
    preset: str, models: Iterable[str], seeds: int, recipe: str | None, overrides: Sequence[tuple[str, Any]]
) -> dict[tuple[str, int], TrainConfig]:
    """(model, seed) -> settings. Wrong ones show themselves before anything is trained.

    Args:
        overrides: hold for all; a size of a model, such as ("model.latents", 32), for every model that has it.
    """
    path = preset_path(preset)
    base = read_yaml(path)
    records = {model: with_model(base, preset_name(path), model, recipe) for model in models}
    options = {model: {"name", *model_options(record["model"]["name"])} for model, record in records.items()}
    for name, _ in overrides:
        size = name.removeprefix("model.")
        if name.startswith("model.") and not any(size in known for known in options.values()):
            raise ConfigError(f"none of {', '.join(records)} has an option {size!r}; {nearest(size, _all(options))}")
    found: dict[tuple[str, int], TrainConfig] = {}
    for model, record in records.items():
        own = [(n, v) for n, v in overrides if not n.startswith("model.") or n.removeprefix("model.") in options[model]]
        settings = with_grid(merged(record, own))
        configs = [build_config(settings | {"seed": seed}, f"{model} on {path}") for seed in range(seeds)]
        _try(model, configs[0])
        found |= {(model, seed): config for seed, config in enumerate(configs)}
    return found


def _all(options: Mapping[str, set[str]]) -> set[str]:
    return set().union(*options.values())


def _try(model: str, config: TrainConfig) -> None:
    """Build it for its data once, to hear now what would be said hours later."""
    sizes = {key: value for key, value in config.model.items() if key != "name"}
    name = config.model["name"]
    check_options(name, sizes)
    task = FieldTask(config.data, config.loss)
    task.check_grid(config.model)
    try:
        build_model(name, task.dataset.schema.in_dim, task.dataset.schema.out_dim, **sizes)
    except ConfigError as error:
        raise ConfigError(f"{model}: {error}") from None


def compare(
    wanted: Mapping[tuple[str, int], TrainConfig],
    out: Path,
    tell: Callable[[str], None] = print,
    *,
    recipe: str | None = None,
) -> list[Row]:
    """Train what is not trained yet, and write `table.json` and `table.md` into `out`; the best model comes first."""
    results = train_all(wanted, out, tell)
    rows = sorted((_row(model, wanted[model, 0], of) for model, of in results.items()), key=lambda row: row.mean)
    done = [result for of_model in results.values() for result in of_model if result]
    if done:
        about = {key: done[0][key] for key in ("dataset", "train_samples", "test_samples", "epochs", "environment")}
        about["rel_l2_mean_field"] = done[0]["rel_l2_mean_field"]
        about["recipe"] = recipe or "own"
        about["commits"] = sorted({result["environment"]["commit"] for result in done})
        write_json(out / "table.json", {**about, "rows": [asdict(row) for row in rows]})
        with replacing(out / "table.md") as temporary:
            temporary.write_text(table(rows, about), encoding="utf-8")
    return rows


def _row(model: str, config: TrainConfig, results: Sequence[Mapping[str, Any] | None]) -> Row:
    done = [result for result in results if result]
    return Row(
        model=model,
        parameters=done[0]["parameters"] if done else 0,
        batch=config.data.batch_size,
        steps=done[0]["steps"] if done else 0,
        errors=[result["rel_l2"] for result in done],
        seconds=[result["seconds"] for result in done],
        diverged=len(results) - len(done),
    )


def table(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Markdown, with a line on how it was made."""
    baseline = about["rel_l2_mean_field"]
    lines = ["| model | parameters | batch | steps | test rel-L2 | seeds |", "|---|---:|---:|---:|---:|---:|"]
    for row in rows:
        spread = "" if row.spread is None else f" ± {row.spread:.4f}"
        verdict = "diverged" if not row.errors else f"{row.mean:.4f}{spread}"
        if row.errors and row.mean >= baseline:
            verdict += ", no better than the mean field"
        seeds = f"{len(row.errors)}" + (f", {row.diverged} diverged" if row.diverged else "")
        lines.append(f"| {row.model} | {row.parameters:,} | {row.batch} | {row.steps:,} | {verdict} | {seeds} |")
    facts = about["environment"]
    recipe = (
        "each model with its own recipe" if about["recipe"] == "own" else f"all with the recipe of {about['recipe']}"
    )
    lines += [
        "",
        f"{about['dataset']}, {about['train_samples']:,} training and {about['test_samples']:,} test samples, "
        f"{about['epochs']} epochs, {recipe}; mean ± standard deviation over seeds, last weights. The training-mean "
        f"field has {baseline:.4f}. Made by flare {facts['flare']} at {', '.join(about['commits'])} with torch "
        f"{facts['torch']} on {facts['processor']}.",
    ]
    return "\n".join(lines) + "\n"
