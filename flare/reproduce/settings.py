"""Differences between the setting of a training here and that of the paper's number, as a table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flare.data.benchmarks.cards import card, card_names
from flare.physics import generator_class
from flare.reproduce.jobs import Data, Training
from flare.reproduce.study import Block, Cell, Outcome
from flare.reproduce.tables import Table
from flare.utils.errors import differences


@dataclass(frozen=True)
class Decision:
    """A setting in which we differ from the authors' code, which most probably made the paper's numbers.

    The code is that of November 2025, whose parameter counts are those of Table 1; for the Long Range Arena it is that
    of February 2026.
    """

    number: int
    """Row in docs/paper/discrepancies.md."""
    setting: str
    coded: Any
    """Value in the authors' code."""
    models: Collection[str] = ()
    """Models it concerns. Empty: all."""
    datasets: Collection[str] = ()
    """Datasets it concerns. Empty: all."""
    kind: str = Training.kind
    """Kind of job it concerns."""
    ours: str = ""
    """Our choice, if no setting of a training has it."""

    def concerns(self, training: Training) -> bool:
        """Return whether a training in the paper's sizes differs from the authors' code in this setting."""
        if training.kind != self.kind:
            return False
        if self.models and training.model not in self.models:
            return False
        if self.datasets and training.on.name not in self.datasets:
            return False
        return bool(self.ours) or _value(training.settings(), self.setting) != self.coded


DECISIONS = (
    Decision(7, "model.blocks", 8, ["lno"], ["airfoil", "pipe"]),
    Decision(9, "coefficient as input", "no", ["transolver-conv"], ["darcy"], ours="yes"),
    Decision(10, "model.published", True, ["gnot"], ["darcy", "airfoil", "pipe"]),
    Decision(12, "loss.offset", card("lpbf").paper_offset, datasets=["lpbf"]),
    Decision(15, "optim.undecayed", ["biases", "latents"]),
    Decision(15, "optim.undecayed", ["biases", "norms", "embeddings"], ["flare"], kind="classification"),
)


class SettingDifference(NamedTuple):
    """One setting that differs from the paper's."""

    setting: str
    here: str
    paper: str
    discrepancy: str = ""
    """Row of docs/paper/discrepancies.md that explains it, such as `#15`."""


def differences_of(cell: Cell) -> list[SettingDifference]:
    """List the settings in which the training of a cell differs from the paper's, and from the authors' code."""
    ours = cell.job if isinstance(cell.job, Training) else cell.job.training
    if ours is None or cell.exact is None:
        return []
    found = {} if ours.on.published else {each.setting: each for each in _data_differences(ours.on, cell.exact.on)}
    for key, there, here in differences(cell.exact.relevant_settings(), ours.relevant_settings()):
        if key != "seed":
            number = f"#{cell.discrepancies[key]}" if key in cell.discrepancies else ""
            found[key] = SettingDifference(key, _text(here), _text(there), number)
    for decision in (each for each in DECISIONS if each.concerns(cell.exact)):
        key, coded = decision.setting, f"code: {_text(decision.coded)}"
        here = decision.ours or _text(_value(ours.settings(), key))
        paper = f"{found[key].paper}, {coded}" if key in found else coded
        found[key] = SettingDifference(key, here, paper, f"#{decision.number}")
    return list(found.values())


def settings_table(found: Sequence[Outcome]) -> list[Block]:
    """Build a table of the settings that differ from the paper's, one row per dataset, after its title.

    Returns:
        The title and the table; nothing if no setting differs.
    """
    by_dataset: dict[str, list[Cell]] = {}
    for outcome in found:
        if outcome.cell.job.data is not None:
            by_dataset.setdefault(outcome.cell.job.data.name, []).append(outcome.cell)
    rows = []
    for dataset, cells in by_dataset.items():
        values: dict[str, dict[str, None]] = {}
        names: dict[str, list[str]] = {}
        for cell in cells:
            for setting, here, *paper in differences_of(cell):
                values.setdefault(setting, {})[f"{here} ({'; '.join(filter(None, paper))})"] = None
                names.setdefault(setting, []).append("/".join(cell.parts[1:]))
        texts = {setting: f"{setting} {' or '.join(values[setting])}" for setting in sorted(values)}
        shared = [text for setting, text in texts.items() if len(names[setting]) == len(cells)]
        own = [f"{text}: {', '.join(names[key])}" for key, text in texts.items() if len(names[key]) < len(cells)]
        if values:
            rows.append((dataset, "; ".join(shared), "; ".join(own)))
    title = "Settings that differ from the paper's, which are in parentheses:"
    return [title, Table(("dataset", "all cells", "some cells"), rows, text=3)] if rows else []


def _data_differences(data: Data, full: Data) -> Iterable[SettingDifference]:
    """Compare source, number of samples and resolution of a dataset with the paper's."""
    original = data.name in card_names() and card(data.name).stands_in_for
    yield SettingDifference(
        "data", f"{data.name}, a stand-in" if original else "made by flare", original or "published files"
    )
    if (data.samples, data.test) != (full.samples, full.test):
        counts = [f"{each.samples - each.test} + {each.test}" for each in (data, full)]
        yield SettingDifference("samples (train + test)", *counts)
    if not data.options:
        return
    usual = generator_class(data.name)()
    here, there = generator_class(data.name)(**data.options).schema().grid, usual.schema().grid
    if here and there and here != there:
        yield SettingDifference("grid", *("×".join(map(str, grid)) for grid in (here, there)))
    for key, value in data.options.items():
        yield SettingDifference(f"data option {key}", _text(value), _text(getattr(usual, key)))


def _text(value: Any) -> str:
    """Format the value of a setting."""
    if isinstance(value, Mapping):
        return str(value.get("kind", dict(value)))
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    if value is None:
        return "default"
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _value(settings: Any, key: str) -> Any:
    """Return the setting at a dotted key, None if it is not set."""
    for part in key.split("."):
        settings = settings.get(part, {})
    return settings if settings != {} else None
