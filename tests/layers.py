"""Layers and models to compare across backends: outputs and all gradients."""

import copy

import torch

from flare.models import use_backend
from tests.exact import assert_exact, noise

SMALL = {"channels": 16, "blocks": 2, "heads": 4, "latents": 8, "kv_depth": 1, "ffn_depth": 1, "io_depth": 1}


def lively(module, seed=0):
    """Weights and biases of order one, so that every path matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        width = 2.0 if weight.ndim == 1 else weight.shape[-1] ** 0.5
        weight.data = torch.randn(weight.shape, generator=generator) / width
        if name.endswith("norm.weight"):
            weight.data += 1.0
    return module


def with_backend(module, backend):
    return use_backend(copy.deepcopy(module), backend)


def results(module, x, mask=None):
    """Output and the gradients of the input and of all weights."""
    x = x.detach().clone().requires_grad_()
    y = module(x) if mask is None else module(x, mask)
    weights = list(module.parameters())
    return [y.detach(), *torch.autograd.grad(y, [x, *weights], noise(y.shape, 4, y.dtype))]


def check(module, x, mask=None, slack=3.0, floors=1.0):
    want = results(with_backend(module, "reference").double(), x.double(), mask)
    got, *eager = (results(with_backend(module, b), x, mask) for b in ("native", "sdpa", "reference"))
    assert_exact(got, want, *eager, floors=floors, slack=slack)
    return got


def weights_of(block):
    mixer = block.mixer
    parts = block.mixer_norm, mixer.key, mixer.value, mixer.out, block.ffn_norm, block.ffn
    return [weight for part in parts for weight in part.parameters()]
