"""Settings of a training run. This module does not import torch, so that `--help` stays fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, Literal

from flare.utils.errors import ConfigError
from flare.utils.registry import Registered, Registry

UNDECAYED = ("biases", "norms", "latents", "embeddings")
"""Kinds of parameters that weight decay can leave out."""
LOSSES: Registry[Callable[..., Any]] = Registry("loss", {"relative_l2": "flare.train.losses:relative_l2"})
"""Loss functions of fields by name."""
OPTIMIZERS: Registry[Callable[..., Any]] = Registry(
    "optimizer", {name: f"flare.train.optimizers:build_{name}" for name in ("adamw", "muon", "soap")}
)
"""Functions that build an optimizer, by name."""
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "rest_lr": 1e-3, "betas": (0.9, 0.999), "weight_decay": 1e-5},
    "muon": {"lr": 3e-3, "rest_lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 1e-5},
    "soap": {"lr": 3e-3, "rest_lr": 3e-3, "betas": (0.95, 0.95), "weight_decay": 1e-5},
}
"""Values of the optimizer settings that are null, by optimizer. Those of AdamW are the paper's."""


def register_loss(name: str) -> Callable[[Registered], Registered]:
    """Register a loss function of fields; `loss.name` then selects it.

    The function is called as `loss(prediction, target, mask)` with physical values of shape (B, N, F) and a boolean
    mask (B, N) that is True at real points, or None if all points are real. It returns a tensor of any shape, whose
    mean is minimized. Evaluation uses the relative L2 error, whatever the loss.

    Args:
        name: Name of the loss, such as `mse`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ConfigError: Another loss has this name.

    Example:
        >>> import flare
        >>> @flare.register_loss("mean-absolute")
        ... def mean_absolute(prediction, target, mask=None):
        ...     error = (prediction - target).abs()
        ...     return error if mask is None else error[mask]
        >>> run = flare.train("data/mine", epochs=1, settings={"loss.name": "mean-absolute"})  # doctest: +SKIP
    """
    return LOSSES.register(name)


