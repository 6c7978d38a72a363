"""What a run will need before it is begun: memory and time, from a short calibration of the same model on this device.

A FLARE model costs the same for every point and block, so small steps tell of large ones. With w = batch x points of a
rank, B blocks and M latents:

    time   = t0 + t1 w + t2 w B + t3 w B M          memory = m0 + m1 w + m2 w B + what the weights take
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flare.environment import peak_memory_mb
from flare.errors import ConfigError, DataError
from flare.files import write_json
from flare.measure import alone, forget_peak, median_seconds
from flare.models import build_model, count_parameters
from flare.models.flare import recompute_blocks

DTYPES = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}
STATE = {True: 16, False: 4}
"""Bytes a parameter takes: weight, gradient and AdamW's two averages when training, else the weight alone."""
SMALL, LARGE = 16_384, 65_536
"""Points of the calibration."""
MARGIN = 1.15
"""A run that is planned to need less than the memory over this is begun."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One step, or one prediction, of a FLARE model on one rank."""

    model: Mapping[str, Any]
    """Sizes, as `build_model` takes them."""
    in_dim: int = 3
    out_dim: int = 1
    points: int
    """Of a sample, on this rank."""
    batch: int = 1
    training: bool = True
    precision: str = "32"
    recompute: bool = False
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.model.get("name", "flare") != "flare":
            raise ConfigError(f"only FLARE models are planned, not {self.model['name']!r}")
        if min(self.points, self.batch) < 1:
            raise ConfigError(f"points={self.points}, batch={self.batch}: at least 1 each")
        if self.precision not in DTYPES:
            raise ConfigError(f"precision {self.precision!r} is none of {', '.join(DTYPES)}")

    @property
    def work(self) -> int:
        return self.batch * self.points

    @property
    def blocks(self) -> int:
        return int(self.sizes.get("blocks", 8))

    @property
    def latents(self) -> int:
        return int(self.sizes.get("latents", 64))

    @property
    def sizes(self) -> dict[str, Any]:
        return {key: value for key, value in self.model.items() if key != "name"}

    @property
    def state_mb(self) -> float:
        """What the weights take."""
        with torch.device("meta"):
            parameters = count_parameters(build_model("flare", self.in_dim, self.out_dim, **self.sizes))
        return STATE[self.training] * parameters / 2**20


@dataclass(frozen=True)
class Need:
    memory_mb: float
    """At the peak, of the whole process; on a GPU, of its memory."""
    seconds: float
    """Of a training step or a prediction."""


def measure(setting: Setting) -> Need:
    """Do it, in a process of its own."""
    return alone(_measure, setting)


