"""Recipes: settings of a model for every preset, from `configs/models/<model>.yaml` and `configs/recipes/fast.yaml`.

A preset is the paper's recipe of FLARE for one dataset. Another model has its own sizes, and its own optimizer and
schedule unless a common recipe is asked for. Later ones win: preset, recipe, overrides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flare.train.config import OPTIMIZER_DEFAULTS, OPTIMIZERS, TrainConfig
from flare.train.presets import (
    build_config,
    dotted,
    merged,
    preset_folder,
    preset_name,
    preset_path,
    read_mapping,
    read_yaml,
)
from flare.utils.errors import ConfigError, suggest_name
from flare.utils.registry import Registry

ALL = "all"
"""Section of a recipe that applies to every preset."""
OF_DATA = "dataset"
"""Value of `model.grid` that stands for the grid of the dataset."""
ADAPTERS: Registry[Callable[[Mapping[str, Any], str, Mapping[str, Any]], dict[str, Any]]] = Registry(
    "recipe", {"sequence": "flare.sequence.recipes:adapt_settings"}
)
"""Model name -> function (settings, preset name, overrides) that changes the settings before overrides are applied."""


def resolve_config(
    *, preset: str | None = None, recipe: str | None = None, settings: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Combine a preset, a recipe and overrides into a checked configuration.

    Args:
        preset: Name of a preset or path of a YAML file. None: the defaults of `TrainConfig`.
        recipe: `paper` (default with a preset), `fast` (default without one), or the name of a model whose optimizer
            and schedule to use.
        settings: Overrides, dotted or nested.

    Raises:
        ConfigError: A name or value is unknown or invalid.
    """
    overrides = dict(dotted(settings or {}))
    path = preset_path(preset) if preset else None
    name = preset_name(path) if path else ""
    record = read_yaml(path) if path else {"model": {"name": "flare"}}
    own, model = model_name(record), overrides.get("model.name")
    recipe_model = None if recipe in ("paper", "fast") else recipe
    if recipe_model is not None and recipe_model not in recipe_names():
        raise ConfigError(
            f"unknown recipe {recipe!r}; {suggest_name(recipe_model, ['paper', 'fast', *recipe_names()])}"
        )
    if recipe_model or model not in (None, own):
        record = with_model(record, name, model or own, recipe_model)
        overrides.pop("model.name", None)
    if recipe == "fast" or (recipe is None and path is None):
        record = with_fast_recipe(record, name, overrides)
    if "optim.name" in overrides:
        record = with_optimizer(record, overrides["optim.name"])
    if model_name(record) in ADAPTERS:
        record = ADAPTERS.get(model_name(record))(record, name, overrides)
    where = "settings" if path is None else f"{path} with overrides" if overrides else str(path)
    return build_config(with_grid(merged(record, overrides.items())), where)


def recipe_names() -> list[str]:
    """Return the models with a recipe: FLARE, whose recipe the presets are, and those with a file."""
    return ["flare", *sorted(path.stem for path in _folder().glob("*.yaml"))]


def needs_grid(name: str) -> bool:
    """Return whether the model of a recipe needs points on a grid."""
    return any(part.get("grid") == OF_DATA for section, part in _sections(name, "") if section == "model")


def with_model(preset: Mapping[str, Any], preset_name: str, model: str, recipe: str | None = None) -> dict[str, Any]:
    """Return the settings of a preset for another model.

    Args:
        preset: Settings as in the file of the preset.
        preset_name: Name of a built-in preset, such as `darcy`, for which a model may have its own settings; or empty.
        model: One of `recipe_names`, or a registered model. Its sizes are used, unless the preset is for that model.
        recipe: Model whose batch size, optimizer and schedule to use; None: `model`. `flare`: those of the preset.
    """
    settings = {key: value for key, value in preset.items() if key != "model"}
    for section, part in _sections(recipe or model, preset_name):
        if section != "model":
            settings = merged(settings, [(f"{section}.{name}", value) for name, value in part.items()])
    if model_name(preset) == model:
        return settings | {"model": {"name": model, **preset.get("model", {})}}
    sizes = [part for section, part in _sections(model, preset_name) if section == "model"]
    return settings | {"model": {"name": model} | {name: size for part in sizes for name, size in part.items()}}


def with_optimizer(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return settings for another optimizer: with its own learning rates, betas and weight decay."""
    OPTIMIZERS.check(name)
    optim = settings.get("optim", {})
    if optim.get("name", "adamw") == name:
        return dict(settings)
    kept = {key: value for key, value in optim.items() if key not in OPTIMIZER_DEFAULTS[name]}
    return {**settings, "optim": kept | {"name": name}}


def with_fast_recipe(
    settings: Mapping[str, Any], preset_name: str, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return settings with the fast recipe, `configs/recipes/fast.yaml`, instead of the paper's.

    Args:
        settings: Settings of a preset, for any model.
        preset_name: Name of a built-in preset, for which the recipe may have its own settings; or empty.
        overrides: Dotted settings that will replace those of the recipe. Points are not subsampled if one of them, or
            the model, needs whole samples.
    """
    record = read_mapping(preset_folder() / "recipes" / "fast.yaml")
    given = dict(dotted(settings)) | dict(overrides or {})
    whole = not predicts_fields(settings) or given.get("model.grid") or (overrides or {}).get("loss.gradient_weight")
    for part in (record[ALL], *([] if whole else [record["subsampling"]]), record.get(preset_name, {})):
        if "name" in part.get("optim", {}):
            settings = with_optimizer(settings, part["optim"]["name"])
        for section, value in part.items():
            if section == "model" and model_name(settings) != "flare":
                continue
            changes = value.items() if isinstance(value, Mapping) else [("", value)]
            settings = merged(settings, [(f"{section}.{name}".strip("."), new) for name, new in changes])
    return dict(settings)


def predicts_fields(settings: Mapping[str, Any]) -> bool:
    """Return whether the model of the settings is a model of fields."""
    return model_name(settings) not in ADAPTERS


def model_name(settings: Mapping[str, Any]) -> str:
    """Return the name of the model in nested settings."""
    return settings.get("model", {}).get("name", "flare")


def with_grid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in which a model that asks for the grid of the dataset has it."""
    model = settings.get("model", {})
    if model.get("grid") != OF_DATA:
        return dict(settings)
    from flare.data.dataset import read_about

    path = settings.get("data", {}).get("path", "")
    grid = read_about(Path(path)).get("schema", {}).get("grid")
    if grid is None:
        raise ConfigError(f"{model['name']} with grid={OF_DATA!r} needs points on a grid, and {path} has none")
    return {**settings, "model": {**model, "grid": list(grid)}}


def _sections(name: str, preset_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the groups of settings of a recipe: first those for all presets, then those for this one."""
    if name not in recipe_names():
        from flare.models import MODELS  # imports torch

        if name not in MODELS and name not in ADAPTERS:
            known = {*recipe_names(), *MODELS, *ADAPTERS}
            raise ConfigError(f"unknown model {name!r}; {suggest_name(str(name), known)}")
    elif name != "flare":
        record = read_mapping(_folder() / f"{name}.yaml")
        for part in (ALL, *_related_presets(preset_name)):
            yield from record.get(part, {}).items()


def _related_presets(preset_name: str) -> list[str]:
    """Return a preset and, before it, the benchmark that its dataset stands in for."""
    from flare.data.benchmarks.cards import card, card_names

    original = card(preset_name).stands_in_for if preset_name in card_names() else None
    return [original, preset_name] if original else [preset_name]


def _folder() -> Path:
    return preset_folder() / "models"
