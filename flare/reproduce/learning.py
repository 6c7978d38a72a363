"""Learning curves: error on the test split while a model is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flare.report.ablation import Series, error_curves
from flare.report.page import png
from flare.report.style import Look, look_of_model
from flare.reproduce.ledger import Record
from flare.reproduce.study import Picture

ENOUGH = 4
"""Evaluations that make a curve."""


def learning_curves(name: str, caption: str, records: Mapping[str, Record]) -> list[Picture]:
    """A picture with a curve for every record, by label, that was looked at often enough; none where no one was."""
    lines = {}
    for label, record in records.items():
        curve = record.result.get("curve", [])
        if len(curve) >= ENOUGH:
            epochs, errors = zip(*curve, strict=True)
            lines[label] = Series([float(e) for e in epochs], list(errors), [0.0] * len(curve), [None] * len(curve))
    if not lines:
        return []
    # Of the data, and so the same for all; the record of an unfinished training has none yet.
    mean_field = next((m for label in lines if (m := records[label].result.get("rel_l2_mean_field"))), None)
    if mean_field is not None:
        caption += " Dashed: the mean field of the training samples."
    looks = {label: look_of_model(label) for label in lines}
    return [
        Picture(name, caption, png(error_curves(lines, axis="epoch", log=False, mean_field=mean_field, looks=looks)))
    ]


def cpu_curves(
    name: str, caption: str, curves: Mapping[str, Sequence[tuple[float, float]]], looks: Mapping[str, Look]
) -> list[Picture]:
    """Draw errors over CPU minutes.

    Args:
        name: Name of the picture.
        caption: Its caption.
        curves: Label -> pairs of CPU seconds and error.
        looks: Label -> look of the curve.

    Returns:
        One picture; none if no curve has two points.
    """
    lines = {
        label: Series([s / 60 for s, _ in curve], [e for _, e in curve], [0.0] * len(curve), [None] * len(curve))
        for label, curve in curves.items()
        if len(curve) > 1
    }
    if not lines:
        return []
    return [Picture(name, caption, png(error_curves(lines, axis="CPU minutes", log=False, looks=looks)))]
