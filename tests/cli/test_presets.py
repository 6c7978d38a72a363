"""Presets load and have the values of the paper."""

import pytest
import yaml

from flare.models import build_model, count_parameters
from flare.train.presets import load_config, preset_folder, preset_names, preset_path

PAPER = {
    "elasticity": (2, 592_641, 2, 1e-5, 500),
    "darcy": (3, 691_009, 2, 1e-5, 500),
    "airfoil": (2, 690_945, 2, 1e-5, 500),
    "pipe": (2, 625_409, 2, 1e-5, 500),
    "drivaerml": (3, 691_009, 1, 1e-4, 500),
    "lpbf": (3, 625_473, 1, 1e-4, 250),
}
"""Preset -> in_dim, parameters, batch size, weight decay and epochs in the paper."""


def test_there_is_a_preset_for_each_dataset_of_the_paper():
    assert set(PAPER) <= set(preset_names())


@pytest.mark.parametrize("name", sorted(p.stem for p in preset_folder().glob("*.yaml")))
def test_every_preset_loads_and_builds(name):
    config = load_config(preset_path(name))
    sizes = {key: value for key, value in config.model.items() if key != "name"}
    in_dim, parameters, batch, decay, epochs = PAPER.get(name, (3, None, None, None, None))
    model = build_model(config.model["name"], in_dim, 1, **sizes)
    if name in PAPER:
        assert count_parameters(model) == parameters
        recipe = (config.data.batch_size, config.optim.weight_decay, config.epochs)
        assert recipe == (batch, decay, epochs)
        optim = config.optim
        assert (optim.lr, optim.warmup, optim.div, optim.final_div, optim.clip) == (1e-3, 0.1, 1e4, 1e4, 1.0)
        assert config.loss.gradient_weight == (0.1 if name == "darcy" else 0.0)


def test_the_million_point_preset_has_the_values_of_the_paper():
    config = load_config(preset_path("drivaer-1m"))
    sizes = {key: value for key, value in config.model.items() if key != "name"}
    counts = {(2, 128): 175_425, (8, 512): 822_081, (8, 2048): 1_608_513}
    for (blocks, latents), parameters in counts.items():
        model = build_model("flare", 3, 1, **sizes | {"blocks": blocks, "latents": latents})
        assert count_parameters(model) == parameters
    optim = config.optim
    assert (optim.lr, optim.warmup, optim.eps, optim.weight_decay) == (5e-4, 0.05, 1e-6, 1e-5)
    assert (config.precision, config.epochs, config.data.batch_size) == ("16", 500, 1)


def test_the_resolved_configuration_is_kept_and_reads_back(run):
    kept = yaml.safe_load((run / "config.yaml").read_text())
    assert kept["optim"]["warmup"] == 0.1
    assert kept["model"]["channels"] == 16
    assert load_config(run / "config.yaml").to_dict() == kept


def test_a_mapping_may_replace_a_value_and_the_preset_is_unchanged():
    from flare.train.presets import merged

    preset = {"data": {"normalize": {"points": "identity"}}, "epochs": 2}
    overrides = [("data.normalize.points.kind", "minmax"), ("data.normalize.points.high", 2.0)]
    assert merged(preset, overrides)["data"]["normalize"]["points"] == {"kind": "minmax", "high": 2.0}
    assert preset == {"data": {"normalize": {"points": "identity"}}, "epochs": 2}
