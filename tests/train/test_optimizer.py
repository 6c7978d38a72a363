"""What goes without weight decay is what the setting names."""

import pytest

from flare import build_model
from flare.errors import ConfigError
from flare.train.config import OptimConfig, TrainConfig
from flare.train.optimizer import make_optimizer


@pytest.mark.parametrize(
    "undecayed", [["biases", "norms", "latents"], ["biases", "latents"], ["biases", "norms"], ["biases"], []]
)
def test_what_is_named_goes_without_decay(undecayed):
    model = build_model("flare", 2, 1, channels=8, blocks=1, heads=2, latents=4)
    optimizer = make_optimizer(model, OptimConfig(weight_decay=0.1, undecayed=undecayed), fused=False)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        kind = "latents" if "latents" in name else "biases" if name.endswith("bias") else "weights"
        if "norm" in name and name.endswith("weight"):
            kind = "norms"
        assert decay[id(parameter)] == (0.0 if kind in undecayed else 0.1), name


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="known: biases, norms, latents, embeddings"):
        TrainConfig(optim=OptimConfig(undecayed=["bias"]))
