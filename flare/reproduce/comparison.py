"""Models side by side on one dataset: a sweep of trainings whose ledger is in the output folder, and one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flare.data.dataset import Dataset
from flare.models import build_model, model_options
from flare.reproduce.jobs import Data, Training, Workspace
from flare.reproduce.ledger import Ledger
from flare.reproduce.pages import write_blocks
from flare.reproduce.study import MOST_SEEDS, Block, Cell, error_table, failures, outcomes, provenance
from flare.reproduce.sweep import sweep
from flare.train.field_task import FieldTask
from flare.train.presets import merged, preset_name, preset_path, read_yaml
from flare.train.recipes import with_grid, with_model
from flare.utils.errors import ConfigError, suggest_name


@dataclass(frozen=True)
class OwnData(Data):
    """An existing dataset folder of the user. `options` has its fingerprint."""

    path: Path = Path()

    @property
    def folder(self) -> str:
        return str(self.path.absolute())  # joined to another folder, an absolute path replaces it

    def make(self, folder: Path, files: Path, *, workers: int = 1, scheduler: str | None = None) -> None:
        """Do nothing: the dataset exists."""


@dataclass(frozen=True)
class ComparedTraining(Training):
    """A model on a dataset of the user with given settings."""

    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.model}-seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        return {**self.given, "seed": self.seed}


def compare_models(cells: Sequence[Cell], out: Path, *, seeds: int = 3, workers: int = 1) -> str:
    """Train models that have no record in `<out>/records`, and write `compare.md` with CSV and LaTeX into `out`.

    Args:
        cells: Cells from `model_cells`.
        out: Folder of records, runs and table.
        seeds: Number of seeds.
        workers: Worker processes.

    Returns:
        The table as Markdown, the lowest error first.
    """
    ledger = Ledger(out / "records")
    sweep([job for cell in cells for job in cell.jobs(seeds)], ledger, Workspace(out), workers=workers)
    found = sorted(outcomes(ledger, cells), key=lambda outcome: outcome.mean)
    more = {key: [f"{outcome.result.get(key, '')}" for outcome in found] for key in ("epochs", "steps")}
    table: list[Block] = ["Errors of the test samples:", error_table(("model",), found, more=more)]
    return write_blocks([*table, *failures(found), *provenance(found)], out, "compare", "flare compare")


def model_cells(
    preset: str, models: Sequence[str], seeds: int, recipe: str | None, overrides: Sequence[tuple[str, Any]]
) -> list[Cell]:
    """Return one cell per model, and check its settings before anything is trained.

    Args:
        preset: Name of a preset, or a YAML file.
        models: Names of models.
        seeds: Number of seeds.
        recipe: Model whose recipe all are trained with. None: each has its own.
        overrides: Settings of all runs. Sizes such as ("model.latents", 32) apply to the models that have them.

    Raises:
        ConfigError: A setting is unknown or does not fit a model.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"`seeds={seeds}` must be between 1 and {MOST_SEEDS}")
    path = preset_path(preset)
    base = read_yaml(path)
    records = {model: with_model(base, preset_name(path), model, recipe) for model in models}
    options = {model: {"name", *model_options(record["model"]["name"])} for model, record in records.items()}
    sizes = {name: name.removeprefix("model.") for name, _ in overrides if name.startswith("model.")}
    for size in sizes.values():
        if not any(size in known for known in options.values()):
            hint = suggest_name(size, set().union(*options.values()))
            raise ConfigError(f"none of {', '.join(records)} has an option {size!r}; {hint}")
    data = _own_data(Path(merged(base, overrides).get("data", {}).get("path", "")))
    cells = []
    for model, record in records.items():
        own = [(name, value) for name, value in overrides if name not in sizes or sizes[name] in options[model]]
        job = ComparedTraining(data, model, given=with_grid(merged(record, own)))
        _check_model(job)
        cells.append(Cell((model,), job))
    return cells


def _own_data(path: Path) -> OwnData:
    dataset = Dataset(path)
    options = {"fingerprint": dataset.fingerprint}
    return OwnData(dataset.schema.name, len(dataset), len(dataset.split("test")), options, path=path)


def _check_model(job: ComparedTraining) -> None:
    """Build a model once for its data, to find errors before hours of training."""
    config = job.config(Workspace(Path()))
    task = FieldTask(config.data, config.loss)
    schema, sizes = task.dataset.schema, {key: value for key, value in config.model.items() if key != "name"}
    try:
        task.check_grid(config.model)
        build_model(config.model["name"], schema.in_dim, schema.out_dim, **sizes)
    except ConfigError as error:
        raise ConfigError(f"{job.model}: {error}") from None
