"""The report of a run that learnt to tell classes apart: accuracy beside what can be guessed, and what is mistaken for
what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flare.report.run import write_run_page
from flare.report.style import ACCENT, GREY, INK, SMALL, new_figure, plain
from flare.sequence.classifier import load_classifier
from flare.train.classes import ClassTask, predicted_labels
from flare.train.run import read_result
from flare.train.run_folder import RunFolder
from flare.utils.text import duration


def write_class_report(folder: RunFolder) -> Path:
    """Write `report.html` and `pictures/` into the folder of a finished run."""
    config, result = folder.config(), read_result(folder.path)
    task, classifier = ClassTask(config), load_classifier(folder.path)
    split = result["split"]
    judged, device = task.judged[split], next(classifier.parameters()).device
    size = config.data.eval_batch_size
    answers = predicted_labels(classifier, task.dataset, judged, size, device, fixed=classifier.fixed)
    counts = confusion_counts(task.dataset.labels[judged], answers, len(task.dataset.schema.classes))
    guessed = {kind: of[split] for kind, of in result["guesses"].items()}
    pictures = [
        ("accuracy", "Training", "Loss, and accuracy beside what can be guessed.", curves(folder.records(), guessed)),
        (
            "confusion",
            "What is taken for what",
            f"Shares of each true class among {len(judged):,} samples of {split}; the diagonal is right.",
            confusion(counts, task.dataset.schema.classes),
        ),
    ]
    return write_run_page(
        folder,
        result,
        title=f"{config.model.get('attention', 'flare')} on {result['dataset']}",
        summary=[
            (f"{split} accuracy", f"{100 * result['accuracy'][split]:.1f} %"),
            *((kind, f"{100 * share:.1f} %") for kind, share in guessed.items()),
            ("training time", duration(result["seconds"])),
        ],
        pictures=pictures,
    )


def confusion_counts(labels: np.ndarray, answers: np.ndarray, classes: int) -> np.ndarray:
    """(true class, answer) -> samples."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, answers), 1)
    return counts


def confusion(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Rows are true classes, each adding up to one."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = new_figure(5.6, 4.6)
    axes = figure.add_subplot()
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Oranges")
    for (row, column), share in np.ndenumerate(shares):
        colour = "white" if share > 0.5 else INK
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=SMALL - 1, color=colour)
    places = range(len(classes))
    axes.set_xticks(places, classes, rotation=45, ha="right", fontsize=SMALL)
    axes.set_yticks(places, classes, fontsize=SMALL)
    axes.set_xlabel("answer", fontsize=SMALL, color=INK)
    axes.set_ylabel("true class", fontsize=SMALL, color=INK)
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=SMALL)
    return figure


def curves(records: Sequence[Mapping[str, Any]], guessed: Mapping[str, float]) -> Figure:
    """Training loss, and below it the accuracy of every evaluation with lines for the guesses."""
    figure = new_figure(7.5, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    trained = [record for record in records if record["kind"] == "train"]
    judged = [record for record in records if record["kind"] == "evaluate"]
    upper.plot([r["step"] for r in trained], [r["loss"] for r in trained], color=GREY, linewidth=0.8)
    split = judged[0]["split"]
    line: dict[str, Any] = {"marker": "o", "markersize": 3.5, "color": ACCENT, "linewidth": 1.3, "label": split}
    lower.plot([r["step"] for r in judged], [100 * r["accuracy"] for r in judged], **line)
    for dashes, (kind, share) in zip((":", "--", "-"), guessed.items(), strict=False):
        lower.axhline(100 * share, color=INK, linestyle=dashes, linewidth=1, label=kind)
    lower.set_ylim(0, None)
    plain(upper, y="training loss")
    plain(lower, x="step", y="accuracy, %")
    lower.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure
