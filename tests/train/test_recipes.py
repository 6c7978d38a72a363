"""Recipes of models on every preset."""

import pytest

from flare.models import build_model
from flare.train.config import DataConfig, LossConfig, TrainConfig
from flare.train.field_task import FieldTask
from flare.train.presets import build_config, preset_names, preset_path, read_yaml
from flare.train.recipes import recipe_names, resolve_config, with_grid, with_model
from flare.utils.errors import ConfigError
from tests.factory import darcy_dataset, ragged_dataset


def settings(preset, model, recipe=None):
    return build_config(with_model(read_yaml(preset_path(preset)), preset, model, recipe))


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("model", recipe_names())
def test_every_recipe_on_every_preset_is_a_configuration_and_a_model(preset, model):
    config = settings(preset, model)
    sizes = dict(config.model)
    if sizes.get("grid") == "dataset":
        sizes["grid"] = (5, 5)
    build_model(sizes.pop("name"), 3, 1, **sizes)
    base = build_config(read_yaml(preset_path(preset)))
    assert (config.epochs, config.loss, config.data.path) == (base.epochs, base.loss, base.data.path)


TWO, THREE = ("elasticity", "darcy", "airfoil", "pipe"), ("drivaerml", "lpbf")
RECIPES = {
    "flare": ((2, 2, 1), 1e-5, 0.1, 1e4, 1.0),
    "transformer": ((2, 2, 1), 1e-5, 0.1, 25, 1.0),
    "perceiver": ((2, 2, 1), 1e-5, 0.1, 25, 1.0),
    "transolver": ((1, 4, 1), 1e-5, 0.3, 25, 0.1),
    "transolver-conv": ((None, 4, None), 1e-5, 0.3, 25, 0.1),
    "transolver++": ((8, 4, 1), 1e-5, 0.3, 25, 0.1),
    "lno": ((4, 4, 1), 5e-5, 0.2, 1e4, 1000),
    "gnot": ((2, 4, 1), 1e-5, 0.3, 25, 0.1),
}
"""Batch (Elasticity, other 2-D, 3-D; None without a grid), weight decay in 2-D, warm-up, div, clip of the paper."""
RATES = {("elasticity", "perceiver"): 2e-4, ("drivaerml", "perceiver"): 2e-4}


def batch_of(preset, model):
    return RECIPES[model][0][0 if preset == "elasticity" else 1 if preset in TWO else 2]


@pytest.mark.parametrize(
    ("preset", "model"), [(p, m) for p in TWO + THREE for m in RECIPES if batch_of(p, m)], ids="-".join
)
def test_recipes_have_the_values_of_the_paper(preset, model):
    _, decay, warmup, div, clip = RECIPES[model]
    decay = 5e-5 if (preset, model) == ("darcy", "gnot") else decay if preset in TWO else 1e-4
    rate = RATES.get((preset, model), 5e-4 if model == "perceiver" else 1e-3)
    config = settings(preset, model)
    optim = config.optim
    assert config.data.batch_size == batch_of(preset, model)
    assert (optim.lr, optim.weight_decay, optim.warmup, optim.div, optim.clip) == (rate, decay, warmup, div, clip)
    assert optim.final_div == 1e4
    assert optim.betas == ((0.9, 0.99) if model == "lno" else (0.9, 0.999))
    assert optim.eps == (1e-6 if (preset, model) == ("pipe", "transformer") else 1e-8)
    assert config.epochs == (250 if preset == "lpbf" else 500)


def test_a_preset_of_a_baseline_keeps_its_sizes_only_for_that_model():
    mine = {"data": {"path": "d"}, "model": {"name": "lno", "channels": 32}}
    assert with_model(mine, "", "flare")["model"] == {"name": "flare"}
    assert with_model(mine, "", "lno")["model"] == mine["model"]
    assert with_model(mine, "", "gnot")["model"]["channels"] == 128
    assert with_model({"data": {"path": "d"}}, "", "flare")["model"] == {"name": "flare"}


def test_a_grid_is_that_of_the_dataset(tmp_path):
    grid = darcy_dataset(tmp_path / "grid", samples=3, test=1, resolution=6)
    cloud = ragged_dataset(tmp_path / "cloud")
    wanted = with_model({"data": {"path": str(grid.path)}}, "", "transolver-conv")
    assert with_grid(wanted)["model"]["grid"] == [6, 6]
    with pytest.raises(ConfigError, match="cloud"):
        with_grid({**wanted, "data": {"path": str(cloud.path)}})
    task = FieldTask(DataConfig(path=str(grid.path)), LossConfig())
    with pytest.raises(ConfigError, match=r"\[4, 9\].*\[6, 6\]"):
        task.surrogate({"name": "transolver", "grid": [4, 9]})


def test_a_common_recipe_changes_the_model_alone():
    ours, common, own = (settings("darcy", *names) for names in (("flare",), ("gnot", "flare"), ("gnot",)))
    assert common.model == own.model
    assert (common.optim, common.data) == (ours.optim, ours.data)
    assert common.optim != own.optim


def test_the_fast_recipe_draws_points_unless_all_points_are_needed():
    assert resolve_config().data.subsample == 1024
    darcy = resolve_config(preset="darcy", recipe="fast")
    assert (darcy.data.subsample, darcy.loss.gradient_weight) == (1024, 0.0)
    assert resolve_config(preset="darcy", recipe="fast", settings={"data.subsample": None}).data.subsample is None
    weighted = resolve_config(preset="darcy", recipe="fast", settings={"loss.gradient_weight": 0.1})
    assert (weighted.data.subsample, weighted.loss.gradient_weight) == (None, 0.1)
    on_grid = resolve_config(recipe="fast", settings={"model": {"name": "transolver", "grid": [85, 85]}})
    assert on_grid.data.subsample is None
    assert resolve_config(preset="lra/listops", recipe="fast").data.subsample is None
    assert resolve_config(preset="darcy").data.subsample is None


def test_an_unknown_model_is_refused():
    with pytest.raises(ConfigError, match=r"'transolvr'.*'transolver'"):
        settings("darcy", "transolvr")


def test_a_resolved_configuration_combines_preset_recipe_and_overrides():
    assert resolve_config(preset="darcy").to_dict() == settings("darcy", "flare").to_dict()
    assert resolve_config(preset="darcy", recipe="fast").optim.name == "muon"
    assert resolve_config().optim.name == "muon", "without a preset the fast recipe"
    assert resolve_config(recipe="paper").to_dict() == TrainConfig().to_dict()
    fair = resolve_config(preset="darcy", recipe="flare", settings={"model": {"name": "lno"}})
    assert fair.to_dict() == settings("darcy", "lno", "flare").to_dict()
    soap = resolve_config(preset="darcy", settings={"optim.name": "soap", "optim.warmup": 0.2})
    assert (soap.optim.lr, soap.optim.warmup) == (3e-3, 0.2), "rates of the new optimizer"
    listops = resolve_config(preset="lra/listops", settings={"model.attention": "performer"})
    assert listops.model["attention"] == "performer"
    for unknown in ({"preset": "darcey"}, {"recipe": "fats"}, {"settings": {"optim.lrr": 1}}, {"settings": {"a": 1}}):
        with pytest.raises(ConfigError):
            resolve_config(**unknown)
