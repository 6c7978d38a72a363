"""What a model costs, against what can be counted by hand."""

import pytest
import torch

from flare import build_model, use_backend
from flare.cli import main
from flare.models import MODELS, count_parameters
from flare.models.cost import cost_of
from flare.train.recipes import recipe_names


def test_a_transformer_is_its_matrix_products():
    C, N, B = 80, 500, 8
    cost = cost_of({"name": "transformer"}, 2, 1, N)
    linear = 2 * C + 3 * C * C + 3 * C * C + C + B * (4 * C * C + 8 * C * C)  # lift, head, blocks
    assert cost.flops == 2 * N * linear + B * 4 * N * N * C
    assert cost.parameters == 660_161


def test_flares_operations_and_memory_grow_with_the_points_and_a_transformers_with_their_square():
    flare = [cost_of({"name": "flare"}, 2, 1, n) for n in (100_000, 200_000)]
    assert flare[1].flops == pytest.approx(2 * flare[0].flops, rel=1e-6)
    assert flare[1].activations == pytest.approx(2 * flare[0].activations, rel=1e-3)
    other = [cost_of({"name": "transformer"}, 2, 1, n) for n in (100_000, 200_000)]
    assert other[1].flops > 3.9 * other[0].flops


@pytest.mark.parametrize("name", MODELS)
def test_activations_are_what_autograd_keeps(name):
    model, x = use_backend(build_model(name, 2, 1), "sdpa"), torch.randn(1, 300, 2)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers(), x)}
    kept = {}

    def keep(t):
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        model(x)
    real = sum(storage.nbytes() for at, storage in kept.items() if at not in own)
    cost = cost_of({"name": name}, 2, 1, 300)
    assert cost.activations == pytest.approx(real, rel=0.02)
    assert cost.parameters == count_parameters(model)


def test_the_command_lists_every_model(capsys):
    assert main(["models", "--points", "400"]) == 0
    told = capsys.readouterr().out
    assert all(f"\n{name} " in told for name in recipe_names())
    assert main(["models", "--preset", "darcy"]) == 0
    told = capsys.readouterr().out
    assert "2,826,945" in told
    assert "691,009" in told
    assert "for 7,225 points" in told
    assert main(["models", "--preset", "elasticity"]) == 0
    assert "transolver-conv" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--points", "-5"], ["--points", "0"], ["--in-dim", "0"], ["--out-dim", "0"]])
def test_sizes_that_cannot_be_are_refused(words, capsys):
    assert main(["models", *words]) == 2
    assert "at least 1 each" in capsys.readouterr().err
