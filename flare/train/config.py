"""What a training run is: every setting, its default, and what it buys. No torch here, so `--help` stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flare.errors import ConfigError

UNDECAYED = ("biases", "norms", "latents", "embeddings")
"""Kinds of parameters that weight decay may leave out."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which data, and how it is fed."""

    path: str = ""
    """Dataset folder, as `flare data make` and `flare data import` write it."""
    batch_size: int = 2
    """Samples per optimiser step, over all ranks and micro-batches together."""
    eval_batch_size: int = 5
    """Samples per batch when evaluating."""
    train_split: str = "train"
    """Split to learn from."""
    test_split: str = "test"
    """Split to evaluate on; never used for fitting anything."""
    val_split: str | None = None
    """Split to watch while training, and to choose the best weights by; null: the test split is watched."""
    train_samples: int | None = None
    """Use only the first so many training samples; null: all."""
    test_samples: int | None = None
    """Use only the first so many test samples; null: all."""
    val_samples: int | None = None
    """Use only the first so many samples of the split to watch; null: all."""
    subsample: int | None = None
    """Points drawn from each sample anew every epoch; null: all points."""
    subsample_from: int | None = None
    """Points drawn in the first epoch; they grow by a constant factor an epoch to `subsample`. null: no growth."""
    subsample_growth: float = 0.5
    """Part of the run in which they grow."""
    mirror: list[str] = field(default_factory=list)
    """Planes, such as [x, y, x=y] for x = 0, y = 0 and the diagonal one, in which training samples are mirrored at
    random: more data for nothing where the physics has that symmetry, wrong where it has not. Vectors turn along."""
    turn: list[str] = field(default_factory=list)
    """Two axes, such as [x, y], between which training samples are turned about zero by any angle, likewise."""
    normalise: dict[str, Any] = field(default_factory=dict)
    """Field -> identity, gaussian or minmax (or a mapping with published constants); gaussian where not named."""
    workers: int = 0
    """Loader processes; they share the dataset's pages. 0: load in the training process."""
    protocol: Literal["own", "dev-split-no-mask"] = "own"
    """Of sequences. `own` masks padding and judges by validation and test. `dev-split-no-mask` is how the published
    table was made: all padded to one length, padding attended to and pooled, judged by the validation split alone
    (of Text that was the test: --data.val_split test)."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW and its schedule. Defaults are the paper's for FLARE."""

    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 1e-5
    """Decoupled decay, of all that is not `undecayed`."""
    undecayed: list[str] = field(default_factory=lambda: list(UNDECAYED))
    """What weight decay leaves out. The authors' code of Table 1 has [biases, latents], their later [biases, norms];
    embeddings are only in sequences."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's averages; a onecycle schedule overrides the first one unless cycle_beta1 is false."""
    eps: float = 1e-8
    """AdamW's denominator floor."""
    clip: float | None = 1.0
    """Largest gradient norm; null: no clipping."""
    schedule: Literal["onecycle", "constant"] = "onecycle"
    """Learning rate over the run."""
    warmup: float = 0.1
    """Part of the run in which onecycle rises to the peak."""
    div: float = 1e4
    """onecycle starts at lr / div."""
    final_div: float = 1e4
    """onecycle ends at lr / div / final_div."""
    cycle_beta1: bool = True
    """onecycle moves beta1 from 0.95 to 0.85 at the peak and back, as the paper's runs did."""
    accumulate: int = 1
    """Micro-batches a batch is split into: less memory, the same mathematics."""
    ema: float | None = None
    """Decay of a running average of the weights, such as 0.999; null: none is kept."""


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """Relative L2 in physical values, per sample, averaged over the batch."""

    gradient_weight: float = 0.0
    """Weight of the same loss of both grid derivatives (0.1 for Darcy in the paper); needs data on a grid."""
    offset: float = 0.0
    """Added to truth and prediction before they are compared, in the loss and in the result: what the authors' code for
    LPBF does, with 1.318 mm. Errors then look several times smaller; 0 is the plain relative error."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"name": "flare"})
    """`name` and the keyword arguments of that model, such as --model.channels 64; docs/model.md lists
    those of fields, docs/peers.md those of other models and of sequences."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = 500
    """Passes over the training samples."""
    steps: int | None = None
    """Optimiser steps in all, in place of epochs; null: as the epochs make them."""
    seed: int = 0
    """Of initial weights, order of samples, and subsampled points."""
    precision: Literal["32", "bf16", "16"] = "32"
    """Full single precision, or mixed with bfloat16 or float16 (the latter on CUDA only)."""
    split: Literal["samples", "points"] = "samples"
    """What the ranks of torchrun share: the samples of a batch, or the points of every sample."""
    point_ranks: int | None = None
    """With split points: so many ranks share the points of a sample, the others the samples of a batch; null: all."""
    shard: bool = False
    """Ranks share weights, gradients and the optimiser's state too (FSDP): for models too large for one of them."""
    rank_timeout: float = 600.0
    """Seconds a rank waits for the others before it gives the run up. One that dies is noticed at once."""
    recompute: bool = False
    """Backward computes each block anew instead of keeping what it needs: less memory, about a third more time."""
    compile: bool = False
    """Compile the network with torch.compile."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `mps`."""
    evaluate_every: int = 10
    """Epochs between evaluations; the last epoch is always evaluated."""
    checkpoint_every: int = 1
    """Epochs between checkpoints."""
    checkpoint_minutes: float = 10.0
    """A checkpoint also after so many minutes within an epoch."""
    log_every: int = 20
    """Steps between lines of metrics.jsonl."""
    diverged: float = 100.0
    """Stop when the smoothed loss is so many times its best."""

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise ConfigError("model.name is missing; say which model, such as --model.name flare")
        self._check_ranges()
        for kind in self.optim.undecayed:
            if kind not in UNDECAYED:
                raise ConfigError(f"optim.undecayed has {kind!r}; known: {', '.join(UNDECAYED)}")
        if self.loss.gradient_weight and (self.data.subsample or self.data.subsample_from):
            raise ConfigError("loss.gradient_weight needs the whole grid; drop data.subsample or the gradient term")
        if self.loss.gradient_weight and self.split == "points":
            raise ConfigError("loss.gradient_weight needs the whole grid on every rank; use --split samples")
        start, end = self.data.subsample_from, self.data.subsample
        if start is not None and end is not None and start > end:
            raise ConfigError(f"data.subsample_from={start} is more than data.subsample={end}, to which points grow")
        if self.shard and self.precision == "16":
            raise ConfigError("shard takes precision 32 or bf16: shards have no loss scaler, which float16 needs")
        if self.point_ranks is not None and self.split != "points":
            raise ConfigError("point_ranks goes with --split points")

    def _check_ranges(self) -> None:
        data, optim = self.data, self.optim
        counts: dict[str, float | None] = {
            "epochs": self.epochs,
            "steps": self.steps,
            "data.batch_size": data.batch_size,
            "data.eval_batch_size": data.eval_batch_size,
            "data.train_samples": data.train_samples,
            "data.test_samples": data.test_samples,
            "data.val_samples": data.val_samples,
            "data.subsample": data.subsample,
            "data.subsample_from": data.subsample_from,
            "point_ranks": self.point_ranks,
            "optim.accumulate": optim.accumulate,
            "evaluate_every": self.evaluate_every,
            "checkpoint_every": self.checkpoint_every,
            "log_every": self.log_every,
        }
        positive: dict[str, float | None] = {
            "optim.lr": optim.lr,
            "optim.eps": optim.eps,
            "optim.clip": optim.clip,
            "optim.div": optim.div,
            "optim.final_div": optim.final_div,
            "checkpoint_minutes": self.checkpoint_minutes,
            "rank_timeout": self.rank_timeout,
        }
        natural: dict[str, float | None] = {
            "seed": self.seed,
            "data.workers": data.workers,
            "optim.weight_decay": optim.weight_decay,
            "loss.gradient_weight": self.loss.gradient_weight,
        }
        parts = {"optim.warmup": optim.warmup, "optim.ema": optim.ema, "data.subsample_growth": data.subsample_growth}
        betas: dict[str, float | None] = {f"optim.betas[{i}]": beta for i, beta in enumerate(optim.betas)}
        _demand(counts, lambda x: x >= 1, "at least 1")
        _demand(positive, lambda x: x > 0, "above 0")
        _demand(natural, lambda x: x >= 0, "0 or more")
        _demand(parts, lambda x: 0 < x < 1, "between 0 and 1")
        _demand(betas, lambda x: 0 <= x < 1, "at least 0 and below 1")
        _demand({"diverged": self.diverged}, lambda x: x > 1, "a factor above 1")

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        record["optim"]["betas"] = list(self.optim.betas)
        return record


def _demand(settings: Mapping[str, float | None], holds: Callable[[float], bool], what: str) -> None:
    for name, value in settings.items():
        if value is not None and not holds(value):
            raise ConfigError(f"{name}={value}; it must be {what}")
