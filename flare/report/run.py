"""The report of a training run: curves, errors, samples, spectra, settings and environment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from matplotlib.figure import Figure
from torch import Tensor

from flare.data.benchmarks.cards import compare_with_paper
from flare.data.dataset import Dataset
from flare.data.sample import Schema, target_array
from flare.inference.spectra import surrogate_eigenvectors, surrogate_spectra
from flare.inference.surrogate import Surrogate
from flare.models.spectra import Spectra, flare_layers
from flare.report.curves import error_histogram, loss_curves
from flare.report.page import save_png, write_page
from flare.report.spectra import eigenvector_figure, spectra_figure
from flare.report.triptych import triptych
from flare.utils.environment import gigabytes
from flare.utils.errors import ConfigError
from flare.utils.text import duration, format_record

SPECTRA_OPERATIONS = 5e11
"""Most operations for spectra. As many test samples are used as fit, at least one."""
SPECTRA_SAMPLES = 20
"""Most test samples for spectra."""

RunPicture = tuple[str, str, str, Figure]
"""File name, heading, caption, figure."""


def write_field_report(
    folder: Path,
    surrogate: Surrogate,
    dataset: Dataset,
    test: np.ndarray,
    result: Mapping[str, Any],
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
) -> Path:
    """Write `report.html` and `pictures/` into the folder of a finished run.

    Args:
        folder: Run folder, which holds `test_errors.json`.
        surrogate: Trained surrogate.
        dataset: Dataset it was trained on.
        test: Indices of the test samples.
        result: Content of `result.json`.
        config: Settings of the run.
        records: Lines of `metrics.jsonl`.
    """
    errors = np.array(json.loads((folder / "test_errors.json").read_text(encoding="utf-8"))["rel_l2"])
    drawable = len(dataset.schema.fields[dataset.schema.points].components) in (2, 3)
    pictures = [
        ("loss", "Training", "Loss and evaluation error over the run.", loss_curves(records)),
        (
            "errors",
            "Errors of the test samples",
            f"Relative L2 error of {len(errors)} test samples. Training-mean field: {result['mean_field']}.",
            error_histogram(errors, result["rel_l2_mean_field"]),
        ),
        *(_samples(surrogate, dataset, test, errors) if drawable else []),
        *_spectra(surrogate, dataset, test, errors, drawable=drawable),
    ]
    title = f"{config['model']['name']} on {result['dataset']}"
    return write_run_page(folder, result, config, records, title=title, summary=_summary(result), pictures=pictures)


def write_run_page(
    folder: Path,
    result: Mapping[str, Any],
    config: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    *,
    title: str,
    summary: list[tuple[str, str]],
    pictures: Sequence[RunPicture],
) -> Path:
    """Write `report.html` and the pictures of a run of any task, and return the path of the page."""
    for name, _, _, figure in pictures:
        save_png(figure, folder / "pictures" / f"{name}.png")
    page = folder / "report.html"
    write_page(
        page,
        title=title,
        summary=summary,
        figures=[picture[1:] for picture in pictures],
        tables=[
            ("Result", _result_rows(result)),
            ("Timings", _timings(result, records)),
            ("Made with", list(result["environment"].items())),
        ],
        texts=[("Configuration", yaml.safe_dump(dict(config), sort_keys=False))],
        footer=f"Written by flare {result['environment']['flare']} into {folder.name}/.",
    )
    return page


def _summary(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [
        ("test rel-L2", f"{result['rel_l2']:.4f}"),
        ("training-mean field", f"{result['rel_l2_mean_field']:.4f}"),
        ("parameters", f"{result['parameters']:,}"),
        ("training time", duration(result["seconds"])),
    ]


def _result_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the result as rows of text, without the environment."""
    paper = compare_with_paper(result)
    shown = {key: value for key, value in result.items() if key != "environment" and value != {}}
    rows = [(key.replace("_", " "), format_record(value)) for key, value in shown.items()]
    return [*([("the paper", paper)] if paper else []), *rows]


