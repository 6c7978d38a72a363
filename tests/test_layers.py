"""Packages import each other in one direction only."""

import ast
import re
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
DEFAULTS = {"flare.sequence.task:ClassTask", "flare.sequence.recipes:adapt_settings"}
"""Built-in entries of the registries `TASKS` and `ADAPTERS` of `train`, which name objects of a package above it."""
SAME_ROLE = {
    *("run", "main", "cells", "report", "solve"),  # commands, items of `flare reproduce`, solvers
    *("mix", "encode", "decode", "resmlp"),  # implementations of the operators
    *("collate", "evaluation_batches", "shape", "extend", "fill", "merged", "plain"),  # on other kinds of objects
}
"""Public functions that several modules may define."""


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


def references(path):
    """Yield the strings of a file that name a module of flare, or an object in one; text that mentions one is not."""
    if path.suffix == ".yaml":
        yield from re.findall(r"\bflare(?:\.\w+)+:\w+", path.read_text(encoding="utf-8"))
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\Aflare(?:\.\w+)+(?::\w+)?\Z", node.value)


def test_a_package_names_only_itself_and_what_is_below_in_strings():
    upward = set()
    for package in BELOW:
        for path in [*(ROOT / package).rglob("*.py"), *(ROOT / package).rglob("*.yaml")]:
            above = set(BELOW) - allowed(package)
            upward |= {reference for reference in references(path) if reference.split(".")[1].split(":")[0] in above}
    assert upward == DEFAULTS


def test_a_public_function_has_one_home():
    homes = {}
    for path in ROOT.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    assert {name for name, paths in homes.items() if len(paths) > 1} <= SAME_ROLE
