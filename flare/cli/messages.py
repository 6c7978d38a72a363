"""Messages of the library, which name arguments, with the options of the command line instead."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flare.utils.errors import FlareError

INPUTS = re.compile(r'\b(?:features|parameters)=\{"(\w+)": \.\.\.\}')
"""Values that a caller has to pass: features={"wind": ...}."""


def to_options(message: str, options: Mapping[str, str]) -> str:
    """Replace arguments such as `on_nan="drop"` by options such as `--on-nan drop`.

    Args:
        message: Message of the library.
        options: Argument -> option.
    """
    message = INPUTS.sub(r"--set \1=VALUE", message)
    for argument, option in options.items():
        pattern = rf"""\b{argument}=(?:"([^"]*)"|'([^']*)'|([\w.+-]*))"""
        message = re.sub(pattern, lambda match: " ".join(filter(None, (option, *match.groups()))), message)  # noqa: B023
    return message


@contextmanager
def option_names(options: Mapping[str, str]) -> Iterator[None]:
    """Translate the message of any error raised inside."""
    try:
        yield
    except FlareError as error:
        error.args = (to_options(str(error), options), *error.args[1:])
        raise
