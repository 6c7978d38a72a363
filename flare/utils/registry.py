"""Classes by the name of what they make or read; tables say where they live, so that only one is ever imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from flare.utils.errors import ConfigError, nearest


def class_named(name: str, table: Mapping[str, str], what: str) -> Any:
    """The class that `table` knows under this name, as `module:class`; `what` is what an error calls it."""
    if name not in table:
        raise ConfigError(f"there is no {what} {name!r}; {nearest(name, table)}")
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)
