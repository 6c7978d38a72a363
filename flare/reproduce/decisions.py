"""Where we decided otherwise than the paper's numbers were made, by the numbers of docs/discrepancies.md.

Those numbers are taken to be of the authors' code of November 2025, whose parameter counts Table 1 has; of the Long
Range Arena there is that of February 2026 alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from flare.data.benchmarks.cards import card
from flare.reproduce.classification import Classification
from flare.reproduce.jobs import Training


@dataclass(frozen=True)
class Decision:
    number: int
    """Its row in docs/discrepancies.md."""
    words: str
    """What we do, for a row of a table."""
    setting: str = ""
    """That switches it; empty where nothing does."""
    coded: Any = None
    """Its value in the authors' code."""
    models: Collection[str] = ()
    """Empty: all."""
    datasets: Collection[str] = ()
    """Empty: all."""
    kind: str = Training.kind
    """Of the jobs it is about: each kind has a code of its own."""

    def concerns(self, training: Training) -> bool:
        """Whether a training in the paper's sizes is done our way."""
        if training.kind != self.kind:
            return False
        if self.models and training.model not in self.models:
            return False
        if self.datasets and training.on.name not in self.datasets:
            return False
        return not self.setting or _value(training.settings(), self.setting) != self.coded


DECISIONS = (
    Decision(7, "blocks by the paper's count, 4, not by its code, 8", "model.blocks", 8, ["lno"], ["airfoil", "pipe"]),
    Decision(9, "sees the coefficient, which the authors' code loses", "", None, ["transolver-conv"], ["darcy"]),
    Decision(
        10,
        "GNOT inputs: ours, true ones as its function",
        "model.published",
        True,
        ["gnot"],
        ["darcy", "airfoil", "pipe"],
    ),
    Decision(12, "trained without the authors' offset", "loss.offset", card("lpbf").paper_offset, datasets=["lpbf"]),
    Decision(15, "norms without weight decay", "optim.undecayed", ["biases", "latents"]),
    Decision(
        15,
        "latents without weight decay",
        "optim.undecayed",
        ["biases", "norms", "embeddings"],
        ["flare"],
        kind=Classification.kind,
    ),
)


def decided(training: Training) -> list[str]:
    """`GNOT inputs: ours (#10)`: what of a training, in the paper's sizes, is ours and not the authors'."""
    return [f"{decision.words} (#{decision.number})" for decision in DECISIONS if decision.concerns(training)]


def _value(settings: Any, key: str) -> Any:
    """At a dotted key; None where there is none."""
    for part in key.split("."):
        settings = settings.get(part, {})
    return settings if settings != {} else None
