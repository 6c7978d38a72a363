"""The argument parser all verbs use: jsonargparse, with the docstring of each setting as its help."""

from __future__ import annotations

from jsonargparse import ArgumentParser, set_parsing_settings

set_parsing_settings(docstring_parse_attribute_docstrings=True)


def make_parser(verb: str, description: str) -> ArgumentParser:
    return ArgumentParser(prog=f"flare {verb}", description=description, exit_on_error=False, allow_abbrev=False)
