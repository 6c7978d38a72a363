"""What a training run is: every setting, its default, and what it buys. No torch here, so `--help` stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from flare.utils.errors import ConfigError

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
    holdout: int | None = None
    """Hold the last so many training samples out of training, as the split `validation` to watch; null: none."""
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


OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "rest_lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 1e-5},
    "muon": {"lr": 3e-3, "rest_lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 1e-5},
    "soap": {"lr": 3e-3, "rest_lr": 3e-3, "betas": (0.95, 0.95), "weight_decay": 1e-5},
}
"""What each optimizer uses for the settings that are null. Those of AdamW are the paper's."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its schedule. Defaults are the paper's for FLARE."""

    name: Literal["adamw", "muon", "soap"] = "adamw"
    """Optimizer. Muon and SOAP treat weight matrices as matrices and use AdamW for everything else."""
    lr: float | None = None
    """Peak learning rate; null: 1e-3 for adamw, 3e-3 for muon and soap."""
    rest_lr: float | None = None
    """Peak learning rate of Muon and SOAP for everything that is not a weight matrix; null: 1e-3 for muon, 3e-3 for
    soap."""
    weight_decay: float | None = None
    """Decoupled decay of everything that is not `undecayed`; null: 1e-5."""
    undecayed: list[str] = field(default_factory=lambda: list(UNDECAYED))
    """What weight decay leaves out. The authors' code of Table 1 has [biases, latents], their later [biases, norms];
    embeddings are only in sequences."""
    betas: tuple[float, float] | None = None
    """Betas of Adam; a onecycle schedule overrides the first one unless cycle_beta1 is false. null: [0.9, 0.999] for
    adamw, [0.9, 0.99] for muon, [0.95, 0.95] for soap."""
    eps: float = 1e-8
    """Denominator floor of Adam."""
    clip: float | None = 1.0
    """Largest gradient norm; null: no clipping."""
    schedule: Literal["onecycle", "cosine", "wsd", "constant"] = "onecycle"
    """Learning rate over the run: onecycle (the paper's), cosine (linear warm-up, then half a cosine to zero), wsd
    (warm-up, stable, decay; a run can be extended or ended early from its stable phase), or constant."""
    warmup: float = 0.1
    """Part of the run in which the learning rate rises to the peak."""
    decay: float = 0.25
    """Part of the run in which wsd decays the learning rate to zero."""
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

    def __post_init__(self) -> None:
        for name, value in OPTIMIZER_DEFAULTS[self.name].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


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
    minutes: float | None = None
    """Train for so many minutes, in place of epochs and steps: the number of steps is chosen from a measured step, such
    that evaluation, calibration and report end in time, too. null: as epochs or steps have it."""
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
        if self.optim.schedule == "wsd" and self.optim.warmup + self.optim.decay > 1:
            raise ConfigError(
                f"optim.warmup={self.optim.warmup} and optim.decay={self.optim.decay} leave wsd no stable phase; "
                "their sum must be at most 1"
            )
        if self.shard and self.optim.name != "adamw":
            raise ConfigError(
                f"optim.name={self.optim.name!r} needs whole weight matrices, and shard splits them over ranks; "
                "use --optim.name adamw, or ranks without --shard"
            )
        if self.shard and self.precision == "16":
            raise ConfigError("shard takes precision 32 or bf16: shards have no loss scaler, which float16 needs")
        if self.data.holdout is not None and self.data.val_split is not None:
            raise ConfigError("data.holdout makes a validation split; drop it, or data.val_split")
        if self.point_ranks is not None and self.split != "points":
            raise ConfigError("point_ranks goes with --split points")

    def _check_ranges(self) -> None:
        data, optim = self.data, self.optim
        counts: dict[str, float | None] = {
            "epochs": self.epochs,
            "steps": self.steps,
            "data.batch_size": data.batch_size,
            "data.eval_batch_size": data.eval_batch_size,
            "data.holdout": data.holdout,
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
            "optim.rest_lr": optim.rest_lr,
            "optim.eps": optim.eps,
            "optim.clip": optim.clip,
            "optim.div": optim.div,
            "optim.final_div": optim.final_div,
            "minutes": self.minutes,
            "checkpoint_minutes": self.checkpoint_minutes,
            "rank_timeout": self.rank_timeout,
        }
        natural: dict[str, float | None] = {
            "seed": self.seed,
            "data.workers": data.workers,
            "optim.weight_decay": optim.weight_decay,
            "loss.gradient_weight": self.loss.gradient_weight,
        }
        parts = {
            "optim.warmup": optim.warmup,
            "optim.decay": optim.decay,
            "optim.ema": optim.ema,
            "data.subsample_growth": data.subsample_growth,
        }
        betas: dict[str, float | None] = {f"optim.betas[{i}]": beta for i, beta in enumerate(optim.betas or ())}
        _demand(counts, lambda x: x >= 1, "at least 1")
        _demand(positive, lambda x: x > 0, "above 0")
        _demand(natural, lambda x: x >= 0, "0 or more")
        _demand(parts, lambda x: 0 < x < 1, "between 0 and 1")
        _demand(betas, lambda x: 0 <= x < 1, "at least 0 and below 1")
        _demand({"diverged": self.diverged}, lambda x: x > 1, "a factor above 1")

    def to_dict(self) -> dict[str, Any]:
        record = asdict(self)
        record["optim"]["betas"] = list(self.optim.betas or ())
        return record


def _demand(settings: Mapping[str, float | None], holds: Callable[[float], bool], what: str) -> None:
    for name, value in settings.items():
        if value is not None and not holds(value):
            raise ConfigError(f"{name}={value}; it must be {what}")
