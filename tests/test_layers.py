"""Packages import each other in one direction only."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "flare"
BELOW = {
    "utils": [],
    "mesh": ["utils"],
    "data": ["mesh"],
    "physics": ["data"],
    "mixer": ["utils"],
    "models": ["mixer"],
    "inference": ["data", "models"],
    "report": ["inference", "physics"],
    "train": ["report"],
    "sequence": ["train"],
    "reproduce": ["sequence"],
    "view": ["train"],
    "serve": ["view"],
    "cli": ["reproduce", "serve"],
}
"""Package -> packages right below it. It may import these and everything below them."""


def allowed(package):
    return {package}.union(*(allowed(lower) for lower in BELOW[package]))


def imports(path):
    """Yield the module of every import of flare in a file, those inside functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "flare")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "flare":
                yield from (f"flare.{alias.name}" for alias in node.names)
            elif node.module.startswith("flare."):
                yield node.module


def test_the_packages_are_those_of_the_table():
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == set(BELOW)
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


@pytest.mark.parametrize("package", BELOW)
def test_a_package_imports_only_itself_and_what_is_below(package):
    for path in (ROOT / package).rglob("*.py"):
        for module in imports(path):
            assert module.split(".")[1:2], f"{path} imports the root package"
            assert module.split(".")[1] in allowed(package), f"{path} imports {module}"
