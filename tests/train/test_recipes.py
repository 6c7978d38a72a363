"""A model's own recipe on every preset: what it brings, what it leaves, and a common one for all."""

import pytest

from flare.errors import ConfigError
from flare.models import build_model
from flare.train.presets import build_config, preset_names, preset_path, read_yaml
from flare.train.recipes import read_recipe, recipe_names, with_model


def settings(preset, model, recipe=None):
    return build_config(with_model(read_yaml(preset_path(preset)), preset, model, recipe))


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("model", recipe_names())
def test_every_recipe_on_every_preset_is_a_configuration_and_a_model(preset, model):
    config = settings(preset, model)
    sizes = dict(config.model)
    build_model(sizes.pop("name"), 3, 1, **sizes)
    base = build_config(read_yaml(preset_path(preset)))
    assert (config.epochs, config.loss, config.data.path) == (base.epochs, base.loss, base.data.path)


@pytest.mark.parametrize(
    ("preset", "model", "batch", "lr", "decay", "warmup", "div", "clip"),
    [
        ("elasticity", "flare", 2, 1e-3, 1e-5, 0.1, 1e4, 1.0),
        ("elasticity", "transformer", 2, 1e-3, 1e-5, 0.1, 25, 1.0),
        ("elasticity", "perceiver", 2, 2e-4, 1e-5, 0.1, 25, 1.0),
        ("darcy", "perceiver", 2, 5e-4, 1e-5, 0.1, 25, 1.0),
        ("drivaerml", "perceiver", 1, 2e-4, 1e-4, 0.1, 25, 1.0),
        ("elasticity", "transolver", 1, 1e-3, 1e-5, 0.3, 25, 0.1),
        ("darcy", "transolver-conv", 4, 1e-3, 1e-5, 0.3, 25, 0.1),
        ("lpbf", "transolver", 1, 1e-3, 1e-4, 0.3, 25, 0.1),
        ("elasticity", "transolver++", 8, 1e-3, 1e-5, 0.3, 25, 0.1),
        ("elasticity", "lno", 4, 1e-3, 5e-5, 0.2, 1e4, 1000),
        ("drivaerml", "lno", 1, 1e-3, 1e-4, 0.2, 1e4, 1000),
        ("darcy", "gnot", 4, 1e-3, 5e-5, 0.3, 25, 0.1),
        ("pipe", "gnot", 4, 1e-3, 1e-5, 0.3, 25, 0.1),
    ],
)
def test_recipes_are_the_specifications(preset, model, batch, lr, decay, warmup, div, clip):
    config = settings(preset, model)
    optim = config.optim
    assert config.data.batch_size == batch
    assert (optim.lr, optim.weight_decay, optim.warmup, optim.div, optim.clip) == (lr, decay, warmup, div, clip)
    assert optim.final_div == 1e4


def test_a_common_recipe_changes_the_model_alone():
    ours, common, own = (settings("darcy", *names) for names in (("flare",), ("gnot", "flare"), ("gnot",)))
    assert common.model == own.model
    assert (common.optim, common.data) == (ours.optim, ours.data)
    assert common.optim != own.optim


def test_betas_and_eps_of_the_exceptions():
    assert settings("darcy", "lno").optim.betas == (0.9, 0.99)
    assert settings("pipe", "transformer").optim.eps == 1e-6
    assert settings("darcy", "transformer").optim.eps == 1e-8


def test_an_unknown_model_or_preset_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown model 'transolvr'; did you mean 'transolver'"):
        settings("darcy", "transolvr")
    path = tmp_path / "lno.yaml"
    path.write_text("all: {model: {name: lno}}\ndarcey: {optim: {lr: 1}}\n")
    with pytest.raises(ConfigError, match="no preset 'darcey'; did you mean 'darcy'"):
        read_recipe(path)
    path.write_text("all: {model: {name: lno}, optim: {learning_rate: 1}}\n")
    with pytest.raises(ConfigError, match=r"unknown setting 'optim.learning_rate'"):
        read_recipe(path)
    path.write_text("darcy: {optim: {lr: 1}}\n")
    with pytest.raises(ConfigError, match="no section 'all'"):
        read_recipe(path)
