"""What the table of architectures says of this code is counted: costs that follow their formula, and the criteria."""

from functools import cache

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from flare.models import build_model
from flare.models.cost import _ATTENTION
from flare.reproduce.budgets import BUDGETS
from flare.reproduce.items.architectures import ARCHITECTURES, criteria_table, formula, pairs
from flare.train.recipes import OF_DATA

LATENTS = ("latents", "slices", "modes")
SIZE = {"points": 16_384, "latents": 16, "blocks": 2}


def built(model, points, latents, blocks):
    sizes = {**BUDGETS["paper"].model("elasticity", model), "blocks": blocks}
    sizes |= {key: latents for key in LATENTS if key in sizes}
    if sizes.get("grid") == OF_DATA:
        sizes["grid"] = [128, points // 128]
    return build_model(sizes.pop("name"), 2, 1, **sizes)


@cache
def counted(model, points, latents, blocks):
    """Operations of products between tokens, by kind: fused attention, and all others that are no linear map."""
    with FakeTensorMode():
        network = built(model, points, latents, blocks)
        with FlopCounterMode(display=False, custom_mapping=_ATTENTION) as counter:
            network(torch.empty(1, points, 2))
    found = {"fused": 0, "other": 0}
    for kind, flops in counter.get_flop_counts()["Global"].items():
        if "scaled_dot_product" in str(kind):
            found["fused"] += flops
        elif "bmm" in str(kind):
            found["other"] += flops
    return found


def mixing(model, **sizes):
    return sum(counted(model, **{**SIZE, **sizes}).values())


@pytest.mark.parametrize("model", ARCHITECTURES)
@pytest.mark.parametrize("changed", [{}, {"points": 32_768}, {"latents": 32}, {"blocks": 4}])
def test_counted_operations_follow_the_formula(model, changed):
    terms, sizes = ARCHITECTURES[model].mixing, {**SIZE, **changed}
    width = 128 // 8  # of GNOT's heads, the only cost with D
    printed = [pairs(terms, N=s["points"], M=s["latents"], B=s["blocks"], D=width) for s in (SIZE, sizes)]
    assert mixing(model, **changed) / mixing(model) == pytest.approx(printed[1] / printed[0], rel=0.03)


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_a_pair_costs_its_products(model):
    """4C operations, score and value, where both are made in attention; half of that where weights come from a map."""
    printed = pairs(ARCHITECTURES[model].mixing, N=SIZE["points"], M=16, B=2, D=16)
    channels = BUDGETS["paper"].model("elasticity", model)["channels"]
    operations = mixing(model) / channels / printed
    assert operations == 4 if ARCHITECTURES[model].fused else 2 <= operations <= 4.2


@pytest.mark.parametrize("model", ARCHITECTURES)
def test_latents_attend_as_the_table_states(model):
    about = ARCHITECTURES[model]
    usual, wider = (counted(model, **{**SIZE, "latents": latents}) for latents in (16, 32))
    assert about.fused == (usual["other"] == 0)
    # Of models that attend among latents, fused attention is that alone: four times for twice as many, whatever N.
    if not about.fused:
        longer = counted(model, **{**SIZE, "points": 32_768})
        grows = usual["fused"] > 0 and wider["fused"] == 4 * usual["fused"] and longer["fused"] == usual["fused"]
        assert about.attends == grows
    else:
        points = {latents: mixing(model, latents=latents) for latents in (16, 32, 64)}
        assert about.attends == (points[64] - points[32] > 2 * (points[32] - points[16]))


@pytest.mark.parametrize("model", [name for name, about in ARCHITECTURES.items() if about.criteria])
def test_blocks_between_points_are_those_of_models_that_encode_and_decode_in_each(model):
    """What goes into a block has as many tokens as there are points, or as there are latents."""
    tokens = []
    with FakeTensorMode():
        network = built(model, 1024, 16, 2)
        for block in network.blocks:
            block.register_forward_hook(lambda block, inputs, output: tokens.append(output.shape[1]))
        network(torch.empty(1, 1024, 2))
    assert tokens == [1024 if ARCHITECTURES[model].refines else 16] * 2


def test_formulas_equal_the_papers():
    assert {name: formula(about.paper) for name, about in ARCHITECTURES.items() if about.paper} == {
        "perceiver": "2MN + BMN",
        "lno": "2MN + BM²",
        "transolver": "2BMN + BM²",
        "transolver-conv": "2BMN + BM²",
        "flare": "2BMN",
    }


def test_the_papers_criteria_are_shown_beside_those_of_this_code():
    rows = {row[0]: row[1:] for row in criteria_table(list(ARCHITECTURES)).rows}
    assert rows["flare"] == ("yes", "yes", "yes", "no", "yes")
    assert rows["perceiver"] == ("no", "yes", "no", "no (paper: yes)", "yes")
    assert rows["transolver"] == ("yes", "yes†", "yes", "yes", "no")
    assert rows["lno"] == ("no", "no", "yes", "yes", "no")
    assert rows["gnot"] == ("no latents", "", "", "no latents", "no")