def _timings(result: Mapping[str, Any], records: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    rates = [record["samples_per_second"] for record in records if record["kind"] == "train"]
    return [
        ("training, evaluations included", duration(result["seconds"])),
        ("per optimizer step, all included", f"{1e3 * result['seconds'] / result['steps']:.1f} ms"),
        ("training samples per second, median", f"{np.median(rates):.1f}" if rates else "not logged"),
        ("peak memory", f"{gigabytes(result['peak_memory_mb']):.2f} GB"),
    ]


def _samples(surrogate: Surrogate, dataset: Dataset, test: np.ndarray, errors: np.ndarray) -> list[RunPicture]:
    """Draw truth, prediction and error of the median, best and worst test sample."""
    order = np.argsort(errors)
    chosen = {"median": order[len(order) // 2], "best": order[0], "worst": order[-1]}
    return [
        (
            kind,
            f"The {kind} sample",
            "Truth and prediction share one color range, taken from the truth; the error's is symmetric about zero.",
            _picture(surrogate, dataset, int(test[place]), f"{kind} of {len(errors)} test samples"),
        )
        for kind, place in chosen.items()
    ]


def target_units(schema: Schema) -> list[str]:
    """Return the unit of every target channel, empty for dimensionless ones."""
    return [schema.fields[channel.split(".")[0]].unit_text for channel in schema.channels("target")]


def _picture(surrogate: Surrogate, dataset: Dataset, index: int, title: str) -> Figure:
    schema, sample = dataset.schema, dataset[index]
    predicted = surrogate.predict_sample(sample)
    return triptych(
        sample.values[schema.points],
        target_array(schema, sample),
        np.concatenate([v.reshape(len(v), -1) for v in predicted.values()], axis=1),
        names=schema.channels("target"),
        units=target_units(schema),
        grid=schema.grid,
        cells=sample.cells,
        title=f"sample {dataset.titles()[index]}, {title}",
    )


def _spectra(
    surrogate: Surrogate, dataset: Dataset, test: np.ndarray, errors: np.ndarray, *, drawable: bool
) -> list[RunPicture]:
    """Draw spectra of FLARE models, and eigenvectors on 2-D and 3-D points. Other models have none."""
    try:
        layers = flare_layers(surrogate.network)
    except ConfigError:
        return []
    heads, latents = layers[0].heads, layers[0].latents.shape[1]
    cost = len(layers) * heads * latents**2 * float(dataset.sizes[test].mean())
    count = int(np.clip(SPECTRA_OPERATIONS / cost, 1, min(len(test), SPECTRA_SAMPLES)))
    spectra = surrogate_spectra(surrogate, dataset, map(int, test[:count]))
    samples = "one test sample" if count == 1 else f"{count} test samples"
    caption = f"Eigenvalues of each head's mixing in the first, middle and last block; mean of {samples}."
    pictures: list[RunPicture] = [("spectra", "Spectra", caption, spectra_figure(spectra))]
    if drawable:
        index, block = int(test[np.argsort(errors)[len(errors) // 2]]), len(layers) // 2
        pairs = surrogate_eigenvectors(surrogate, dataset, index)[block]
        figure = leading_eigenvectors(dataset, index, pairs, spectra, block)
        caption = f"Of the median sample ({index}), as fields on its points; the head of largest effective rank."
        pictures.append(("eigenvectors", "Leading eigenvectors", caption, figure))
    return pictures


def leading_eigenvectors(
    dataset: Dataset, index: int, pairs: tuple[Tensor, Tensor], spectra: Spectra, block: int
) -> Figure:
    """Draw the eigenvectors of the head with the largest effective rank of a block on the points of a sample."""
    head = int(spectra.effective_rank[block].argmax())
    values, vectors = pairs
    sample = dataset[index]
    return eigenvector_figure(
        sample.values[dataset.schema.points],
        values[head].cpu(),
        vectors[head].cpu(),
        block=block + 1,
        head=head + 1,
        grid=dataset.schema.grid,
        cells=sample.cells,
    )
