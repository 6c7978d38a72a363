"""Settings of an attention for the presets of sequences, from `configs/lra/attentions/<name>.yaml`.

The presets have FLARE's attention. Another attention replaces the settings that differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flare.sequence.encoder import options_of
from flare.train.presets import merged, preset_folder, read_mapping
from flare.train.recipes import ALL
from flare.utils.errors import ConfigError, suggest_name


def attention_names() -> list[str]:
    """Return the attentions that have settings for the presets."""
    return ["flare", *sorted(path.stem for path in _folder().glob("*.yaml"))]


def with_attention(preset: Mapping[str, Any], preset_name: str, attention: str) -> dict[str, Any]:
    """Return the settings of a preset for another attention.

    Args:
        preset: Settings as in the file of the preset.
        preset_name: Name of a built-in preset such as `lra/image`, for which an attention may have its own settings.
        attention: One of `attention_names`.
    """
    if attention not in attention_names():
        raise ConfigError(f"attention={attention!r} is unknown; {suggest_name(attention, attention_names())}")
    own = preset.get("model", {}).get("attention", "flare")
    if attention == own:
        return dict(preset)
    sizes = {name: value for name, value in preset.get("model", {}).items() if name not in options_of(own)}
    settings = merged(preset, [("model", sizes | {"attention": attention})])
    record = {} if attention == "flare" else read_mapping(_folder() / f"{attention}.yaml")
    for group in (record.get(ALL, {}), record.get(preset_name, {})):
        for section, value in group.items():
            changes = value.items() if isinstance(value, Mapping) else [("", value)]
            settings = merged(settings, [(f"{section}.{name}".strip("."), new) for name, new in changes])
    return settings


def adapt_settings(settings: Mapping[str, Any], preset_name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for the attention that dotted overrides ask for."""
    attention = overrides.get("model.attention")
    return dict(settings) if attention is None else with_attention(settings, preset_name, str(attention))


def _folder() -> Path:
    return preset_folder() / "lra" / "attentions"
