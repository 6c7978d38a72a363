"""A step, evaluation or prediction of a FLARE model on one rank: what it is, and what it needs when it is really done.

Steps and evaluations are tried by real trainings of made-up data, see flare/train/rehearsal.py; predictions here.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from flare.measure import alone, median_seconds
from flare.mixer import native
from flare.mixer.native.block_ops import block_activations, mlp_activations
from flare.models import build_model, count_parameters
from flare.models.streaming import CHUNK, MOST_IN_MEMORY, Stream
from flare.utils.environment import forget_peak_memory, peak_memory_mb
from flare.utils.errors import ConfigError

DTYPES = {"32": None, "bf16": torch.bfloat16, "16": torch.float16}
"""Precision -> what matrix products are done in, under autocast."""
KINDS = {
    "training": "a step of the optimiser",
    "evaluation": "the answer at all points at once, within a training",
    "whole": "the answer of `flare predict` at all points at once",
    "stream": "the answer of `flare predict` in chunks, the features of all points in memory",
    "scratch": "the same, the features in a scratch file",
}
SHARED = {"": "one rank", "samples": "ranks share the samples of a batch", "points": "ranks share the points of each"}
HANDED_BACK = 32 * 2**20
"""Bytes from which the C library hands an array back when it is freed. It keeps smaller ones for later: steps with such
arrays take more memory than the law of large ones tells, and have a calibration of their own."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One step, evaluation or prediction of a FLARE model on one rank."""

    model: Mapping[str, Any]
    """Sizes, as `build_model` takes them."""
    in_dim: int = 3
    out_dim: int = 1
    points: int
    """Of a sample, on this rank."""
    batch: int = 1
    """Samples at a time, on this rank."""
    kind: str = "training"
    """One of `KINDS`."""
    precision: str = "32"
    recompute: bool = False
    device: str = "cpu"
    shared: str = ""
    """One of `SHARED`. With points shared a block is not one kernel; with either, gradients are kept twice."""
    chunk: int = CHUNK
    """Points that a stream takes at a time."""

    def __post_init__(self) -> None:
        if self.model.get("name", "flare") != "flare":
            raise ConfigError(f"only FLARE models are planned, not {self.model['name']!r}")
        if min(self.points, self.batch, self.chunk) < 1:
            raise ConfigError(f"points={self.points}, batch={self.batch}, chunk={self.chunk}: at least 1 each")
        for name, known in (("precision", DTYPES), ("kind", KINDS), ("shared", SHARED)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} {getattr(self, name)!r} is none of {', '.join(map(repr, known))}")
        if self.device != "cpu" and not self.device.startswith("cuda"):
            raise ConfigError(f"device {self.device!r}: plans are made for cpu and cuda")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(
                f"device={self.device!r} cannot be used: torch sees no CUDA device here; use --device cpu"
            )
        self._parameters_with(min(self.latents, 2))  # refuses sizes that do not fit together

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
    def channels(self) -> int:
        return int(self.sizes.get("channels", 64))

    @property
    def heads(self) -> int:
        return int(self.sizes.get("heads", 8))

    @property
    def sizes(self) -> dict[str, Any]:
        return {key: value for key, value in self.model.items() if key != "name"}

    @property
    def threads(self) -> int:
        """Of the process that does it. torchrun gives each of several ranks one, unless the environment says more."""
        one = self.shared and "OMP_NUM_THREADS" not in os.environ
        return 1 if one else torch.get_num_threads()

    @property
    def training(self) -> bool:
        return self.kind == "training"

    @property
    def in_a_run(self) -> bool:
        """Whether it is part of a training, with all that this keeps: optimiser, loader, logs."""
        return self.kind in ("training", "evaluation")

    @property
    def streams(self) -> bool:
        return self.kind in ("stream", "scratch")

    @property
    def parameters(self) -> int:
        """As many more with every latent."""
        first, second = self._parameters_with(1), self._parameters_with(2)
        return first + (self.latents - 1) * (second - first)

    def _parameters_with(self, latents: int) -> int:
        return _parameters(self.in_dim, self.out_dim, json.dumps(self.sizes | {"latents": latents}, sort_keys=True))

    @property
    def row(self) -> int:
        """Bytes of a point's features, in single precision."""
        return 4 * self.channels

    @property
    def by_kernels(self) -> bool:
        """Whether the native kernels serve it; PyTorch's own operators keep several times as much."""
        return self.device == "cpu" and self.precision == "32" and native.why_not() is None

    @property
    def hands_back(self) -> bool:
        """Whether its arrays are handed back to the system when they are freed; see `HANDED_BACK`."""
        return self.row * (min(self.points, self.chunk) if self.streams else self.work) >= HANDED_BACK

    @property
    def weights_mb(self) -> float:
        """A weight; in a run its gradient and AdamW's two averages, and a second gradient where ranks add them."""
        numbers = (5 if self.shared else 4) if self.in_a_run else 1
        return 4 * numbers * self.parameters / 2**20

    @property
    def known_mb(self) -> float:
        """What needs no measuring: weights, latents of blocks with their sums, kept activations, features of a stream.

        Training and streams keep the latents of every block. Half a dozen arrays of their size are in use at any time,
        and each thread of the kernels has two for its sums: an estimate, which counts where latents are many.
        """
        threads = self.threads if self.device == "cpu" else 0
        arrays = self.batch * (6 + (self.blocks if self.training or self.streams else 0)) + 2 * threads
        latents = 4 * arrays * self.latents * (self.channels + self.heads) / 2**20
        features = self.row * self.points / 2**20 if self.kind == "stream" else 0.0
        return self.weights_mb + latents + self.activations_mb + features

    @property
    def activations_mb(self) -> float:
        """Activations that the kernels keep for the backward of a small step; large steps keep none of them."""
        if not (self.training and self.by_kernels) or self.recompute:
            return 0.0
        kv_depth, ffn_depth, io_depth = (
            int(self.sizes.get(name, default)) for name, default in (("kv_depth", 3), ("ffn_depth", 3), ("io_depth", 2))
        )

        def mlp(depth: int) -> int:
            return math.prod(mlp_activations(self.work, self.channels, depth))

        if self.shared == "points" or self.sizes.get("qk_norm") or self.sizes.get("latent_blocks"):
            block = 2 * mlp(kv_depth) + mlp(ffn_depth)
        else:
            block = math.prod(block_activations(self.batch, self.points, self.channels, kv_depth, ffn_depth))
        return 4 * (self.blocks * block + 2 * mlp(io_depth)) / 2**20


