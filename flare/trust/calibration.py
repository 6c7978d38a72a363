"""The calibration of a run: error bars and familiarity from samples it has not learnt from, in one file of its folder.

    calibration = calibrate_run("runs/wings")        # flare train does this at its end; flare calibrate does it again
    judgement = calibration.judge(surrogate, sample, fields)

Held-out samples are those of the dataset's split `calibration`. Where it has none, every second sample of the test
split calibrates and the others tell the coverage.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from flare.code import encode, fingerprint
from flare.data.dataset import Dataset
from flare.data.sample import INPUT_ROLES, Sample, input_array, target_array
from flare.models.flare import FLAREModel
from flare.surrogate import Surrogate, load
from flare.train.field_task import FieldTask
from flare.train.run_folder import RunFolder
from flare.trust.bars import Bars, coverage, fit_bars, wide_bars
from flare.trust.familiar import Familiar, fit_familiar
from flare.trust.ranges import Ranges, beyond, fit_ranges, outside
from flare.utils.errors import CheckpointError, DataError
from flare.utils.files import replacing
from flare.utils.progress import progress

FILE = "calibration.safetensors"
FILES = {
    ("last", False): FILE,
    ("best", False): "calibration-best.safetensors",
    ("last", True): "calibration-ema.safetensors",
    ("best", True): "calibration-best-ema.safetensors",
}
"""Checkpoint, and whether its weights are the averaged ones -> where their calibration is kept."""
VERSION = 1
MOST_SAMPLES = 256
"""Training samples that are looked at, evenly over the split."""
MOST_POINTS = 4096
"""Points of a training sample from which is learnt where errors are large."""
MOST_HELD_POINTS = 32_768
"""Points of a held-out or test sample at which errors are measured; evenly over the sample where it has more."""
FEWEST_TO_COMPARE = 5
"""Held-out samples below which nothing is said about familiarity."""


@dataclass(frozen=True)
class Judgement:
    """What is known about one prediction beforehand."""

    bars: dict[str, np.ndarray] | None
    """Target -> half widths, (N,) or (N, channels), physical."""
    score: float | None
    """Distance from the training set over that of the farthest held-out sample."""
    rank: int | None
    """How many held-out samples are as far."""
    outside: tuple[str, ...] = ()
    """Parameters beyond the training's values, each in a clause."""

    @property
    def unlike(self) -> bool:
        """Farther than all of them, or outside. Bars, measured on parts like the training's, do not hold then."""
        return self.rank == 0 or bool(self.outside)


@dataclass(frozen=True)
class Calibration:
    model: str
    """Fingerprint of the weights."""
    spacing: float
    """Median distance between neighbouring training points, in the unit of the points."""
    bars: Bars | None
    familiar: Familiar | None
    report: Mapping[str, Any]
    """Counts and measured coverage, and why a part is missing."""
    ranges: Ranges = field(default_factory=dict)
    """Of the training's parameters; empty where there are none, and in files of before."""

    def judge(
        self,
        surrogate: Surrogate,
        sample: Sample,
        fields: Mapping[str, np.ndarray] | None = None,
        latents: Sequence[torch.Tensor] | None = None,
    ) -> Judgement:
        """Bars and familiarity of predicted `fields`, target -> (N,) or (N, channels); without them there are no bars.

        `latents` are what `predict_into` returned; without them the sample is encoded here.
        """
        widths = None
        if self.bars is not None and fields is not None:
            schema = surrogate.schema
            rows = self.bars.widths(_channels(surrogate, sample, _side_by_side(surrogate, fields)))
            ends = np.cumsum(schema.widths("target"))[:-1]
            parts = zip(schema.named("target"), np.split(rows.astype(np.float32), ends, axis=1), strict=True)
            widths = {name: part[:, 0] if part.shape[1] == 1 else part for name, part in parts}
        score, rank = self.familiarity(surrogate, sample, latents)
        return Judgement(widths, score, rank, outside(self.ranges, surrogate.schema, sample))

    def familiarity(
        self, surrogate: Surrogate, sample: Sample, latents: Sequence[torch.Tensor] | None = None
    ) -> tuple[float, int] | tuple[None, None]:
        """Score and rank of a judgement, for which no fields are needed."""
        if self.familiar is None:
            return None, None
        vector = code_vector(encode(surrogate, sample).latents if latents is None else latents)
        return self.familiar.score(vector), self.familiar.rank(vector)

    def warnings(self, judgement: Judgement) -> list[str]:
        """Of a sample that is strange to the model, in sentences."""
        score, rank = judgement.score, judgement.rank
        said = [self.familiar.sentence(rank, score)] if self.familiar and score is not None and rank == 0 else []
        return said + [beyond(clause) for clause in judgement.outside]

    def save(self, path: str | os.PathLike[str]) -> None:
        arrays: dict[str, np.ndarray] = {}
        if self.bars is not None:
            arrays |= {f"bars/{n}": getattr(self.bars, n) for n in ("weights", "low", "high", "quantile")}
        if self.familiar is not None:
            arrays |= {f"familiar/{n}": getattr(self.familiar, n) for n in ("mean", "spread", "directions")}
            arrays |= {f"familiar/{n}": getattr(self.familiar, n) for n in ("variance", "distances")}
        about = {
            "version": VERSION,
            "model": self.model,
            "spacing": self.spacing,
            "level": self.bars.level if self.bars else None,
            "rest": self.familiar.rest if self.familiar else None,
            "report": dict(self.report),
            "ranges": dict(self.ranges),
        }
        arrays["spacing"] = np.array([self.spacing])
        with replacing(path) as temporary:
            save_file({n: np.ascontiguousarray(a) for n, a in arrays.items()}, temporary, {"flare": json.dumps(about)})