def _measure(setting: Setting) -> Need:
    torch.manual_seed(0)
    model = build_model("flare", setting.in_dim, setting.out_dim, **setting.sizes).to(setting.device)
    model.train(setting.training)
    if setting.recompute:
        recompute_blocks(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(points: int, batch: int) -> None:
        x = torch.randn(batch, points, setting.in_dim, device=setting.device)
        y = torch.randn(batch, points, setting.out_dim, device=setting.device)
        dtype = DTYPES[setting.precision]
        with (
            torch.set_grad_enabled(setting.training),
            torch.autocast(setting.device.split(":")[0], dtype, enabled=dtype is not None),
        ):
            loss = (model(x) - y).square().mean()
        if setting.training:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    step(64, 1)  # loads all that is loaded once
    forget_peak()
    step(setting.points, setting.batch)  # the memory of a first step is that of all
    repeats = max(1, min(5, 200_000 // setting.work))
    return Need(peak_memory_mb(), median_seconds(lambda: step(setting.points, setting.batch), repeats))


@dataclass(frozen=True)
class Calibration:
    """Coefficients of the two laws, for one model on one device."""

    about: Mapping[str, Any]
    """What it holds for: everything of a setting but points, batch, blocks and latents."""
    seconds: list[float]
    memory: list[float]

    def predict(self, setting: Setting) -> Need:
        self.check(setting)
        time = float(_time_terms(setting) @ np.array(self.seconds))
        return Need(float(_memory_terms(setting) @ np.array(self.memory)) + setting.state_mb, time)

    def check(self, setting: Setting) -> None:
        if _about(setting) != self.about:
            raise ConfigError(f"this calibration is of {self.about}, not of {_about(setting)}")

    def largest(self, setting: Setting, memory_mb: float) -> dict[str, int]:
        """The most points, latents or batch, the others as they are, whose memory fits; 0 where not even one does."""

        def fits(**change: Any) -> bool:
            return self.predict(replace(setting, **change)).memory_mb <= memory_mb

        return {
            "points": _most(lambda n: fits(points=n)),
            "batch": _most(lambda n: fits(batch=n)),
            "latents": _most(lambda n: fits(model={**setting.model, "latents": n})),
        }


def calibrate(setting: Setting, tell: Callable[[str], None] = lambda text: None) -> Calibration:
    """Some small steps of the same model with fewer blocks, a minute or two in all."""
    few, more = min(1, setting.blocks), min(3, setting.blocks)
    latents = setting.latents
    tries = [(SMALL, few, latents), (LARGE, few, latents), (SMALL, more, latents), (LARGE, more, latents)]
    tries += [(SMALL, more, 2 * latents), (LARGE, more, 4 * latents)]
    settings, needs = [], []
    for points, blocks, count in dict.fromkeys(tries):
        tell(f"calibrating: {points:,} points, {blocks} block(s), {count} latents")
        model = {**setting.model, "blocks": blocks, "latents": count}
        settings.append(replace(setting, model=model, points=points, batch=1))
        needs.append(measure(settings[-1]))
    seconds = _fit([_time_terms(s) for s in settings], [n.seconds for n in needs])
    memory = _fit(
        [_memory_terms(s) for s in settings], [n.memory_mb - s.state_mb for s, n in zip(settings, needs, strict=True)]
    )
    return Calibration(_about(setting), seconds, memory)


def calibrated(setting: Setting, path: Path | None, tell: Callable[[str], None]) -> Calibration:
    """From a file where one is named and there; else measured, and kept there."""
    if path is None or not path.exists():
        calibration = calibrate(setting, tell)
        if path is not None:
            write_json(path, asdict(calibration))
        return calibration
    try:
        calibration = Calibration(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError, TypeError) as error:
        raise DataError(f"{path} is no calibration: {error}; name another file") from None
    calibration.check(setting)
    return calibration


def memory_of(device: str) -> float:
    """MiB that are free for a run."""
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0] / 2**20
    import psutil

    return psutil.virtual_memory().available / 2**20


def surely_fits(setting: Setting, memory_mb: float) -> bool:
    """By a bound that needs no calibration: PyTorch's own operators keep less than 60 arrays of C channels a block."""
    channels = int(setting.sizes.get("channels", 64))
    return 1024 + 60 * 4 * channels * setting.work * (setting.blocks + 1) / 2**20 < memory_mb


def _time_terms(setting: Setting) -> np.ndarray:
    w, b, m = setting.work, setting.blocks, setting.latents
    return np.array([1.0, w, w * b, w * b * m])


def _memory_terms(setting: Setting) -> np.ndarray:
    return np.array([1.0, setting.work, setting.work * setting.blocks])


def _fit(terms: list[np.ndarray], values: list[float]) -> list[float]:
    """Coefficients of at least zero that make the relative errors least."""
    from scipy.optimize import nnls

    a, y = np.stack(terms), np.array(values)
    size = a.max(0)
    found, _ = nnls(a / size / y[:, None], np.ones(len(y)))
    return (found / size).tolist()


def _about(setting: Setting) -> dict[str, Any]:
    free = {"points", "batch", "model"}
    sizes = {key: value for key, value in sorted(setting.sizes.items()) if key not in ("blocks", "latents")}
    return {key: value for key, value in asdict(setting).items() if key not in free} | {"model": sizes}


def _most(fits: Callable[[int], bool]) -> int:
    """The largest number that fits; whatever is larger does not."""
    if not fits(1):
        return 0
    high = 2
    while fits(high) and high < 2**40:
        high *= 2
    low = high // 2
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def per_rank(points: int, ranks: int) -> int:
    """Points of a sample on the rank that has most."""
    return math.ceil(points / ranks)
