"""Presets of the Long Range Arena: every attention on every task is the published setting, with the published size."""

import pytest

from flare.models import count_parameters
from flare.sequence.attention import ATTENTIONS
from flare.sequence.classifier import Classifier
from flare.sequence.recipes import attention_names, with_attention
from flare.sequence.store import SequenceSchema
from flare.train.presets import build_config, load_config, preset_name, preset_path, read_yaml, sequence_presets
from flare.utils.errors import ConfigError

TWO, TEN = ("no", "yes"), tuple("0123456789")
SCHEMAS = {
    "listops": {"vocabulary": 16, "classes": TEN, "longest": 2000},
    "text": {"vocabulary": 257, "classes": TWO, "longest": 4000},
    "retrieval": {"vocabulary": 257, "classes": TWO, "longest": 4000, "documents": 2},
    "image": {"vocabulary": 256, "classes": TEN, "longest": 1024, "pad": None},
    "pathfinder": {"vocabulary": 256, "classes": TWO, "longest": 1024, "pad": None},
    "listops-small": {"vocabulary": 16, "classes": TEN, "longest": 80},
    "image-small": {"vocabulary": 16, "classes": TEN, "longest": 64, "pad": None},
}
COUNTS = {  # of the specification, without the token table
    "listops": (1_057_034, 1_057_034, 1_057_034, 3_154_186, 1_058_058, 1_388_298),
    "text": (809_857, 809_857, 1_334_273, 5_005_185, 1_335_297, 1_141_121),
    "retrieval": (1_318_401, 1_318_401, 1_318_401, 5_512_705, 1_319_425, 1_649_665),
    "image": (171_018, 171_018, 171_018, 1_743_882, 220_938, 270_282),
    "pathfinder": (545_281, 546_561, 545_281, 2_642_433, 942_337, 1_272_577),
}
ORDER = ("vanilla", "performer", "linear", "linformer", "norm", "flare")


def settings(task, attention):
    name = f"lra/{task}"
    return build_config(with_attention(read_yaml(preset_path(name)), name, attention))


def test_there_is_a_preset_for_every_task_and_a_recipe_for_every_attention():
    assert sequence_presets() == sorted(f"lra/{task}" for task in SCHEMAS)
    assert set(attention_names()) == set(ATTENTIONS) == set(ORDER)
    assert preset_name(preset_path("lra/image")) == "lra/image"


@pytest.mark.parametrize("task", SCHEMAS)
@pytest.mark.parametrize("attention", ORDER)
def test_every_attention_on_every_preset_is_a_configuration_and_a_model(task, attention):
    config = settings(task, attention)
    schema = SequenceSchema(name=task, **SCHEMAS[task])
    model = Classifier(config.model, schema)
    assert config.model["attention"] == attention
    if task in COUNTS:
        table = model.network.embedding.weight.numel()
        assert count_parameters(model) - table == COUNTS[task][ORDER.index(attention)]
    assert attention == "flare" or "latents" not in config.model


RECIPES = {  # (task, attention): lr, weight decay, batch, steps, heads; where not named that of FLARE
    "listops": (5e-4, 1e-5, 32, 10_000, 8),
    "text": (1e-5, 1e-4, 32, 20_000, 8),
    "retrieval": (5e-4, 1e-4, 32, 10_000, 8),
    "image": (1e-3, 5e-2, 32, 20_000, 8),
    "pathfinder": (5e-4, 5e-4, 32, None, 8),
    ("text", "linformer"): (5e-7, 5e-3, 32, 20_000, 8),
    ("retrieval", "linformer"): (4.2e-5, 1e-6, 32, 10_000, 4),
    ("retrieval", "vanilla"): (5e-4, 1e-4, 32, 10_000, 4),
    ("retrieval", "linear"): (5e-4, 1e-4, 32, 10_000, 4),
    ("image", "vanilla"): (1e-3, 5e-2, 32, 20_000, 4),
    ("image", "linear"): (1e-3, 5e-2, 32, 20_000, 4),
    ("image", "linformer"): (1e-3, 5e-2, 32, 20_000, 4),
    ("pathfinder", "vanilla"): (6e-4, 1.5e-4, 64, None, 8),
    ("pathfinder", "linformer"): (1e-3, 1e-4, 64, None, 8),
    ("pathfinder", "linear"): (5e-4, 1e-4, 32, None, 8),
    ("pathfinder", "norm"): (1e-5, 1e-5, 32, None, 8),
}


@pytest.mark.parametrize("task", COUNTS)
@pytest.mark.parametrize("attention", ORDER)
def test_recipes_are_the_specifications(task, attention):
    config = settings(task, attention)
    optim, model = config.optim, config.model
    found = (optim.lr, optim.weight_decay, config.data.batch_size, config.steps, model["heads"])
    assert found == RECIPES.get((task, attention), RECIPES[task])
    assert (optim.betas, optim.warmup, optim.div, optim.final_div) == ((0.9, 0.98), 0.1, 1e4, 0.01)
    constant = task == "pathfinder" and attention in ("vanilla", "linformer")
    assert (optim.schedule, optim.ema) == (("constant", 0.999) if constant else ("onecycle", None))
    assert optim.clip == (0.5 if task == "pathfinder" and not constant else 1.0)
    assert config.precision == ("32" if task == "pathfinder" and not constant else "16")
    assert config.epochs == 200 or config.steps is not None
    norms_rms = task == "pathfinder" and attention in ("vanilla", "linformer", "linear")
    assert model.get("norm", "layer") == ("rms" if norms_rms else "layer")
    if attention == "linear":
        assert model["kernel"] == ("elu" if task in ("text", "pathfinder") else "identity")
    if attention == "linformer":
        assert model["projected"] == (256 if task in ("image", "pathfinder") else 128)
    rotary = task == "text" and attention not in ("linear", "norm")
    assert model["position"] == ("rotary" if rotary else "learned")
    assert model["pool"] == ("cls" if task == "text" else "mean")
    assert model["head"] == ("linear" if task in ("listops", "retrieval") else "mlp")


def test_the_preset_of_flare_is_the_papers():
    model = load_config(preset_path("lra/image")).model
    assert (model["latents"], model["kv_depth"], model["ffn_depth"], model["scale"]) == (256, 2, 1, 1.0)
    assert load_config(preset_path("lra/text")).model["scale"] is None


def test_an_unknown_attention_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"'linfomer'.*'linformer'"):
        settings("listops", "linfomer")
