"""Models side by side on one dataset: equal epochs, several seeds, one table with the spread.

Every run has a folder of its own, `<out>/<model>/seed-<n>`. What is finished is not trained again, so a comparison that
was stopped goes on with the same command.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flare.files import replacing, write_json
from flare.models import check_options
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.recipes import with_model
from flare.train.run import RunFolder
from flare.train.start import resume, start


@dataclass(frozen=True)
class Row:
    """What the seeds of one model gave."""

    model: str
    parameters: int
    errors: list[float]
    """Relative L2 on the test split, one for each seed."""
    steps: int
    seconds: list[float]

    @property
    def mean(self) -> float:
        return statistics.mean(self.errors)

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for one seed, which has none."""
        return statistics.stdev(self.errors) if len(self.errors) > 1 else None


def configurations(
    preset: str, models: Iterable[str], seeds: int, recipe: str | None, overrides: Sequence[tuple[str, Any]]
) -> dict[tuple[str, int], TrainConfig]:
    """(model, seed) -> settings; the overrides hold for all. Wrong ones show themselves before anything is trained."""
    path = preset_path(preset)
    base = read_yaml(path)
    found = {}
    for model in models:
        record = merged(with_model(base, path.stem, model, recipe), overrides)
        sizes = {key: value for key, value in record["model"].items() if key != "name"}
        check_options(record["model"]["name"], sizes)
        for seed in range(seeds):
            found[model, seed] = build_config(record | {"seed": seed}, f"{model} on {path}")
    return found


def compare(wanted: Mapping[tuple[str, int], TrainConfig], out: Path, tell: Callable[[str], None] = print) -> list[Row]:
    """Train what is not trained yet, and write `table.json` and `table.md` into `out`; the best model comes first."""
    results: dict[str, list[dict[str, Any]]] = {}
    for number, ((model, seed), config) in enumerate(wanted.items(), 1):
        tell(f"{number}/{len(wanted)}: {model}, seed {seed}")
        folder = out / model / f"seed-{seed}"
        result = resume(folder, expected=config) if RunFolder(folder).exists else start(config, folder)
        if result:  # only the first rank has one
            results.setdefault(model, []).append(result)
    rows = sorted((_row(model, of_seeds) for model, of_seeds in results.items()), key=lambda row: row.mean)
    if rows:
        first = next(iter(results.values()))[0]
        about = {key: first[key] for key in ("dataset", "train_samples", "test_samples", "epochs", "environment")}
        about["rel_l2_mean_field"] = first["rel_l2_mean_field"]
        write_json(out / "table.json", {**about, "rows": [asdict(row) for row in rows]})
        with replacing(out / "table.md") as temporary:
            temporary.write_text(table(rows, about), encoding="utf-8")
    return rows


def _row(model: str, results: Sequence[Mapping[str, Any]]) -> Row:
    return Row(
        model=model,
        parameters=results[0]["parameters"],
        errors=[result["rel_l2"] for result in results],
        steps=results[0]["steps"],
        seconds=[result["seconds"] for result in results],
    )


def table(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Markdown, with a line on how it was made."""
    lines = ["| model | parameters | test rel-L2 | seeds |", "|---|---:|---:|---:|"]
    for row in rows:
        spread = "" if row.spread is None else f" ± {row.spread:.4f}"
        lines.append(f"| {row.model} | {row.parameters:,} | {row.mean:.4f}{spread} | {len(row.errors)} |")
    facts = about["environment"]
    lines += [
        "",
        f"{about['dataset']}, {about['train_samples']:,} training and {about['test_samples']:,} test samples, "
        f"{about['epochs']} epochs; mean ± standard deviation over seeds, last weights. The training-mean field has "
        f"{about['rel_l2_mean_field']:.4f}. Made by flare {facts['flare']} at {facts['commit']} with torch "
        f"{facts['torch']} on {facts['processor']}.",
    ]
    return "\n".join(lines) + "\n"
