"""Train models or attentions side by side on one dataset, with several seeds, and tabulate them.

Every run has a folder of its own, `<out>/<name>/seed-<n>`. Finished runs are not trained again, so a stopped comparison
resumes with the same command. A model that diverges is recorded as such, and the others continue.
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flare.models import build_model, check_options, model_options
from flare.reproduce.sequences import ATTENTIONS, PAPER, attention_settings
from flare.reproduce.tables import Table, facts_table
from flare.sequence import COMMANDS, SHORT_LISTOPS, SHORT_SIZES
from flare.sequence.listops import ListOps
from flare.sequence.store import generate_sequences
from flare.train.config import TrainConfig
from flare.train.field_task import FieldTask
from flare.train.presets import build_config, merged, preset_name, preset_path, read_yaml
from flare.train.recipes import with_grid, with_model
from flare.train.run import start_or_resume
from flare.train.tasks import make_task
from flare.utils.errors import ConfigError, DataError, TrainingDiverged, suggest_name
from flare.utils.files import replace_atomically, write_json
from flare.utils.text import duration

logger = logging.getLogger(__name__)

Configs = dict[tuple[str, int], TrainConfig]
"""(name, seed) -> settings."""
Row = dict[str, Any]
BEGIN, END = "<!-- lra table -->", "<!-- end of lra -->"


def train_all(wanted: Configs, out: Path) -> dict[str, list[dict[str, Any] | None]]:
    """Train or resume every run in `<out>/<name>/seed-<n>`.

    Returns:
        Name -> result of each seed, None for one that diverged. Under torchrun only the first rank has results.
    """
    results: dict[str, list[dict[str, Any] | None]] = {}
    for number, ((name, seed), config) in enumerate(wanted.items(), 1):
        logger.info("%d/%d: %s, seed %d", number, len(wanted), name, seed)
        try:
            result = start_or_resume(config, out / name / f"seed-{seed}")
        except TrainingDiverged as error:
            logger.warning("%s, seed %d: %s", name, seed, error)
            results.setdefault(name, []).append(None)
            continue
        if result:
            results.setdefault(name, []).append(result)
    return results


def model_configs(
    preset: str, models: Iterable[str], seeds: int, recipe: str | None, overrides: Sequence[tuple[str, Any]]
) -> Configs:
    """Return the settings of every model and seed, and check them before anything is trained.

    Args:
        preset: Name of a preset, or a YAML file.
        models: Names of models.
        seeds: Number of seeds.
        recipe: Model whose recipe all are trained with. None: each has its own.
        overrides: Settings of all runs. Sizes such as ("model.latents", 32) apply to the models that have them.

    Raises:
        ConfigError: A setting is unknown or does not fit a model.
    """
    path = preset_path(preset)
    base = read_yaml(path)
    records = {model: with_model(base, preset_name(path), model, recipe) for model in models}
    options = {model: {"name", *model_options(record["model"]["name"])} for model, record in records.items()}
    for name, _ in overrides:
        size = name.removeprefix("model.")
        if name.startswith("model.") and not any(size in known for known in options.values()):
            hint = suggest_name(size, set().union(*options.values()))
            raise ConfigError(f"none of {', '.join(records)} has an option {size!r}; {hint}")
    found: Configs = {}
    for model, record in records.items():
        own = [(n, v) for n, v in overrides if not n.startswith("model.") or n.removeprefix("model.") in options[model]]
        settings = with_grid(merged(record, own))
        configs = [build_config(settings | {"seed": seed}, f"{model} on {path}") for seed in range(seeds)]
        _check_model(model, configs[0])
        found |= {(model, seed): config for seed, config in enumerate(configs)}
    return found


def _check_model(model: str, config: TrainConfig) -> None:
    """Build a model once for its data, to find errors before hours of training."""
    sizes = {key: value for key, value in config.model.items() if key != "name"}
    name = config.model["name"]
    check_options(name, sizes)
    task = FieldTask(config.data, config.loss)
    task.check_grid(config.model)
    try:
        build_model(name, task.dataset.schema.in_dim, task.dataset.schema.out_dim, **sizes)
    except ConfigError as error:
        raise ConfigError(f"{model}: {error}") from None


def compare_models(wanted: Configs, out: Path, *, recipe: str | None = None) -> list[Row]:
    """Train models, and write `table.json` and `table.md` into `out`.

    Args:
        wanted: Settings from `model_configs`.
        out: Folder of runs and table.
        recipe: Model whose recipe all have, for the table.

    Returns:
        The rows of `table.json`, the lowest error first.
    """
    results = train_all(wanted, out)
    rows = [
        _common(of) | {"model": model, "batch": wanted[model, 0].data.batch_size} | _errors(of)
        for model, of in results.items()
    ]
    rows.sort(key=lambda row: statistics.mean(row["errors"]) if row["errors"] else float("inf"))
    done = [result for of_model in results.values() for result in of_model if result]
    if done:
        about = {key: done[0][key] for key in ("dataset", "train_samples", "test_samples", "epochs", "environment")}
        about["rel_l2_mean_field"] = done[0]["rel_l2_mean_field"]
        about["recipe"] = recipe or "own"
        _write(out, about | {"commits": _commits(done), "rows": rows}, model_table)
    return rows


def _common(results: Sequence[Mapping[str, Any] | None]) -> Row:
    done = [result for result in results if result]
    return {
        "parameters": done[0]["parameters"] if done else 0,
        "seconds": [result["seconds"] for result in done],
        "diverged": len(results) - len(done),
    }


def _errors(results: Sequence[Mapping[str, Any] | None]) -> Row:
    done = [result for result in results if result]
    return {"steps": done[0]["steps"] if done else 0, "errors": [result["rel_l2"] for result in done]}


def _commits(done: Sequence[Mapping[str, Any]]) -> list[str]:
    return sorted({result["environment"]["commit"] for result in done})


def _write(out: Path, record: Row, table: Any) -> str:
    """Write `table.json` and `table.md`, and return the latter."""
    write_json(out / "table.json", record)
    text: str = table(record)
    with replace_atomically(out / "table.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def model_table(record: Mapping[str, Any]) -> str:
    """Return the table of a comparison of models as Markdown."""
    rows = [
        (
            *(row["model"], f"{row['parameters']:,}", f"{row['batch']}", f"{row['steps']:,}"),
            *(_mean(row["errors"], 1.0, 4), f"{len(row['errors'])}", f"{row['diverged']}"),
        )
        for row in record["rows"]
    ]
    rows.append(("mean field", "", "", "", f"{record['rel_l2_mean_field']:.4f}", "", ""))
    table = Table(("model", "parameters", "batch", "steps", "test rel-L2", "seeds", "diverged"), rows)
    keys = ("dataset", "train_samples", "test_samples", "epochs", "recipe")
    return f"{table.markdown()}\n{_facts(record, {key: record[key] for key in keys})}"


def _facts(record: Mapping[str, Any], settings: dict[str, Any]) -> str:
    made = record["environment"]
    machine = {"flare": made["flare"], "commit": ", ".join(record["commits"]), "torch": made["torch"]}
    return facts_table(settings | machine | {"processor": made["processor"]}).markdown()


def _mean(values: Sequence[float], unit: float, places: int) -> str:
    """Format mean and standard deviation; empty without values."""
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values) / unit:.{places}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values) / unit:.{places}f}{spread}"


def run(
    out: Path,
    *,
    tasks: Iterable[str],
    attentions: Sequence[str] = ATTENTIONS,
    seeds: int = 3,
    data: Path = Path("data"),
    overrides: Sequence[tuple[str, Any]] = (),
    samples: int | None = None,
    workers: int = 1,
) -> str:
    """Train attentions on tasks of the Long Range Arena, and tabulate their accuracies.

    Args:
        out: Folder of the runs. Each task has its `table.json` and `table.md` in `<out>/<task>`.
        tasks: Presets such as `listops-small`. Data of a task are in the folder of that name in `data`. Those of
            `listops-small` are generated if they are missing.
        attentions: Names in `VARIANTS`.
        seeds: Number of seeds.
        data: Folder of the datasets.
        overrides: Settings in place of those of the presets, such as ("steps", 100).
        samples: Number of generated samples of `listops-small`. None: that of the preset.
        workers: Processes that generate samples.

    Returns:
        One table per task, as Markdown.
    """
    wanted = {}
    for task in tasks:
        folder = data / task
        if task == "listops-small":  # an existing dataset is checked, not generated again
            usual = SHORT_SIZES["samples"]
            sizes: Any = {name: count * (samples or usual) // usual for name, count in SHORT_SIZES.items()}
            generate_sequences(ListOps(**SHORT_LISTOPS), folder, **sizes, seed=0, workers=workers)
        wanted[task] = attention_configs(task, attentions, seeds, folder, overrides)
    return "\n".join(_compare_attentions(task, of_task, out / task) for task, of_task in wanted.items())


def attention_configs(
    task: str, attentions: Sequence[str], seeds: int, data: Path, overrides: Sequence[tuple[str, Any]]
) -> Configs:
    """Return the settings of every attention and seed on a task, and check them before anything is trained."""
    name = f"lra/{task}"
    if not data.exists():
        raise DataError(f"{data} does not exist; make it with:  {COMMANDS[task]} --out {data}")
    found: Configs = {}
    for attention in attentions:
        settings = attention_settings(task, attention, [("data.path", str(data)), *overrides])
        configs = [build_config(settings | {"seed": seed}, f"{attention} on {name}") for seed in range(seeds)]
        try:
            make_task(configs[0]).surrogate(configs[0].model)
        except ConfigError as error:
            raise ConfigError(f"{attention} on {name}: {error}") from None
        found |= {(attention, seed): config for seed, config in enumerate(configs)}
    return found


def _compare_attentions(task: str, wanted: Configs, out: Path) -> str:
    results = train_all(wanted, out)
    done = [result for of_attention in results.values() for result in of_attention if result]
    if not done:
        logger.warning("%s: no run has finished", task)
        return ""
    rows = [_common(of) | {"contender": name, "accuracy": _accuracies(of)} for name, of in results.items()]
    rows.sort(key=lambda row: -statistics.mean(list(row["accuracy"].values())[-1]) if row["accuracy"] else 0.0)
    same = ("dataset", "provenance", "departures", "train_samples", "samples", "steps", "guesses", "protocol")
    about = {"task": task} | {key: done[0][key] for key in (*same, "environment")}
    return _write(out, about | {"commits": _commits(done), "rows": rows}, attention_table)


def _accuracies(results: Sequence[Mapping[str, Any] | None]) -> dict[str, list[float]]:
    done = [result for result in results if result]
    splits = done[0]["accuracy"] if done else {}
    return {split: [result["accuracy"][split] for result in done] for split in splits}


def attention_table(record: Mapping[str, Any]) -> str:
    """Return the table of a comparison of attentions as Markdown: the best first, then the trivial baselines."""
    splits = list(next(row for row in record["rows"] if row["accuracy"])["accuracy"])
    # Numbers of the paper are shown only for its own form of a task.
    paper = {} if record["departures"] else PAPER.get(record["task"], {})
    rows = []
    for row in record["rows"]:
        shares = [_mean(row["accuracy"].get(split, ()), 0.01, 1) for split in splits]
        seconds = duration(statistics.mean(row["seconds"])) if row["seconds"] else ""
        theirs = [f"{paper[row['contender']]:.2f}" if row["contender"] in paper else ""] * bool(paper)
        seeds = (f"{len(row['seconds'])}", f"{row['diverged']}")
        rows.append((row["contender"], f"{row['parameters']:,}", *shares, seconds, *seeds, *theirs))
    for kind, of in record["guesses"].items():
        rows.append((kind, "", *(f"{100 * of[split]:.1f}" for split in splits), "", "", "", *[""] * bool(paper)))
    head = ["attention", "parameters", *(f"{split}, %" for split in splits), "training", "seeds", "diverged"]
    table = Table(head + ["paper (dev split, no mask), %"] * bool(paper), rows)
    settings = {key: record[key] for key in ("task", "dataset", "provenance", "train_samples")}
    settings |= {f"{split} samples": count for split, count in record["samples"].items()}
    settings |= record["departures"] | {"steps": record["steps"], "protocol": record["protocol"]}
    return f"{table.markdown()}\n{_facts(record, settings)}"
