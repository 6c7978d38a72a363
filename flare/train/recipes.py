"""A model's own recipe on a preset: `configs/models/<model>.yaml`, with settings for all presets and for some.

A preset is the paper's recipe of FLARE on a dataset. Another model brings its sizes, and its own way of training unless
a common one is wanted. In order: the preset, the recipe, the command line.

Presets of sequences are FLARE's too, and another attention brings what differs: `configs/lra/attentions/<name>.yaml`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from flare.train.config import OPTIMIZER_DEFAULTS
from flare.train.presets import (
    merged,
    preset_folder,
    preset_names,
    read_mapping,
    refuse_unknown_keys,
    sequence_presets,
)
from flare.utils.errors import ConfigError, nearest

ALL = "all"
"""The section of a recipe that holds for every preset."""
OF_DATA = "dataset"
"""A recipe's `grid` of a model that is to take that of the dataset."""


def recipe_names() -> list[str]:
    """Models that can be asked for by name: FLARE, whose recipe the presets are, and those with a file."""
    return ["flare", *sorted(path.stem for path in _folder().glob("*.yaml"))]


def needs_grid(name: str) -> bool:
    """Whether a recipe's model reads points on a grid only."""
    return any(part.get("grid") == OF_DATA for section, part in _sections(name, "") if section == "model")


def with_model(preset: Mapping[str, Any], preset_name: str, model: str, recipe: str | None = None) -> dict[str, Any]:
    """The settings of a preset for another model.

    Args:
        preset: settings as the preset's file has them.
        preset_name: of one of our presets, such as `darcy`: a model may have settings of its own for it; else empty.
        model: one of `recipe_names`; gives the model's sizes, unless the preset is for that very model.
        recipe: whose way of training (batch, optimiser, schedule) to use; the model's own by default, `flare` for the
            preset's.
    """
    settings = {key: value for key, value in preset.items() if key != "model"}
    for section, part in _sections(recipe or model, preset_name):
        if section != "model":
            settings = merged(settings, [(f"{section}.{name}", value) for name, value in part.items()])
    sizes: dict[str, Any] = {}
    for section, part in _sections(model, preset_name):
        if section == "model":
            sizes |= part
    if model_name(preset) == model:
        sizes = {"name": model, **preset.get("model", {})}
    return settings | {"model": sizes or {"name": model}}


def with_optimizer(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The same for another optimizer: rates, betas and decay are its own, not those chosen for the one before."""
    optim = settings.get("optim", {})
    if optim.get("name", "adamw") == name:
        return dict(settings)
    kept = {key: value for key, value in optim.items() if key not in OPTIMIZER_DEFAULTS[name]}
    return {**settings, "optim": kept | {"name": name}}


def with_fast_recipe(settings: Mapping[str, Any], preset_name: str) -> dict[str, Any]:
    """The same with the fast recipe, `configs/recipes/fast.yaml`, in place of the paper's way of training.

    Args:
        settings: Of a preset, for any model.
        preset_name: Name of one of our presets, which may have settings of its own in the recipe; else empty.
    """
    record = read_recipe(preset_folder() / "recipes" / "fast.yaml", preset_names())
    for part in (record[ALL], record.get(preset_name, {})):
        if "name" in part.get("optim", {}):
            settings = with_optimizer(settings, part["optim"]["name"])
        for section, value in part.items():
            if section == "model" and model_name(settings) != "flare":
                continue
            changes = value.items() if isinstance(value, Mapping) else [("", value)]
            settings = merged(settings, [(f"{section}.{name}".strip("."), new) for name, new in changes])
    return dict(settings)


def attention_names() -> list[str]:
    return ["flare", *sorted(path.stem for path in _attentions().glob("*.yaml"))]


def with_attention(preset: Mapping[str, Any], preset_name: str, attention: str) -> dict[str, Any]:
    """The settings of a preset of sequences for another attention than FLARE's.

    Args:
        preset: settings as the preset's file has them.
        preset_name: of one of our presets, such as `lra/image`: an attention may have settings of its own for it.
    """
    if attention not in attention_names():
        raise ConfigError(f"unknown attention {attention!r}; {nearest(attention, attention_names())}")
    own = preset.get("model", {}).get("attention", "flare")
    if attention == own:
        return dict(preset)
    from flare.sequence.encoder import options_of  # which loads torch

    sizes = {name: value for name, value in preset.get("model", {}).items() if name not in options_of(own)}
    settings = merged(preset, [("model", sizes | {"attention": attention})])
    record = {} if attention == "flare" else read_recipe(_attentions() / f"{attention}.yaml", sequence_presets())
    for part in (record.get(ALL, {}), record.get(preset_name, {})):
        for section, value in part.items():
            changes = value.items() if isinstance(value, Mapping) else [("", value)]
            settings = merged(settings, [(f"{section}.{name}".strip("."), new) for name, new in changes])
    return settings


def model_name(settings: Mapping[str, Any]) -> str:
    return settings.get("model", {}).get("name", "flare")


def with_grid(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the grid of the dataset where the model asks for it."""
    model = settings.get("model", {})
    if model.get("grid") != OF_DATA:
        return dict(settings)
    from flare.data.dataset import Dataset

    path = settings.get("data", {}).get("path", "")
    grid = Dataset(path).schema.grid
    if grid is None:
        raise ConfigError(
            f"this form of {model['name']} reads points on a grid, and {path} has none; use another model"
        )
    return {**settings, "model": {**model, "grid": list(grid)}}


def _sections(name: str, preset_name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The settings of a recipe, group by group: first those for all presets, then those for this one."""
    if name not in recipe_names():
        from flare.models import MODELS  # which loads torch

        known = {*recipe_names(), *MODELS, "sequence"}
        if name not in known:
            raise ConfigError(f"unknown model {name!r}; {nearest(str(name), known)}")
    elif name != "flare":
        record = read_recipe(_folder() / f"{name}.yaml", preset_names())
        for part in (ALL, *_alike(preset_name)):
            yield from record.get(part, {}).items()


def _alike(preset_name: str) -> list[str]:
    """A stand-in is trained like the benchmark in whose place it is, where a recipe has nothing of its own for it."""
    from flare.data.benchmarks.cards import card, card_names

    original = card(preset_name).stands_in_for if preset_name in card_names() else None
    return [original, preset_name] if original else [preset_name]


def read_recipe(path: Path, presets: Collection[str]) -> dict[str, Any]:
    """A recipe's sections, one for all presets and some for these alone."""
    record = read_mapping(path)
    if ALL not in record:
        raise ConfigError(f"{path} has no section {ALL!r}")
    for section, settings in record.items():
        if section not in (ALL, *presets):
            raise ConfigError(f"{path}: there is no preset {section!r}; {nearest(section, [ALL, *presets])}")
        refuse_unknown_keys(settings, f"{path}, {section}")
    return record


def _folder() -> Path:
    return preset_folder() / "models"


def _attentions() -> Path:
    return preset_folder() / "lra" / "attentions"
