"""Registries: lazy entries, decorators and conflicts."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flare.inference.surrogate import load
from flare.train.config import LOSSES, OPTIMIZER_DEFAULTS, OPTIMIZERS, OptimConfig, register_loss, register_optimizer
from flare.train.field_task import FieldTask
from flare.train.run_folder import RunFolder
from flare.utils.errors import CheckpointError, ConfigError
from flare.utils.registry import Registry

V1 = Path(__file__).parents[1] / "fixtures" / "v1"


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


def test_a_run_with_unregistered_names_is_evaluated_or_refused_with_a_remedy(tmp_path):
    shutil.copytree(V1, tmp_path, dirs_exist_ok=True)
    run, data = tmp_path / "run", str(tmp_path / "dataset")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("name: adamw", "name: unheard-of").replace("relative_l2", "huber"))
    _, record = FieldTask.evaluate_run(run, data=data)
    assert len(record["rel_l2"]) == len(record["samples"])
    with pytest.raises(ConfigError, match="'unheard-of'"):
        RunFolder(run).config()
    about = run / "checkpoints" / "last" / "model.json"
    about.write_text(about.read_text().replace('"flare"', '"my-net"'))
    with pytest.raises(CheckpointError, match=r"'my-net'.*import") as refused:
        load(run)
    assert "damaged" not in str(refused.value)
