"""The help of a verb: a short one, grouped by purpose, and one of all its options."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

from flare.cli import count, is_flag


def shown_actions(parser: Any) -> list[Any]:
    """Return the arguments of a parser, without help and without those that take a whole group of settings."""
    hidden = ("_HelpAction", "_ActionConfigLoad", "_ActionPrintConfig")
    return [
        action
        for action in parser._actions
        if type(action).__name__ not in hidden and action.help is not argparse.SUPPRESS
    ]


def option_of(action: Any) -> str:
    """Return the long name of an option, for messages."""
    names = [_dashed(name) for name in action.option_strings if name.startswith("--")]
    return f"--{action.dest}" if f"--{action.dest}" in names else names[0]


def help_text(parser: Any, *, everything: bool = False) -> str:
    """Return the help of a verb.

    Args:
        parser: Parser of the verb, from `make_parser`.
        everything: List all options instead of those for most purposes.
    """
    actions = {action.dest: action for action in shown_actions(parser)}
    groups = {title: names.split() for title, names in (parser.purposes or {}).items()}
    listed = {name for names in groups.values() for name in names}
    if everything or not groups:
        for group in parser._action_groups:
            title = "options" if group.title in ("positional arguments", "options") else group.title
            others = [action.dest for action in group._group_actions if action.dest in actions.keys() - listed]
            groups[title] = groups.get(title, []) + others
    sections = {title: [_row(actions[name], everything) for name in names] for title, names in groups.items() if names}
    columns = min(shutil.get_terminal_size().columns, 110)
    left = min(26, max((len(name) for rows in sections.values() for name, _ in rows), default=0))
    blocks = [_usage(parser), parser.description]
    for title, rows in sections.items():
        lines = [line for row in rows for line in _lines(*row, left, columns)]
        blocks.append("\n".join([*wrap(f"{title}:", columns), *lines]))
    if parser.purposes and not everything and actions.keys() - listed:
        blocks.append(f"{parser.prog} --help-all lists {len(actions.keys() - listed)} more options.")
    return "\n\n".join(filter(None, [*blocks, parser.epilog]))


def _usage(parser: Any) -> str:
    words = []
    for action in shown_actions(parser):
        if not action.option_strings:
            words.append(_value(action))
        elif action.required:
            words.append(f"{option_of(action)} {_value(action)}")
    return " ".join([f"usage: {parser.prog}", *words, "[options]"])


def _row(action: Any, everything: bool) -> tuple[str, str]:
    """Return an argument with its value, and what it does."""
    text = " ".join(str(action.help or "").split())
    text = text if text.endswith("...") else text.removesuffix(".")
    default = action.default
    if type(default) in (int, float, str, tuple) and default not in ("", ()) and "default" not in text:
        text += f" (default {default:g})" if isinstance(default, float) else f" (default {default})"
    text = text[:1].upper() + text[1:]
    if not action.option_strings:
        return _value(action), text
    names = [_dashed(name) for name in action.option_strings]
    if len(names) > 1 and not everything:  # a short name and the name of the setting
        names = [name for name in names if name != f"--{action.dest}" or "." not in name]
    if is_flag(action) and default:
        names[-1] = f"--[no-]{names[-1][2:]}"
    return f"{', '.join(names)} {_value(action)}".strip(), text


def _value(action: Any) -> str:
    """Return a placeholder for the value of an argument; empty for a flag."""
    if is_flag(action) or action.nargs == 0:
        return ""
    kind = getattr(action, "_typehint", action.type)
    choices = action.choices or (get_args(kind) if get_origin(kind) is Literal else ())
    numbers = {count: "N", int: "N", int | None: "N", float: "X", float | None: "X"}
    names = [
        action.metavar or "",
        "|".join(map(str, choices)),
        numbers.get(kind),
        action.dest.rpartition(".")[2].upper(),
    ]
    name = next(name for name in names if name and not name.startswith("{"))
    return {"?": f"[{name}]", "+": f"{name} ..."}.get(action.nargs, name)


def _lines(name: str, text: str, left: int, columns: int) -> Iterator[str]:
    """Yield the lines of an argument: its name in a column at the left, and its text beside or below it."""
    first, *others = wrap(text, columns - left - 4, break_on_hyphens=False) or [""]
    if len(name) > left:
        yield f"  {name}"
        name = ""
    yield f"  {name:<{left}}  {first}".rstrip()
    yield from (f"{'':{left + 4}}{line}" for line in others)


def _dashed(name: str) -> str:
    """Return an option with dashes; the dotted name of a setting stays as it is."""
    return name if "." in name else name.replace("_", "-")
