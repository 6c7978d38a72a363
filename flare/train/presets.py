"""Presets: YAML files of settings, merged with overrides into a checked `TrainConfig`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml

from flare.train.config import OPTIMIZER_DEFAULTS, OPTIMIZERS, TrainConfig
from flare.utils.errors import ConfigError, one_line, suggest_name

RENAMED = {"split": "ranks_share", "data.normalise": "normalize", "model.normalise": "normalize"}
"""Former names of settings in run folders and files of older versions -> last part of their present names."""

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


def preset_folder() -> Path:
    """Return `configs/`, which is inside an installed package and beside the package in a checkout."""
    package = Path(__file__).parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    """Return the names of the presets of fields."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def sequence_presets() -> list[str]:
    """Return the names of the presets of sequences, such as `lra/listops`."""
    return sorted(f"lra/{path.stem}" for path in (preset_folder() / "lra").glob("*.yaml"))


def preset_path(name_or_path: str) -> Path:
    """Return the file of a preset, given its name (`darcy`, `lra/listops`) or a path (`my/darcy.yaml`).

    Raises:
        ConfigError: There is no such preset or file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise ConfigError(f"preset file {path} does not exist")
        return path
    known = [*preset_names(), *sequence_presets()]
    if name_or_path not in known:
        raise ConfigError(f"unknown preset {name_or_path!r}; {suggest_name(name_or_path, known)}")
    return preset_folder() / f"{name_or_path}.yaml"


def preset_name(path: Path) -> str:
    """Return the name of a built-in preset, given its file; an empty string for any other file."""
    own = {preset_path(name).resolve(): name for name in (*preset_names(), *sequence_presets())}
    return own.get(path.resolve(), "")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file of settings.

    Raises:
        ConfigError: The file cannot be read, or a key is not a setting of `TrainConfig`.
    """
    record = with_present_names(read_mapping(path))
    refuse_unknown_keys(record, str(path))
    return record


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        record = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid YAML: {one_line(error)}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{path} should hold a mapping of settings, it holds {type(record).__name__}")
    return record


def with_present_names(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings of any version under their present names."""
    return {
        RENAMED.get(f"{prefix}{key}", key): with_present_names(value, f"{prefix}{key}.")
        if isinstance(value, Mapping)
        else value
        for key, value in record.items()
    }


def refuse_unknown_keys(record: Mapping[str, Any], where: str) -> None:
    """Raise a `ConfigError` that names `where` if a key of nested settings is unknown or not a group."""
    known = set(setting_names())
    sections = {name.split(".")[0] for name in known if "." in name}
    for key, value in record.items():
        if key in {"model", *sections} and not isinstance(value, Mapping):
            raise ConfigError(f"{where}: {key!r} is a group of settings; it cannot be {value!r}")
        for name in [f"{key}.{name}" for name in value] if key in sections else [str(key)]:
            if name not in known:
                raise ConfigError(f"{where}: unknown setting {name!r}; {suggest_name(name, known)}")


@cache
def setting_names(config: type = TrainConfig, prefix: str = "") -> tuple[str, ...]:
    """Return the dotted names of all settings, such as `epochs` and `optim.lr`."""
    names: list[str] = []
    hints = get_type_hints(config)
    for f in fields(config):
        kind = hints[f.name]
        names += setting_names(kind, f"{prefix}{f.name}.") if is_dataclass(kind) else [prefix + f.name]  # type: ignore[arg-type]
    return tuple(names)


def build_config(record: Mapping[str, Any], where: str = "settings") -> TrainConfig:
    """Check nested settings; those that are missing have their defaults.

    Raises:
        ConfigError: A setting is unknown or invalid; the message begins with `where`.
    """
    import argparse

    refuse_unknown_keys(record, where)
    optim = record.get("optim", {})
    name = optim.get("name", "adamw")
    # Otherwise the parser fills in the values of the default optimizer.
    own = OPTIMIZER_DEFAULTS[name] if isinstance(name, str) and name in OPTIMIZERS else {}
    given = {name: value for name, value in optim.items() if value is not None or name not in own}
    parser = _parser()
    try:
        return parser.instantiate(parser.parse_object({"run": {**record, "optim": own | given}})).run
    except (argparse.ArgumentError, TypeError) as error:
        raise ConfigError(f"{where}: {one_line(error)}") from None


@cache
def _parser() -> ArgumentParser:
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(TrainConfig, "run")
    return parser


def load_config(path: Path) -> TrainConfig:
    """Read a YAML file of settings as a checked configuration."""
    return build_config(read_yaml(path), str(path))


def merged(base: Mapping[str, Any], overrides: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return `base` with dotted overrides such as ("optim.lr", 1e-4); groups are merged, not replaced."""
    result = deepcopy(dict(base))
    for name, value in overrides:
        *path, last = name.split(".")
        level = result
        for key in path:
            if not isinstance(level.get(key), dict):  # a mapping replaces a word, such as a kind of normalizer
                level[key] = {}
            level = level[key]
        level[last] = value
    return result


def dotted(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested settings with dotted names. The free keys of `model` and `data.normalize` are split as well."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        splits = name not in setting_names() or name in ("model", "data.normalize")
        if isinstance(value, Mapping) and splits:
            yield from dotted(value, f"{name}.")
        else:
            yield name, value
