"""Parameter groups: weight decay leaves out what the setting names, and matrices have groups of their own."""

import pytest

from flare import build_model
from flare.train.config import OPTIMIZER_DEFAULTS, OptimConfig
from flare.train.optimizers import OPTIMIZERS, build_optimizer
from flare.train.optimizers.groups import SMALLEST_SIDE, parameter_groups
from flare.train.presets import build_config


def kind_of(name):
    if "norm" in name and name.endswith("weight"):
        return "norms"
    return "latents" if "latents" in name else "biases" if name.endswith("bias") else "weights"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "undecayed", [["biases", "norms", "latents"], ["biases", "latents"], ["biases", "norms"], ["biases"], []]
)
def test_weight_decay_leaves_out_the_named_kinds(optimizer, undecayed):
    model = build_model("flare", 2, 1, channels=16, blocks=1, heads=2, latents=4)
    optimizer = build_optimizer(model, OptimConfig(name=optimizer, weight_decay=0.1, undecayed=undecayed))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert decay[id(parameter)] == (0.0 if kind_of(name) in undecayed else 0.1), name


def test_matrices_are_weights_whose_sides_are_long_enough():
    model = build_model("flare", 2, 1, channels=16, blocks=1, heads=2, latents=32)
    groups = parameter_groups(model, OptimConfig(name="muon", lr=0.5, rest_lr=0.25), matrices=True)
    matrices = {id(p) for group in groups if group["matrices"] for p in group["params"]}
    for name, parameter in model.named_parameters():
        is_matrix = kind_of(name) == "weights" and min(parameter.shape) >= SMALLEST_SIDE
        assert (id(parameter) in matrices) == is_matrix, name
    assert {group["peak_lr"] for group in groups if group["matrices"]} == {0.5}
    assert {group["peak_lr"] for group in groups if not group["matrices"]} == {0.25}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_settings_that_are_not_given_are_the_optimizers_own(optimizer):
    read = build_config({"optim": {"name": optimizer, "betas": None}}).optim
    for resolved in (OptimConfig(name=optimizer), read):
        for name, value in OPTIMIZER_DEFAULTS[optimizer].items():
            assert getattr(resolved, name) == value
    assert build_config({"optim": {"name": optimizer, "lr": 0.5}}).optim.lr == 0.5
