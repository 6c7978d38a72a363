"""The cost of models, compared with counts by hand and with autograd."""

import pytest
import torch

from flare import build_model, use_backend
from flare.models import count_parameters
from flare.models.cost import cost_of
from tests.models.test_registry import SMALL


def test_transformer_cost_is_that_of_its_matrix_products():
    C, N, B = 80, 500, 8
    cost = cost_of({"name": "transformer"}, 2, 1, N)
    linear = 2 * C + 3 * C * C + 3 * C * C + C + B * (4 * C * C + 8 * C * C)  # lift, head, blocks
    assert cost.flops == 2 * N * linear + B * 4 * N * N * C
    assert cost.parameters == 660_161


def test_flare_is_linear_and_the_transformer_quadratic_in_the_points():
    flare = [cost_of({"name": "flare", "blocks": 1}, 2, 1, n) for n in (100_000, 200_000)]
    assert flare[1].flops == pytest.approx(2 * flare[0].flops, rel=1e-6)
    assert flare[1].activations == pytest.approx(2 * flare[0].activations, rel=1e-3)
    other = [cost_of({"name": "transformer", "blocks": 1}, 2, 1, n) for n in (100_000, 200_000)]
    assert other[1].flops > 3.9 * other[0].flops


@pytest.mark.parametrize("name", SMALL)
def test_activations_equal_what_autograd_saves(name):
    model, x = use_backend(build_model(name, 2, 1, blocks=2), "sdpa"), torch.randn(1, 300, 2)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}
    kept = {}

    def keep(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        model(x)
    real = sum(storage.nbytes() for at, storage in kept.items() if at not in own)
    cost = cost_of({"name": name, "blocks": 2}, 2, 1, 300)
    assert cost.activations == pytest.approx(real, rel=0.02)
    assert cost.parameters == count_parameters(model)
