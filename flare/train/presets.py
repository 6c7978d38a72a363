"""From a preset and overrides to a checked `TrainConfig`; unknown names are refused with the nearest known one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

import flare
from flare.train.config import OPTIMIZER_DEFAULTS, TrainConfig
from flare.utils.errors import ConfigError, nearest, one_line


def preset_folder() -> Path:
    """`configs/`: inside an installed package, beside it in a checkout."""
    package = Path(flare.__file__).parent
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    """Presets of fields."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def sequence_presets() -> list[str]:
    """Presets of sequences, such as `lra/listops`."""
    return sorted(f"lra/{path.stem}" for path in (preset_folder() / "lra").glob("*.yaml"))


def preset_path(name_or_path: str) -> Path:
    """A preset by name (`darcy`, `lra/listops`) or any YAML file by path (`my/darcy.yaml`)."""
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {path}")
        return path
    known = [*preset_names(), *sequence_presets()]
    if name_or_path not in known:
        raise ConfigError(f"there is no preset {name_or_path!r}; {nearest(name_or_path, known)}")
    return preset_folder() / f"{name_or_path}.yaml"


def preset_name(path: Path) -> str:
    """Of one of our own presets; empty for any other file, whatever it is called."""
    own = {preset_path(name).resolve(): name for name in (*preset_names(), *sequence_presets())}
    return own.get(path.resolve(), "")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping whose every key is a setting of `TrainConfig`."""
    record = read_mapping(path)
    refuse_unknown_keys(record, str(path))
    return record


def read_mapping(path: Path) -> dict[str, Any]:
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {one_line(error)}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{path} should hold a mapping of settings, it holds {type(record).__name__}")
    return record


def refuse_unknown_keys(record: Mapping[str, Any], where: str) -> None:
    known = set(setting_names())
    sections = {name.split(".")[0] for name in known if "." in name}
    for key, value in record.items():
        if key == "model" and not isinstance(value, Mapping):
            raise ConfigError(f"{where}: 'model' holds a name and sizes, such as {{name: lno}}; it cannot be {value!r}")
        if key in sections and not isinstance(value, Mapping):
            example = next(name for name in setting_names() if name.startswith(f"{key}."))
            raise ConfigError(f"{where}: {key!r} is a group of settings, such as {example}; it cannot be {value!r}")
        for name in [f"{key}.{name}" for name in value] if key in sections else [str(key)]:
            if name not in known:
                raise ConfigError(f"{where}: unknown setting {name!r}; {nearest(name, known)}")


def setting_names(config: type = TrainConfig, prefix: str = "") -> list[str]:
    """All settings, dotted: `epochs`, `optim.lr`, …"""
    names: list[str] = []
    hints = get_type_hints(config)
    for f in fields(config):
        kind = hints[f.name]
        names += setting_names(kind, f"{prefix}{f.name}.") if is_dataclass(kind) else [prefix + f.name]  # type: ignore[arg-type]
    return names


def build_config(record: Mapping[str, Any], where: str = "configuration") -> TrainConfig:
    """A checked configuration from a nested mapping; missing settings take their defaults."""
    import argparse

    from jsonargparse import ArgumentParser

    refuse_unknown_keys(record, where)
    optim = record.get("optim", {})
    # Otherwise the parser fills in the values of the default optimizer.
    own = OPTIMIZER_DEFAULTS.get(optim.get("name", "adamw"), {})
    given = {name: value for name, value in optim.items() if value is not None or name not in own}
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(TrainConfig, "run")
    try:
        return parser.instantiate(parser.parse_object({"run": {**record, "optim": own | given}})).run
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(f"{where}: {one_line(error)}") from None


def load_config(path: Path) -> TrainConfig:
    return build_config(read_yaml(path), str(path))


def merged(base: Mapping[str, Any], overrides: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """`base` with dotted overrides applied, such as ("optim.lr", 1e-4); sections are merged, never replaced."""
    result = deepcopy(dict(base))
    for dotted, value in overrides:
        *path, last = dotted.split(".")
        level = result
        for key in path:
            if not isinstance(level.get(key), dict):  # a mapping in place of a word, such as a kind of normaliser
                level[key] = {}
            level = level[key]
        level[last] = value
    return result