def calibrate_run(
    run: str | os.PathLike[str],
    *,
    checkpoint: str = "last",
    ema: bool = False,
    device: str = "cpu",
    quiet: bool = False,
) -> Calibration:
    """Calibrate weights of a run on its own dataset, and keep that in its folder, beside that of other weights."""
    config = RunFolder(run).config()
    task = FieldTask(config.data, config.loss)
    held, test = held_out(task.dataset, task.test)
    surrogate = load(run, checkpoint=checkpoint, ema=ema, device=device)
    moved = bool(config.data.mirror or config.data.turn)
    calibration = calibrate(surrogate, task.dataset, task.train, held, test, moved=moved, quiet=quiet)
    calibration.save(Path(run) / FILES[checkpoint, ema])
    return calibration


def held_out(dataset: Dataset, test: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Samples that calibrate, and samples that tell the coverage."""
    if "calibration" in dataset.splits:
        return dataset.split("calibration"), test
    return test[::2], test[1::2]


def calibrate(
    surrogate: Surrogate,
    dataset: Dataset,
    train: Sequence[int] | np.ndarray,
    held: Sequence[int] | np.ndarray,
    test: Sequence[int] | np.ndarray,
    *,
    moved: bool = False,
    quiet: bool = False,
) -> Calibration:
    """Error bars and familiarity of a model, from samples it has learnt from and samples it has not.

    Args:
        moved: as for `fit_ranges`.
    """
    surrogate.eval()
    step = max(1, -(-len(train) // MOST_SAMPLES))
    seen = [int(i) for i in train[::step]]
    report: dict[str, Any] = {"training_samples": len(seen), "held_out_samples": len(held), "test_samples": len(test)}
    with progress("calibrating", len(seen) + len(held) + len(test), quiet=quiet) as update:

        def errors(index: int, most: int = MOST_HELD_POINTS) -> tuple[np.ndarray, np.ndarray]:
            found = _errors(surrogate, dataset[int(index)], most)
            update()
            return found

        training = [errors(i, MOST_POINTS) for i in seen]
        held_errors = [errors(i) for i in held]
        bars = None
        try:
            bars = fit_bars(training, held_errors)
        except DataError as reason:
            report["no_bars"] = str(reason)
        if bars is not None and len(test):
            shares = coverage(bars, [errors(i) for i in test])
            names = dataset.schema.channels("target")
            report["level"] = bars.level
            report["coverage"] = {name: float(share) for name, share in zip(names, shares.mean(0), strict=True)}
    familiar = None
    if not isinstance(surrogate.network, FLAREModel):
        report["no_familiarity"] = f"{surrogate.model['name']} has no latent codes; a FLARE model has"
    elif len(held) < FEWEST_TO_COMPARE or len(seen) < FEWEST_TO_COMPARE:
        report["no_familiarity"] = f"{len(held)} held-out samples; at least {FEWEST_TO_COMPARE} are needed"
    else:
        familiar = fit_familiar(codes(surrogate, dataset, seen), codes(surrogate, dataset, held))
    spacing = float(np.median([_spacing(dataset[i].values[dataset.schema.points]) for i in seen[:16]]))
    ranges = fit_ranges(dataset, train, moved=moved)
    return Calibration(fingerprint(surrogate), spacing, bars, familiar, report, ranges)


def load_calibration(run: str | os.PathLike[str], surrogate: Surrogate) -> Calibration | None:
    """What `calibrate_run` kept, for these weights; None where there is none, or only of other weights."""
    for (checkpoint, ema), name in FILES.items():
        if (Path(run) / name).exists():
            found = _read(Path(run) / name, how_to_calibrate(run, checkpoint, ema))
            if found.model == fingerprint(surrogate):
                return found
    return None


def how_to_calibrate(run: str | os.PathLike[str], checkpoint: str = "last", ema: bool = False) -> str:
    """The command for these weights."""
    return f"flare calibrate {run}{' --checkpoint best' if checkpoint == 'best' else ''}{' --ema' if ema else ''}"


def _read(path: Path, how: str) -> Calibration:
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {})["flare"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if about["version"] != VERSION:
            raise KeyError(f"version {about['version']}")
        bars = familiar = None
        if about["level"] is not None:
            bars = Bars(level=about["level"], **_under("bars/", arrays))
        if about["rest"] is not None:
            familiar = Familiar(rest=about["rest"], **_under("familiar/", arrays))
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged ({error}); make it again with:  {how}") from None
    return Calibration(about["model"], about["spacing"], bars, familiar, about["report"], about.get("ranges", {}))


def _under(prefix: str, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def codes(surrogate: Surrogate, dataset: Dataset, indices: Sequence[int] | np.ndarray) -> np.ndarray:
    """(samples, P)."""
    rows = []
    for index in indices:
        values = dataset[int(index)].values
        rows.append(
            code_vector(encode(surrogate, Sample({n: values[n] for n in surrogate.schema.named(*INPUT_ROLES)})).latents)
        )
    return np.stack(rows)


def code_vector(latents: Sequence[torch.Tensor]) -> np.ndarray:
    """(P,): the latents of all blocks, end to end."""
    return np.concatenate([z.cpu().numpy().astype(np.float64).ravel() for z in latents])


def _errors(surrogate: Surrogate, sample: Sample, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Normalised channels and physical errors at the points of a sample, or at some of them."""
    predicted = _side_by_side(surrogate, surrogate.predict_sample(sample))
    channels = _channels(surrogate, sample, predicted)
    error = predicted - target_array(surrogate.schema, sample)
    step = max(1, -(-len(error) // most))
    return channels[::step], error[::step]


def _side_by_side(surrogate: Surrogate, fields: Mapping[str, np.ndarray]) -> np.ndarray:
    """(N, F) of target -> (N,) or (N, channels)."""
    return np.concatenate([fields[n].reshape(len(fields[n]), -1) for n in surrogate.schema.named("target")], axis=1)


@torch.no_grad()
def _channels(surrogate: Surrogate, sample: Sample, predicted: np.ndarray) -> np.ndarray:
    """(N, d): normalised inputs and predictions."""
    inputs = torch.from_numpy(input_array(surrogate.schema, sample)).to(surrogate.device)
    outputs = torch.from_numpy(np.ascontiguousarray(predicted)).to(surrogate.device)
    encoded = torch.cat([surrogate.input_norm.encode(inputs), surrogate.target_norm.encode(outputs)], dim=1)
    return encoded.cpu().numpy().astype(np.float64)


def _spacing(points: np.ndarray) -> float:
    """Median distance to the nearest other point, of at most a thousand points."""
    from scipy.spatial import KDTree

    if len(points) < 2:
        return 0.0
    some = points[:: max(1, len(points) // 1000)]
    distances: np.ndarray = np.asarray(KDTree(points).query(some, k=2)[0])
    return float(np.median(distances[:, 1]))


def tell(report: Mapping[str, Any]) -> list[str]:
    """What a calibration found, in sentences."""
    lines = []
    if "coverage" in report:
        shares = ", ".join(f"{name} {share:.1%}" for name, share in report["coverage"].items())
        lines.append(f"bars at {report['level']:.0%} cover, on {report['test_samples']} test samples: {shares}")
    wide = "" if "no_bars" in report else wide_bars(report["held_out_samples"])
    lines += [wide] if wide else []
    for key in ("no_bars", "no_familiarity"):
        if key in report:
            lines.append(f"{'no error bars' if key == 'no_bars' else 'no familiarity'}: {report[key]}")
    return lines