@cache
def _parameters(in_dim: int, out_dim: int, sizes: str) -> int:
    """Of a model with these sizes, as JSON."""
    with torch.device("meta"):
        return count_parameters(build_model("flare", in_dim, out_dim, **json.loads(sizes)))


def prediction(setting: Setting, points: int, *, chunk: int | None = CHUNK) -> Setting:
    """How `flare predict` answers at the points of one sample with the model of a setting; chunk None: all at once."""
    features = setting.row * points
    kind = "whole" if chunk is None or points <= chunk else "stream" if features <= MOST_IN_MEMORY else "scratch"
    same: Any = {name: getattr(setting, name) for name in ("model", "in_dim", "out_dim", "device")}
    return Setting(points=points, kind=kind, chunk=CHUNK if kind == "whole" else chunk or CHUNK, **same)


@dataclass(frozen=True)
class Need:
    memory_mb: float
    """At the peak, of the whole process; on a GPU, of its memory."""
    seconds: float
    """Of a training step or a prediction."""


def measure(setting: Setting) -> Need:
    """Do it, in a process of its own."""
    return alone(trial, setting, setting.threads)


def trial(setting: Setting, threads: int) -> Need:
    """Do it here, several times: the C library keeps freed arrays, and a first step needs less than the third."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    if setting.in_a_run:
        from flare.train.rehearsal import rehearse  # all of the training loop, which a prediction goes without

        return rehearse(setting)
    do = _work(setting)
    do(64)  # loads all that is loaded once
    forget_peak_memory()
    do(setting.points)
    repeats = max(1, min(5, 200_000 // setting.work))
    seconds = median_seconds(lambda: do(setting.points), repeats)
    return Need(peak_memory_mb(), seconds)


def _work(setting: Setting) -> Callable[[int], None]:
    """Points -> the prediction at so many."""
    model = build_model("flare", setting.in_dim, setting.out_dim, **setting.sizes).to(setting.device).eval()

    def whole(points: int) -> None:
        with torch.no_grad():
            model(torch.randn(setting.batch, points, setting.in_dim, device=setting.device))

    return partial(_stream, model, setting) if setting.streams else whole


def _stream(model: nn.Module, setting: Setting, points: int) -> None:
    def read(start: int, stop: int) -> torch.Tensor:
        return torch.randn(setting.batch, stop - start, setting.in_dim, device=setting.device)

    in_memory = 0 if setting.kind == "scratch" else None
    stream = Stream(model=model, points=points, read=read, chunk=setting.chunk, in_memory=in_memory)
    stream.forward(lambda start, stop, y: None)
