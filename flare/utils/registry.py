"""Registries: objects found by name, built in or registered by plugins.

A plugin is a package with an entry point in the group `flare.plugins` that names a module:

    [project.entry-points."flare.plugins"]
    my-plugin = "my_package.flare_plugin"

Importing that module registers models, losses, datasets and optimizers with the `register_*` decorators of `flare`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, Generic, TypeVar

from flare.utils.errors import ConfigError, suggest_name

PLUGINS = "flare.plugins"
"""Entry-point group that plugins use."""

logger = logging.getLogger(__name__)
Entry = TypeVar("Entry")
Registered = TypeVar("Registered", bound=Callable[..., Any])
_plugins_loaded = False


class Registry(Generic[Entry]):
    """A table of named objects that other packages can extend.

    Plugins are imported once, when a name is not known yet or when all names are listed.

    Args:
        kind: Name of the entries in error messages, such as `model`.
        entries: Built-in entries. A string `module:attribute` is imported when the entry is first used.
    """

    def __init__(self, kind: str, entries: Mapping[str, Entry | str] | None = None) -> None:
        self.kind = kind
        self._entries: dict[str, Entry | str] = dict(entries or {})

    def register(self, name: str) -> Callable[[Registered], Registered]:
        """Return a decorator that adds a class or function under `name`.

        A definition may be repeated, as in a notebook; it then replaces the earlier one.

        Raises:
            ConfigError: Another object has this name already.
        """

        def add(entry: Registered) -> Registered:
            old = self._entries.get(name)
            if old is not None and _origin(old) != _origin(entry):
                raise ConfigError(f"{self.kind} {name!r} is registered already, by {_origin(old)}; choose another name")
            self._entries[name] = entry  # type: ignore[assignment]
            return entry

        return add

    def get(self, name: str) -> Entry:
        """Return the entry called `name`.

        Raises:
            ConfigError: No entry has this name.
        """
        self.check(name)
        entry = self._entries[name]
        return import_attribute(entry) if isinstance(entry, str) else entry

    def check(self, name: str) -> None:
        """Raise a `ConfigError` with the closest known name if no entry is called `name`."""
        if name not in self:
            raise ConfigError(f"unknown {self.kind} {name!r}; {suggest_name(str(name), self._entries)}")

    def names(self) -> list[str]:
        """Return the names of all entries, plugins included: built-in ones first, in the order of registration."""
        load_plugins()
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())


def load_plugins() -> None:
    """Import the modules of all installed plugins, once. One that fails is logged and skipped."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True  # before the imports: a plugin may look up names itself
    from importlib.metadata import entry_points

    for plugin in entry_points(group=PLUGINS):
        try:
            plugin.load()
        except Exception as error:
            logger.warning(f"plugin {plugin.name!r} ({plugin.value}) cannot be used: {type(error).__name__}: {error}")


def import_attribute(reference: str) -> Any:
    """Import the object that `module:attribute` refers to."""
    module, attribute = reference.split(":")
    return getattr(import_module(module), attribute)


def _origin(entry: object) -> str:
    """Return `module:attribute` of an entry, whether it is imported or not."""
    return entry if isinstance(entry, str) else f"{entry.__module__}:{entry.__qualname__}"  # type: ignore[attr-defined]


def class_named(name: str, table: Mapping[str, str], what: str) -> Any:
    """Import the class that `table` holds under `name` as `module:class`; errors call it `what`."""
    if name not in table:
        raise ConfigError(f"unknown {what} {name!r}; {suggest_name(name, table)}")
    return import_attribute(table[name])
