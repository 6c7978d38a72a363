"""Report of a classification run: accuracy beside trivial baselines, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flare.report.run import write_run_page
from flare.report.style import ACCENT, GREY, INK, SMALL, new_figure, plain
from flare.sequence.classifier import Classifier
from flare.sequence.task import ClassTask, predict_labels
from flare.train.run_folder import RunFolder
from flare.utils.text import duration


def write_class_report(folder: RunFolder, task: ClassTask, classifier: Classifier, result: Mapping[str, Any]) -> Path:
    """Write `report.html` and `pictures/` into the folder of a finished run."""
    config = folder.config()
    split, classes = result["split"], task.dataset.schema.classes
    indices, device = task.evaluated[split], next(classifier.parameters()).device
    size = config.data.eval_batch_size
    predicted = predict_labels(classifier, task.dataset, indices, size, device, fixed=classifier.fixed)
    counts = np.zeros((len(classes), len(classes)), np.int64)
    np.add.at(counts, (task.dataset.labels[indices], predicted), 1)
    baselines = {name: shares[split] for name, shares in result["guesses"].items()}
    figures = [
        ("accuracy", "Training", "Loss, and accuracy beside trivial baselines.", curves(folder.records(), baselines)),
        (
            "confusion",
            "Confusion matrix",
            f"Share of each predicted class in each true class, for {len(indices):,} samples of {split}.",
            confusion(counts, classes),
        ),
    ]
    return write_run_page(
        folder.path,
        result,
        config.to_dict(),
        folder.records(),
        title=f"{config.model.get('attention', 'flare')} on {result['dataset']}",
        summary=[
            (f"{split} accuracy", f"{100 * result['accuracy'][split]:.1f} %"),
            *((name, f"{100 * share:.1f} %") for name, share in baselines.items()),
            ("training time", duration(result["seconds"])),
        ],
        pictures=figures,
    )


def confusion(counts: np.ndarray, classes: Sequence[str]) -> Figure:
    """Plot a confusion matrix of counts (true class, predicted class), with rows that add up to one."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    figure = new_figure(5.6, 4.6)
    axes = figure.add_subplot()
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="Oranges")
    for (row, column), share in np.ndenumerate(shares):
        color = "white" if share > 0.5 else INK
        axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=SMALL - 1, color=color)
    ticks = range(len(classes))
    axes.set_xticks(ticks, classes, rotation=45, ha="right", fontsize=SMALL)
    axes.set_yticks(ticks, classes, fontsize=SMALL)
    axes.set_xlabel("predicted class", fontsize=SMALL, color=INK)
    axes.set_ylabel("true class", fontsize=SMALL, color=INK)
    figure.colorbar(image, ax=axes, shrink=0.8).ax.tick_params(labelsize=SMALL)
    return figure


def curves(records: Sequence[Mapping[str, Any]], baselines: Mapping[str, float]) -> Figure:
    """Plot the training loss and, below it, the accuracy of every evaluation with lines for trivial baselines."""
    figure = new_figure(7.5, 4.6)
    upper, lower = figure.subplots(2, 1, sharex=True)
    steps, evaluations = ([record for record in records if record["kind"] == kind] for kind in ("train", "evaluate"))
    upper.plot([r["step"] for r in steps], [r["loss"] for r in steps], color=GREY, linewidth=0.8)
    line: dict[str, Any] = {"marker": "o", "markersize": 3.5, "color": ACCENT, "linewidth": 1.3}
    accuracies = [100 * r["accuracy"] for r in evaluations]
    lower.plot([r["step"] for r in evaluations], accuracies, label=evaluations[0]["split"], **line)
    for dashes, (name, share) in zip((":", "--", "-"), baselines.items(), strict=False):
        lower.axhline(100 * share, color=INK, linestyle=dashes, linewidth=1, label=name)
    lower.set_ylim(0, None)
    plain(upper, y="training loss")
    plain(lower, x="step", y="accuracy, %")
    lower.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure
