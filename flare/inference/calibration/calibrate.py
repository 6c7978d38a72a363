"""Calibration of a run: error bars and an OOD detector, measured on held-out samples and saved in the run folder.

    calibration = load_calibration("runs/wings", surrogate)
    assessment = calibration.assess(surrogate, sample, fields)

Held-out samples are those of the split `calibration`. Without such a split, every second test sample is used for
calibration and the others for measuring the coverage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from flare.data.dataset import Dataset
from flare.data.sample import Sample, Schema, input_array, target_array
from flare.inference.calibration.conformal import ErrorBars, coverage, fit_error_bars
from flare.inference.calibration.ood import OODDetector, fit_ood_detector
from flare.inference.chunked import as_fields, target_columns
from flare.inference.encoding import encode, fingerprint
from flare.inference.surrogate import Surrogate
from flare.models.flare import FLAREModel
from flare.utils.errors import CheckpointError, DataError
from flare.utils.files import replace_atomically
from flare.utils.progress import progress

FILE = "calibration.safetensors"
"""File of the last weights in the run folder."""
VERSION = 1
Ranges = Mapping[str, tuple[list[float], list[float]]]
"""Parameter -> smallest and largest value of each component in the training samples. A parameter is one of many inputs
and moves the latents too little for the OOD score to notice."""
ROUNDING = 1e-6
"""Relative tolerance of ranges, for values copied from single-precision files."""
MOST_SAMPLES = 256
"""Largest number of training samples used, evenly spaced over the split."""
MOST_POINTS = 4096
"""Largest number of points used per training sample."""
MOST_HELD_POINTS = 32_768
"""Largest number of points used per held-out or test sample, evenly spaced over the sample."""
FEWEST_TO_COMPARE = 5
"""Smallest number of held-out samples for an OOD detector."""


@dataclass(frozen=True)
class Assessment:
    """Error bars and OOD score of one prediction."""

    error_bars: dict[str, np.ndarray] | None
    """Target -> half widths in physical units, shape (N,) or (N, channels)."""
    score: float | None
    """OOD score: distance from the training set, divided by that of the farthest held-out sample."""
    rank: int | None
    """Number of held-out samples that are at least as far."""
    outside: tuple[str, ...] = ()
    """Descriptions of parameters outside the range of the training samples."""

    @property
    def is_ood(self) -> bool:
        """Whether the sample is farther than all held-out ones or has a parameter outside; error bars do not hold."""
        return self.rank == 0 or bool(self.outside)

    @property
    def range_warnings(self) -> list[str]:
        """Warnings about parameters outside their range."""
        return [f"WARNING: {description}; error bars do not hold there" for description in self.outside]


@dataclass(frozen=True)
class Calibration:
    """Error bars, OOD detector and parameter ranges of one set of weights."""

    model: str
    """Fingerprint of the weights."""
    spacing: float
    """Median distance between neighboring training points, in the unit of the points."""
    error_bars: ErrorBars | None
    ood: OODDetector | None
    report: Mapping[str, Any]
    """Numbers of samples, measured coverage, and why error bars or the OOD detector are missing."""
    ranges: Ranges = field(default_factory=dict)
    """Ranges of the parameters; empty if there are none, and in old files."""

    def assess(
        self,
        surrogate: Surrogate,
        sample: Sample,
        fields: Mapping[str, np.ndarray] | None = None,
        latents: Sequence[torch.Tensor] | None = None,
    ) -> Assessment:
        """Assess a prediction.

        Args:
            surrogate: The model that was calibrated.
            sample: Its inputs.
            fields: The prediction, target -> (N,) or (N, channels). None: no error bars.
            latents: Latents of the sample, as returned by `predict_into`. None: the sample is encoded here.
        """
        half_widths = None
        if self.error_bars is not None and fields is not None:
            rows = self.error_bars.half_widths(_channels(surrogate, sample, _side_by_side(surrogate, fields)))
            half_widths = as_fields(target_columns(surrogate.schema, rows.astype(np.float32)))
        score = rank = None
        if self.ood is not None:
            vector = latent_vector(encode(surrogate, sample).latents if latents is None else latents)
            score, rank = self.ood.score(vector), self.ood.rank(vector)
        return Assessment(half_widths, score, rank, outside_ranges(self.ranges, surrogate.schema, sample))

    def warnings(self, assessment: Assessment) -> list[str]:
        """Return warnings about a sample that is out of distribution."""
        score, rank = assessment.score, assessment.rank
        lines = [self.ood.describe(rank, score)] if self.ood and score is not None and rank == 0 else []
        return lines + assessment.range_warnings

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file."""
        arrays = {"spacing": np.array([self.spacing])}
        # The prefixes are those of all files written so far.
        for prefix, part, names in (("bars", self.error_bars, BAR_ARRAYS), ("familiar", self.ood, OOD_ARRAYS)):
            if part is not None:
                arrays |= {f"{prefix}/{name}": getattr(part, name) for name in names}
        about = {
            "version": VERSION,
            "model": self.model,
            "spacing": self.spacing,
            "level": self.error_bars.level if self.error_bars else None,
            "rest": self.ood.rest if self.ood else None,
            "report": dict(self.report),
            "ranges": dict(self.ranges),
        }
        with replace_atomically(path) as temporary:
            save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, temporary, {"flare": json.dumps(about)})


BAR_ARRAYS = ("weights", "low", "high", "quantile")
OOD_ARRAYS = ("mean", "spread", "directions", "variance", "distances")


def held_out_samples(dataset: Dataset, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the samples that calibrate and the samples that measure the coverage."""
    if "calibration" in dataset.splits:
        return dataset.split("calibration"), test
    return test[::2], test[1::2]


def calibrate(
    surrogate: Surrogate,
    dataset: Dataset,
    train: Sequence[int] | np.ndarray,
    held_out: Sequence[int] | np.ndarray,
    test: Sequence[int] | np.ndarray,
    *,
    augmented: bool = False,
) -> Calibration:
    """Fit error bars and an OOD detector.

    Args:
        surrogate: A trained model.
        dataset: Dataset of all samples.
        train: Samples the model was trained on.
        held_out: Samples to calibrate on.
        test: Samples to measure the coverage on.
        augmented: See `fit_ranges`.
    """
    surrogate.eval()
    step = max(1, -(-len(train) // MOST_SAMPLES))
    seen = [int(i) for i in train[::step]]
    counts = {"training_samples": len(seen), "held_out_samples": len(held_out), "test_samples": len(test)}
    report: dict[str, Any] = dict(counts)
    with progress("calibrating", sum(counts.values())) as update:

        def errors(index: int, most: int = MOST_HELD_POINTS) -> tuple[np.ndarray, np.ndarray]:
            found = _errors(surrogate, dataset[int(index)], most)
            update()
            return found

        training = [errors(i, MOST_POINTS) for i in seen]
        held_out_errors = [errors(i) for i in held_out]
        error_bars = None
        try:
            error_bars = fit_error_bars(training, held_out_errors)
        except DataError as reason:
            report["no_bars"] = str(reason)
        if error_bars is not None and len(test):
            shares = coverage(error_bars, [errors(i) for i in test])
            names = dataset.schema.channels("target")
            report["level"] = error_bars.level
            report["coverage"] = {name: float(share) for name, share in zip(names, shares.mean(0), strict=True)}
    ood = None
    if not isinstance(surrogate.network, FLAREModel):
        report["no_familiarity"] = f"the model {surrogate.model['name']!r} has no latents; FLARE models have"
    elif len(held_out) < FEWEST_TO_COMPARE or len(seen) < FEWEST_TO_COMPARE:
        report["no_familiarity"] = f"{len(held_out)} held-out samples; at least {FEWEST_TO_COMPARE} are needed"
    else:
        vectors = (
            np.stack([latent_vector(encode(surrogate, dataset[int(i)]).latents) for i in indices])
            for indices in (seen, held_out)
        )
        ood = fit_ood_detector(*vectors)
    spacing = float(np.median([_spacing(dataset[i].values[dataset.schema.points]) for i in seen[:16]]))
    ranges = fit_ranges(dataset, train, augmented=augmented)
    return Calibration(fingerprint(surrogate), spacing, error_bars, ood, report, ranges)


def fit_ranges(dataset: Dataset, train: Iterable[int], *, augmented: bool = False) -> Ranges:
    """Return the ranges of the parameters of training samples.

    Args:
        dataset: The dataset.
        train: Indices of the training samples.
        augmented: Whether samples are mirrored or rotated in training. Vectors then have other values and no range.
    """
    schema = dataset.schema
    names = [name for name in schema.named("parameter") if not (augmented and len(schema.fields[name].components) > 1)]
    rows = [dataset.read(int(index), roles=["parameter"]).values for index in train]
    stacked = {name: np.stack([row[name] for row in rows]) for name in names}
    return {name: (values.min(0).tolist(), values.max(0).tolist()) for name, values in stacked.items()}


def outside_ranges(ranges: Ranges, schema: Schema, sample: Sample) -> tuple[str, ...]:
    """Describe each parameter of a sample that lies outside the range of the training samples."""
    found = []
    for name, limits in ranges.items():
        unit = "" if schema.fields[name].unit == "1" else f" {schema.fields[name].unit}"
        values = np.asarray(sample.values[name], dtype=np.float64)
        for channel, value, low, high in zip(schema.channels_of(name), values, *limits, strict=True):
            if max(low - value, value - high) > ROUNDING * max(abs(low), abs(high)):
                span = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
                found.append(f"{channel} = {value:.6g}{unit} lies outside the training's {span}")
    return tuple(found)


def calibration_path(run: str | os.PathLike[str], checkpoint: str = "last", ema: bool = False) -> Path:
    """Return the file in a run folder that holds the calibration of these weights."""
    words = ["calibration", *([] if checkpoint == "last" else [checkpoint]), *(["ema"] if ema else [])]
    return Path(run) / f"{'-'.join(words)}.safetensors"


def load_calibration(run: str | os.PathLike[str], surrogate: Surrogate) -> Calibration | None:
    """Load the calibration of a surrogate from its run folder; None if its weights are not calibrated.

    Raises:
        CheckpointError: A calibration file is damaged.
    """
    for ema in (False, True):
        for checkpoint in ("last", "best"):
            path = calibration_path(run, checkpoint, ema)
            if path.exists():
                found = _read(path, calibrate_command(run, checkpoint, ema))
                if found.model == fingerprint(surrogate):
                    return found
    return None


def calibrate_command(run: str | os.PathLike[str], checkpoint: str = "last", ema: bool = False) -> str:
    """Return the command that calibrates these weights."""
    return f"flare calibrate {run}{' --checkpoint best' if checkpoint == 'best' else ''}{' --ema' if ema else ''}"


def _read(path: Path, command: str) -> Calibration:
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {})["flare"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["version"] != VERSION:
            raise KeyError(f"version {about['version']}")
        error_bars = ood = None
        if about["level"] is not None:
            error_bars = ErrorBars(level=about["level"], **{name: arrays[f"bars/{name}"] for name in BAR_ARRAYS})
        if about["rest"] is not None:
            ood = OODDetector(rest=about["rest"], **{name: arrays[f"familiar/{name}"] for name in OOD_ARRAYS})
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); write it again with:  {command}") from None
    return Calibration(about["model"], about["spacing"], error_bars, ood, about["report"], about.get("ranges", {}))


def latent_vector(latents: Sequence[torch.Tensor]) -> np.ndarray:
    """Concatenate the latents of all blocks, shape (P,)."""
    return np.concatenate([z.cpu().numpy().astype(np.float64).ravel() for z in latents])


def _errors(surrogate: Surrogate, sample: Sample, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return normalized channels and physical errors at no more than `most` points of a sample."""
    predicted = _side_by_side(surrogate, surrogate.predict_sample(sample))
    channels = _channels(surrogate, sample, predicted)
    error = predicted - target_array(surrogate.schema, sample)
    step = max(1, -(-len(error) // most))
    return channels[::step], error[::step]


def _side_by_side(surrogate: Surrogate, fields: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenate target fields, shape (N, F)."""
    return np.concatenate([fields[n].reshape(len(fields[n]), -1) for n in surrogate.schema.named("target")], axis=1)


@torch.no_grad()
def _channels(surrogate: Surrogate, sample: Sample, predicted: np.ndarray) -> np.ndarray:
    """Return normalized inputs and predictions, shape (N, d)."""
    inputs = torch.from_numpy(input_array(surrogate.schema, sample)).to(surrogate.device)
    outputs = torch.from_numpy(np.ascontiguousarray(predicted)).to(surrogate.device)
    encoded = torch.cat([surrogate.input_norm.encode(inputs), surrogate.target_norm.encode(outputs)], dim=1)
    return encoded.cpu().numpy().astype(np.float64)


def _spacing(points: np.ndarray) -> float:
    """Return the median distance to the nearest other point, over at most about a thousand points."""
    from scipy.spatial import KDTree

    if len(points) < 2:
        return 0.0
    some = points[:: max(1, len(points) // 1000)]
    distances: np.ndarray = np.asarray(KDTree(points).query(some, k=2)[0])
    return float(np.median(distances[:, 1]))
