"""Write cli.md and settings.md from the code:  python docs/reference/generate.py"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from flare.cli import VERBS, data, lpbf, main, make_parser
from flare.cli.help import shown_actions
from flare.cli.train import ALIASES
from flare.train.config import TrainConfig

CLI = """# Command line

<!-- written by docs/reference/generate.py -->

`flare VERB --help` shows the common options of a verb, `flare VERB --help-all` every one. `flare help VERB` means
`flare VERB --help`. Dashes and underscores in the name of an option are equivalent. A boolean option is a flag:
`--report` switches it on, `--no-report` off.

The exit code is 0, or 2 for bad input, with one message on standard error. `--debug` shows the traceback of an error.
"""
SETTINGS = """# Settings

<!-- written by docs/reference/generate.py -->

The settings of a training are options of `flare train` (`--optim.lr 1e-3`), keys of a YAML file that `--preset` reads,
and keys of `settings` in `flare.train(data, settings={"optim.lr": 1e-3})`. Some have a short option, given in brackets.
A preset or recipe may change a default.
"""
MODELS = """## Models

`model.name` chooses the model; every other `model.KEY` is an argument of it. [Model](../concepts/model.md) and
[Baselines](../concepts/baselines.md) explain them.

| `model.name` | arguments and their defaults |
|---|---|
"""


def cli_page() -> str:
    """Return the reference of all commands."""
    sections = []
    for words in _commands():
        level = "#" * min(len(words) + 1, 4)
        sections.append(f"{level} flare {' '.join(words)}\n\n```text\n{_help(words)}```\n")
    return "\n".join([CLI, *sections])


def _commands() -> Iterator[list[str]]:
    from flare import physics, sequence
    from flare.cli.data.make import _readers

    names = {"make": [*physics.GENERATORS, *sequence.GENERATORS], "read": _readers(), "download": _readers()}
    for verb in VERBS:
        yield [verb]
        for second in {"data": data.VERBS, "lpbf": lpbf.VERBS}.get(verb, ()):
            yield [verb, second]
            yield from ([verb, second, name] for name in (names.get(second, ()) if verb == "data" else ()))


def _help(words: list[str]) -> str:
    """Return the help of a command, for `train` and `compare` without the settings, which have a page of their own."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        main([*words, "--help" if words[0] in ("train", "compare") else "--help-all"])
    return page.getvalue()


def settings_page() -> str:
    """Return the reference of all settings."""
    from flare.models import MODELS as REGISTRY
    from flare.models import model_options

    parser: Any = make_parser("train", "")
    parser.add_class_arguments(TrainConfig, None)
    defaults, parts = dict(_defaults(TrainConfig)), [SETTINGS]
    for group in parser._action_groups:
        rows = [_row(action, defaults) for action in group._group_actions if action in shown_actions(parser)]
        if rows:
            title = re.sub(r"\..*", "", group.title)
            parts.append(
                "\n".join([f"## {title}\n", "| setting | values | default | |", "|---|---|---|---|", *rows, ""])
            )
    models = [
        f"| `{name}` | {', '.join(f'`{key}={value!r}`' for key, value in model_options(name).items())} |"
        for name in REGISTRY
    ]
    return "\n".join([*parts, MODELS + "\n".join(models) + "\n"])


def _defaults(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names of settings and their defaults."""
    hints = get_type_hints(config)
    for each in fields(config):
        if is_dataclass(hints[each.name]):
            yield from _defaults(hints[each.name], f"{prefix}{each.name}.")
        else:
            yield prefix + each.name, each.default if each.default_factory is MISSING else each.default_factory()


def _row(action: Any, defaults: dict[str, Any]) -> str:
    """Return a setting as a row of a table."""
    default, text = defaults[action.dest], " ".join(str(action.help).split()).replace("|", "\\|")
    kind = re.sub(r"<class '(\w+)'>|typing\.|Literal\[(.*?)\]", r"\1\2", str(action._typehint)).replace("'", "")
    kind = re.sub(r"dict.*", "mapping", kind.replace(" | None", " or null"))
    kind = re.sub(r"Optional\[tuple.*", "two floats or null", kind)
    shown = default if isinstance(default, str) else json.dumps(default)
    short = f" (`{ALIASES[action.dest]}`)" if action.dest in ALIASES else ""
    return f"| `{action.dest}`{short} | {kind} | {f'`{shown}`' if shown else ''} | {text} |"


if __name__ == "__main__":
    os.environ["COLUMNS"] = "110"
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent
    for name, page in (("cli", cli_page()), ("settings", settings_page())):
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
