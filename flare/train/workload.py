"""Workloads: training steps, evaluations and predictions of a FLARE model on one rank, and the memory known of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from flare.mixer import native
from flare.mixer.native.block_ops import block_activations, mlp_activations
from flare.models import build_model, count_parameters
from flare.models.streaming import CHUNK, MOST_IN_MEMORY
from flare.utils.errors import ConfigError

KINDS = ("training", "evaluation", "whole", "stream", "scratch")
"""One optimizer step; the prediction at all points at once within a training; that of `flare predict` at all points at
once, in chunks with the features of all points in memory, and in chunks with the features in a scratch file."""
DEFAULTS = {"blocks": 8, "latents": 64, "channels": 64, "heads": 8, "kv_depth": 3, "ffn_depth": 3, "io_depth": 2}
"""Sizes of a FLARE model whose settings do not name them."""
MMAP_BYTES = 32 * 2**20
"""Size from which the C library returns an array to the system when it is freed. It caches smaller arrays, so that
workloads with small arrays need more memory than the law of large ones predicts: they are calibrated separately."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One training step, evaluation or prediction of a FLARE model on one rank."""

    model: Mapping[str, Any]
    """Sizes of the model, as `build_model` takes them."""
    in_dim: int = 3
    out_dim: int = 1
    points: int
    """Points per sample on this rank."""
    batch: int = 1
    """Samples at a time on this rank."""
    kind: str = "training"
    """One of `KINDS`."""
    precision: str = "32"
    recompute: bool = False
    device: str = "cpu"
    shared: str = ""
    """What the ranks share: `samples` of a batch, `points` of a sample, or nothing. With shared points a block is not
    one kernel. With either, gradients are kept twice."""
    chunk: int = CHUNK
    """Points per chunk of a streamed prediction."""

    def __post_init__(self) -> None:
        if self.model.get("name", "flare") != "flare":
            raise ConfigError(f"model {self.model['name']!r}: memory and time are predicted for FLARE models only")
        if min(self.points, self.batch, self.chunk) < 1:
            raise ConfigError(f"points={self.points}, batch={self.batch}, chunk={self.chunk}: each must be at least 1")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError(f"device={self.device!r}: torch finds no CUDA device on this machine; use device='cpu'")
        assert self.parameters  # raises if the sizes do not fit together

    @property
    def sizes(self) -> dict[str, Any]:
        """Keyword arguments of the model."""
        return {key: value for key, value in self.model.items() if key != "name"}

    def size(self, name: str) -> int:
        """Return a size of the model, one of `DEFAULTS`."""
        return int(self.model.get(name, DEFAULTS[name]))

    @property
    def total_points(self) -> int:
        """Points of the batch on this rank."""
        return self.batch * self.points

    @property
    def threads(self) -> int:
        """Threads of the process. torchrun gives each of several ranks one, unless OMP_NUM_THREADS is set."""
        return 1 if self.shared and "OMP_NUM_THREADS" not in os.environ else torch.get_num_threads()

    @property
    def is_training(self) -> bool:
        """True if the workload is an optimizer step."""
        return self.kind == "training"

    @property
    def is_in_run(self) -> bool:
        """True if the workload is part of a training, which also holds the optimizer, the loader and the logs."""
        return self.kind in ("training", "evaluation")

    @property
    def is_streamed(self) -> bool:
        """True if points are processed in chunks."""
        return self.kind in ("stream", "scratch")

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return _count_parameters(self.in_dim, self.out_dim, json.dumps(self.sizes, sort_keys=True))

    @property
    def point_bytes(self) -> int:
        """Bytes of the features of one point in single precision."""
        return 4 * self.size("channels")

    @property
    def uses_kernels(self) -> bool:
        """True if the native kernels run the workload. PyTorch's own operators keep several times as much memory."""
        return self.device == "cpu" and self.precision == "32" and native.why_not() is None

    @property
    def returns_memory(self) -> bool:
        """True if freed arrays go back to the system; see `MMAP_BYTES`."""
        points = min(self.points, self.chunk) if self.is_streamed else self.total_points
        return self.point_bytes * points >= MMAP_BYTES

    @property
    def known_mb(self) -> float:
        """Memory that needs no measurement: weights, latents, kept activations and features of a stream.

        A run keeps the weights, their gradients (twice if ranks share) and AdamW's two averages. Training and streams
        keep the latents of every block. About six arrays of their size are in use at any time, and each thread of the
        kernels has two for its sums: an estimate that matters only for many latents.
        """
        copies = (5 if self.shared else 4) if self.is_in_run else 1
        threads = self.threads if self.device == "cpu" else 0
        kept = self.size("blocks") if self.is_training or self.is_streamed else 0
        latents = (self.batch * (6 + kept) + 2 * threads) * self.size("latents")
        numbers = copies * self.parameters + latents * (self.size("channels") + self.size("heads"))
        features = self.point_bytes * self.points if self.kind == "stream" else 0
        return (4 * numbers + features) / 2**20 + self.activations_mb

    @property
    def activations_mb(self) -> float:
        """Memory of the activations that the kernels keep for the backward pass of a small step; 0 for large ones."""
        if not (self.is_training and self.uses_kernels) or self.recompute:
            return 0.0
        channels, kv_depth, ffn_depth = self.size("channels"), self.size("kv_depth"), self.size("ffn_depth")

        def mlp(depth: int) -> int:
            return math.prod(mlp_activations(self.total_points, channels, depth))

        if self.shared == "points" or self.model.get("qk_norm") or self.model.get("latent_blocks"):
            block = 2 * mlp(kv_depth) + mlp(ffn_depth)
        else:
            block = math.prod(block_activations(self.batch, self.points, channels, kv_depth, ffn_depth))
        return 4 * (self.size("blocks") * block + 2 * mlp(self.size("io_depth"))) / 2**20


@cache
def _count_parameters(in_dim: int, out_dim: int, sizes_json: str) -> int:
    with torch.device("meta"):
        return count_parameters(build_model("flare", in_dim, out_dim, **json.loads(sizes_json)))


def prediction_workload(workload: Workload, points: int, *, chunk: int | None = CHUNK) -> Workload:
    """Return how `flare predict` evaluates the model of a workload at the points of one sample.

    Args:
        workload: Any workload of the model.
        points: Number of points.
        chunk: Points at a time; None for all at once.
    """
    kind = "stream" if workload.point_bytes * points <= MOST_IN_MEMORY else "scratch"
    if chunk is None or points <= chunk:
        kind, chunk = "whole", CHUNK
    same: Any = {name: getattr(workload, name) for name in ("model", "in_dim", "out_dim", "device")}
    return Workload(points=points, kind=kind, chunk=chunk, **same)
