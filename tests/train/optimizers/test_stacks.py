"""What Muon and SOAP share: a stack updates each matrix as if it were alone, and AdamW updates the rest."""

import pytest
import torch
from torch import nn

from flare.train.optimizers.muon import Muon
from flare.train.optimizers.soap import SOAP
from tests.train.optimizers.paths import follow

pytestmark = pytest.mark.parametrize("optimizer", [Muon, SOAP])


def test_a_stack_gives_the_update_of_each_matrix_alone(optimizer):
    def make(params):
        return optimizer([{"params": params, "matrices": True}], lr=0.05)

    shapes = [(24, 16), (16, 16), (24, 16), (24, 16)]
    together = follow(make, shapes, torch.float32)
    for i, shape in enumerate(shapes):
        alone = follow(make, [shape], torch.float32, i)
        torch.testing.assert_close(alone[0], together[i], rtol=1e-6, atol=1e-6)


def test_the_rest_takes_the_path_of_adamw(optimizer):
    shapes = [(8,), (4, 8)]
    settings = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}
    ours = follow(lambda params: optimizer([{"params": params, "matrices": False, **settings}]), shapes, torch.float32)
    theirs = follow(lambda params: torch.optim.AdamW(params, fused=True, **settings), shapes, torch.float32)
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)


def test_a_parameter_without_gradient_stays(optimizer):
    used, idle = (nn.Parameter(torch.ones(16, 16)) for _ in range(2))
    step = optimizer([{"params": [used, idle], "matrices": True}]).step
    for _ in range(2):  # the first step of SOAP only fits its bases
        used.grad = torch.randn(16, 16)
        step()
    assert not torch.equal(used, torch.ones(16, 16))
    assert torch.equal(idle, torch.ones(16, 16))