def register_optimizer(name: str, **defaults: Any) -> Callable[[Registered], Registered]:
    """Register an optimizer; `optim.name` then selects it.

    The function is called as `build(model, optim, fused)` with a module, an `OptimConfig`, and whether fused kernels
    can be used. It returns a `torch.optim.Optimizer` whose groups have `peak_lr` and `betas`, which the schedule reads;
    `flare.train.optimizers.parameter_groups(model, optim)` makes such groups.

    Args:
        name: Name of the optimizer, such as `nadam`.
        defaults: Values of `lr`, `rest_lr`, `betas` and `weight_decay` if they are null; default those of AdamW.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        ConfigError: Another optimizer has this name.

    Example:
        >>> import flare, torch
        >>> from flare.train.optimizers import parameter_groups
        >>> @flare.register_optimizer("nadam", lr=2e-3)
        ... def nadam(model, optim, fused):
        ...     return torch.optim.NAdam(parameter_groups(model, optim), eps=optim.eps)
    """

    def add(build: Registered) -> Registered:
        OPTIMIZERS.register(name)(build)
        OPTIMIZER_DEFAULTS[name] = OPTIMIZER_DEFAULTS["adamw"] | defaults
        return build

    return add


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Dataset, splits and batches."""

    path: str = ""
    """Dataset folder, as written by `flare data make` and `flare data import`."""
    batch_size: int = 2
    """Samples per optimizer step, over all ranks and micro-batches."""
    eval_batch_size: int = 5
    """Samples per batch in evaluations."""
    train_split: str = "train"
    """Split to learn from."""
    test_split: str = "test"
    """Split to evaluate on; nothing is fitted to it."""
    val_split: str | None = None
    """Split to watch while training and to choose the best weights by; null: the test split."""
    holdout: int | None = None
    """Number of training samples, the last ones, to use as the split `validation` instead; null: none."""
    train_samples: int | None = None
    """Use only the first samples of the training split, this many; null: all."""
    test_samples: int | None = None
    """Use only the first samples of the test split, this many; null: all."""
    val_samples: int | None = None
    """Use only the first samples of the validation split, this many; null: all."""
    subsample: int | None = None
    """Points drawn at random from each sample in every epoch; null: all points."""
    subsample_from: int | None = None
    """Points drawn in the first epoch; the number grows by a constant factor per epoch up to `subsample`. null: no
    growth."""
    subsample_growth: float = 0.5
    """Fraction of the run in which the number of points grows."""
    mirror: list[str] = field(default_factory=list)
    """Planes such as [x, y, x=y] (x = 0, y = 0 and the diagonal) in which training samples are mirrored at random, for
    physics with that symmetry. Vectors are mirrored too."""
    turn: list[str] = field(default_factory=list)
    """Two axes such as [x, y]; training samples are rotated about the origin in their plane by random angles."""
    normalize: dict[str, Any] = field(default_factory=dict)
    """Field -> identity, gaussian or minmax, or a mapping with constants; default gaussian."""
    workers: int = 0
    """Loader processes. 0: load in the training process."""
    protocol: Literal["own", "dev-split-no-mask"] = "own"
    """For sequences only. `own` masks padding and evaluates on validation and test. `dev-split-no-mask` follows the
    published table: all sequences padded to one length, padding attended to and pooled, evaluation on the validation
    split alone (for Text that was the test split: --data.val_split test)."""


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The optimizer and its schedule. Defaults are the paper's for FLARE."""

    name: str = "adamw"
    """Optimizer: adamw, muon, soap, or a registered one. Muon and SOAP treat weight matrices as matrices and use AdamW
    for everything else."""
    lr: float | None = None
    """Peak learning rate; null: 1e-3 for adamw, 3e-3 for muon and soap."""
    rest_lr: float | None = None
    """Peak learning rate of Muon and SOAP for everything but weight matrices; null: 1e-3 for muon, 3e-3 for soap."""
    weight_decay: float | None = None
    """Decoupled weight decay; null: 1e-5."""
    undecayed: list[str] = field(default_factory=lambda: list(UNDECAYED))
    """Parameters without weight decay. The authors' code has [biases, latents] for Table 1 and [biases, norms] later;
    only sequences have embeddings."""
    betas: tuple[float, float] | None = None
    """Betas of Adam; onecycle overrides the first one unless cycle_beta1 is false. null: [0.9, 0.999] for adamw,
    [0.9, 0.99] for muon, [0.95, 0.95] for soap."""
    eps: float = 1e-8
    """Epsilon in the denominator of Adam."""
    clip: float | None = 1.0
    """Largest gradient norm; null: no clipping."""
    schedule: Literal["onecycle", "cosine", "wsd", "constant"] = "onecycle"
    """Learning rate over the run: onecycle (the paper's), cosine (linear warm-up, then half a cosine to zero), wsd
    (warm-up, stable, decay; the run can be extended, or ended early in its stable phase), or constant."""
    warmup: float = 0.1
    """Fraction of the run in which the learning rate rises to its peak."""
    decay: float = 0.25
    """Fraction of the run in which wsd lowers the learning rate to zero."""
    div: float = 1e4
    """onecycle starts at lr / div."""
    final_div: float = 1e4
    """onecycle ends at lr / div / final_div."""
    cycle_beta1: bool = True
    """onecycle moves beta1 from 0.95 to 0.85 at the peak and back, as in the paper's runs."""
    accumulate: int = 1
    """Micro-batches per batch: less memory, the same result."""
    ema: float | None = None
    """Decay of a running average of the weights, such as 0.999; null: no average."""

    def __post_init__(self) -> None:
        OPTIMIZERS.check(self.name)
        for name, value in OPTIMIZER_DEFAULTS[self.name].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The loss, averaged over the samples of a batch."""

    name: str = "relative_l2"
    """Loss: relative_l2 (the paper's, per sample and field, in physical values), or a registered one."""
    gradient_weight: float = 0.0
    """Weight of the relative L2 loss of both grid derivatives (0.1 for Darcy in the paper); needs data on a grid."""
    offset: float = 0.0
    """Constant added to truth and prediction before the relative L2 error is taken, in the loss and in the result. The
    authors' code for LPBF uses 1.318 mm, which makes errors look several times smaller. 0: the plain relative error."""

    def __post_init__(self) -> None:
        LOSSES.check(self.name)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    data: DataConfig = field(default_factory=DataConfig)
    model: dict[str, Any] = field(default_factory=lambda: {"name": "flare"})
    """`name` and the keyword arguments of that model, such as --model.channels 64; see
    docs/concepts/model.md for FLARE and docs/concepts/baselines.md for the baselines and sequences."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    epochs: int = 500
    """Passes over the training samples."""
    steps: int | None = None
    """Number of optimizer steps, instead of epochs; null: use epochs."""
    minutes: float | None = None
    """Duration of the run, instead of epochs and steps: the number of steps is chosen from a measured step so that
    training, evaluation, calibration and report end in time. null: use epochs or steps."""
    seed: int = 0
    """Seed of the initial weights, the order of samples, and the subsampled points."""
    precision: Literal["32", "bf16", "16"] = "32"
    """Single precision, or mixed precision with bfloat16 or float16 (float16 on CUDA only)."""
    ranks_share: Literal["samples", "points"] = "samples"
    """What the ranks of torchrun share: the samples of a batch, or the points of every sample."""
    point_ranks: int | None = None
    """If `ranks_share` is points: number of ranks that share the points of one sample; null: all."""
    shard: bool = False
    """Also split weights, gradients and optimizer state over ranks (FSDP), for models too large for one device."""
    rank_timeout: float = 600.0
    """Seconds a rank waits for the others before it gives up. A rank that dies is noticed at once."""
    recompute: bool = False
    """Recompute each block in the backward pass: less memory, about a third more time."""
    compile: bool = False
    """Compile the network with torch.compile."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda`, `mps`."""
    evaluate_every: int = 10
    """Epochs between evaluations; the last epoch is always evaluated."""
    checkpoint_every: int = 1
    """Epochs between checkpoints."""
    checkpoint_minutes: float = 10.0
    """Minutes after which a checkpoint is written within an epoch."""
    log_every: int = 20
    """Steps between lines of metrics.jsonl."""
    diverged: float = 100.0
    """Stop if the smoothed loss is this many times its lowest value."""

    def __post_init__(self) -> None:
        if not isinstance(self.model.get("name"), str):
            raise ConfigError("model.name is missing; name a model, such as flare")
        self._check_ranges()
        data, optim = self.data, self.optim
        for kind in optim.undecayed:
            if kind not in UNDECAYED:
                raise ConfigError(f"optim.undecayed has {kind!r}; known: {', '.join(UNDECAYED)}")
        if self.loss.gradient_weight and (data.subsample or data.subsample_from or self.ranks_share == "points"):
            raise ConfigError("loss.gradient_weight needs ranks_share='samples' and no data.subsample")
        if self.loss.name != "relative_l2" and self.ranks_share == "points":
            raise ConfigError(f"loss.name={self.loss.name!r} needs all points on every rank; use ranks_share='samples'")
        start, end = data.subsample_from, data.subsample
        if start is not None and end is not None and start > end:
            raise ConfigError(f"data.subsample_from={start} is larger than data.subsample={end}")
        if optim.schedule == "wsd" and optim.warmup + optim.decay > 1:
            raise ConfigError(f"optim.warmup={optim.warmup} and optim.decay={optim.decay} sum to more than 1")
        if self.shard and (optim.name != "adamw" or self.precision == "16"):
            raise ConfigError("shard needs optim.name='adamw' and precision 32 or bf16")
        if data.holdout is not None and data.val_split is not None:
            raise ConfigError("data.holdout and data.val_split both define a validation split; drop one of them")
        if self.point_ranks is not None and self.ranks_share != "points":
            raise ConfigError("point_ranks needs ranks_share='points'")

    def _check_ranges(self) -> None:
        for names, holds, wanted in RANGES:
            for name in names.split():
                value = reduce(getattr, name.split("."), self)
                for number in value if isinstance(value, (tuple, list)) else [value]:
                    if number is not None and not holds(number):
                        raise ConfigError(f"{name}={number}; it must be {wanted}")

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as nested dictionaries of plain values."""
        record = asdict(self)
        record["optim"]["betas"] = list(self.optim.betas or ())
        return record


RANGES: list[tuple[str, Callable[[Any], bool], str]] = [
    (
        "epochs steps point_ranks evaluate_every checkpoint_every log_every optim.accumulate data.batch_size "
        "data.eval_batch_size data.holdout data.train_samples data.test_samples data.val_samples data.subsample "
        "data.subsample_from",
        lambda x: x >= 1,
        "at least 1",
    ),
    (
        "optim.lr optim.rest_lr optim.eps optim.clip optim.div optim.final_div minutes checkpoint_minutes rank_timeout",
        lambda x: x > 0,
        "above 0",
    ),
    ("seed data.workers optim.weight_decay loss.gradient_weight", lambda x: x >= 0, "0 or more"),
    ("optim.warmup optim.decay optim.ema data.subsample_growth", lambda x: 0 < x < 1, "between 0 and 1"),
    ("optim.betas", lambda x: 0 <= x < 1, "at least 0 and below 1"),
    ("diverged", lambda x: x > 1, "a factor above 1"),
]
"""Settings, the condition on their values, and its wording."""
