"""Registries: lazy entries, decorators and conflicts."""

import subprocess
import sys

import pytest

from flare.train.config import LOSSES, OPTIMIZER_DEFAULTS, OPTIMIZERS, OptimConfig, register_loss, register_optimizer
from flare.utils.errors import ConfigError
from flare.utils.registry import Registry


def test_a_string_entry_is_imported_on_first_use():
    registry = Registry("thing", {"path": "pathlib:Path", "missing": "no_such_module:x"})
    assert registry.get("path").__name__ == "Path"
    assert registry.names() == list(registry) == ["path", "missing"]
    with pytest.raises(ModuleNotFoundError):
        registry.get("missing")


def test_a_decorator_registers_and_returns_its_object():
    registry = Registry("thing", {"path": "pathlib:Path"})

    @registry.register("mine")
    def mine():
        return 1

    assert registry.get("mine") is mine
    assert "mine" in registry
    registry.register("mine")(mine)
    with pytest.raises(ConfigError, match="'path'"):
        registry.register("path")(mine)


def test_an_unknown_name_is_refused_with_the_closest_one():
    with pytest.raises(ConfigError, match=r"'pth'.*'path'"):
        Registry("thing", {"path": "pathlib:Path"}).get("pth")


def test_a_registered_optimizer_has_its_own_defaults(monkeypatch):
    monkeypatch.setattr(OPTIMIZERS, "_entries", dict(OPTIMIZERS._entries))
    monkeypatch.delitem(OPTIMIZER_DEFAULTS, "mine", raising=False)
    register_optimizer("mine", lr=0.5)(lambda model, optim, fused: None)
    assert (OptimConfig(name="mine").lr, OptimConfig(name="mine").betas) == (0.5, (0.9, 0.999))
    OPTIMIZER_DEFAULTS.pop("mine")
    with pytest.raises(ConfigError, match="'yours'"):
        OptimConfig(name="yours")


def test_a_loss_is_registered_once(monkeypatch):
    monkeypatch.setattr(LOSSES, "_entries", dict(LOSSES._entries))
    with pytest.raises(ConfigError, match="relative_l2"):
        register_loss("relative_l2")(lambda prediction, target, mask: None)


def test_importing_flare_imports_nothing_heavy():
    program = "import sys, flare; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'yaml')))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
