"""The command `flare`. One file per verb: it parses the arguments, calls the library and prints the result."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flare.utils.errors import ConfigError, FlareError, one_line, suggest_name
from flare.utils.terminal import attached

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

VERBS = {
    "data": "import, make, download, inspect and check datasets",
    "train": "train a surrogate, or resume a run",
    "evaluate": "compute the errors of a surrogate on a dataset",
    "calibrate": "calibrate the error bars and the OOD score of a run",
    "predict": "predict fields in physical units for meshes, points or a dataset",
    "encode": "encode a sample as latents, from which its fields can be queried anywhere",
    "probe": "query an encoding along lines, on planes and on grids",
    "view": "show truth, prediction and error in the browser, or as one HTML file",
    "sensitivity": "compute gradients of a peak, mean or force with respect to points and parameters",
    "export": "export a surrogate as one file for other programs: torch.export or ONNX",
    "serve": "serve trained surrogates over HTTP",
    "spectra": "compute eigenvalues and eigenvectors of a trained FLARE's mixing",
    "models": "list every model with its parameters, operations and memory",
    "compare": "train several models with several seeds and compare them",
    "plan": "estimate memory and time of a run, and the largest size that fits",
    "reproduce": "reproduce the tables and figures of the paper",
    "lpbf": "simulate distortion and stress of a part printed by laser powder bed fusion",
    "info": "show versions, devices and the mixer in use",
}
_options: set[str] = set()
"""Options of the parser that was used last, to name them in error messages."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments of the command; those of the process if None.

    Returns:
        Exit code: 0, or 2 with one message on standard error for bad input.
    """
    # Waiting threads should sleep: spinning is several times slower on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported, which happens later
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with attached():
            return _dispatch(words)
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except (FlareError, OSError, MemoryError) as error:
        if debug:
            raise
        rank = os.environ.get("RANK", "0")
        message = f"{type(error).__name__}: {_describe(error)}"
        print(message if rank == "0" else f"[rank {rank}] {message}", file=sys.stderr)
        return 2


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    if isinstance(error, MemoryError):
        return f"there is not enough memory; {one_line(error) or 'process less at a time'}"
    return with_options(str(error), _options)


def with_options(message: str, options: Collection[str]) -> str:
    """Name options instead of arguments in a message of the library.

    The library writes arguments as `name=value`, or as `name` in backticks. Those that are options of the command line
    become `--name value` and `--name`. Inputs to pass, such as `parameters={"speed": ...}`, become `--set speed=VALUE`.
    """

    def replace(found: re.Match[str]) -> str:
        name = found["quoted"] or found["name"]
        spellings = (f"--{name}", f"--{name.replace('_', '-')}")
        option = next((spelling for spelling in spellings if spelling in options), None)
        value = (found["any"] or found["value"] or "").strip("\"'")
        return found[0] if option is None else f"{option} {value}".strip()

    if "--set" in options:
        message = re.sub(r'\b(?:features|parameters)=\{"(\w+)": \.\.\.\}', r"--set \1=VALUE", message)
    quoted = r"`(?P<quoted>[\w.]+)(?:=(?P<any>[^`]*))?`"
    bare = r"""(?<![\w-])(?P<name>[A-Za-z][\w.]*)=(?P<value>"[^"]*"|'[^']*'|[\w.+-]*\w)"""
    return re.sub(f"{quoted}|{bare}", replace, message)


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from flare.utils import __version__

        print(__version__)
        return 0
    if words[0] not in VERBS:
        raise ConfigError(f"flare has no verb {words[0]!r}; {suggest_name(words[0], VERBS)}  (see: flare --help)")
    # Only this verb is imported, so that help and errors are immediate.
    return import_module(f"flare.cli.{words[0]}").run(words[1:]) or 0


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {help_text}" for name, help_text in VERBS.items())
    return f"""usage: flare VERB ...

Neural surrogates on meshes of up to millions of points.

verbs:
{verbs}

Every verb has its own help, such as:  flare train --help
--version prints the version; --debug shows the traceback of an error."""


def make_parser(verb: str, description: str, examples: str | None = None) -> ArgumentParser:
    """Create the parser of a verb. The docstring of a setting becomes its help; line breaks of texts are kept."""
    from jsonargparse import ArgumentParser, DefaultHelpFormatter, set_parsing_settings

    class Formatter(DefaultHelpFormatter):
        def _fill_text(self, text: str, width: int, indent: str) -> str:
            return text

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    return ArgumentParser(
        prog=f"flare {verb}",
        description=description,
        epilog=examples,
        formatter_class=Formatter,
        exit_on_error=False,
        allow_abbrev=False,
    )


def parse(parser: Any, words: Sequence[str], *, free: Callable[[], Iterable[str]] = tuple, **how: object) -> Any:
    """Parse arguments.

    Args:
        parser: Parser of the verb.
        words: Arguments. Dashes and underscores in option names are equivalent.
        free: Function that returns options which the parser accepts without knowing them, such as --model.channels.
        how: Keyword arguments of `parse_args`.

    Raises:
        ConfigError: An argument is wrong; the message names the nearest known option.
    """
    _options.clear()
    _options.update(option for action in parser._actions for option in action.option_strings)
    try:
        return parser.parse_args([_spelled(word, parser) for word in words], **how)
    except argparse.ArgumentError as error:
        raise ConfigError(_readable(str(error), parser, free)) from None


def _spelled(word: str, parser: Any) -> str:
    """Return an option in the spelling of the parser: `--face-mean` and `--face_mean` are the same option."""
    name, equals, value = word.partition("=")
    if not name.startswith("--") or name in parser._option_string_actions:
        return word
    for other in ("--" + name[2:].replace("-", "_"), "--" + name[2:].replace("_", "-")):
        if other in parser._option_string_actions:
            return other + equals + value
    return word


def _readable(message: str, parser: Any, free: Callable[[], Iterable[str]]) -> str:
    unknown = re.search(r"unrecognized arguments?: (--?[\w.-]+)", message, re.IGNORECASE)
    known = [option for option in _options if option.startswith("--") and not option.startswith("--print_")]
    if unknown:
        named = [option for option in free() if option.rpartition(".")[2] == unknown[1].lstrip("-")]
        advice = f"did you mean {named[0]!r}?" if named else suggest_name(unknown[1], known)
        return f"unknown option {unknown[1]}; {advice}  (all: {parser.prog} --help)"
    if "Unable to load config" in message:
        return f"--data, --optim and --loss are groups; a dataset folder is --data.path  (see: {parser.prog} --help)"
    required = re.search(r"arguments are required: ([\w, .-]+)", message)
    if required:  # jsonargparse leaves the dashes out
        named = [f"--{name}" if f"--{name}" in known else name for name in required[1].split(", ")]
        message = f"required: {', '.join(named)}"
    return f"{one_line(message)}  (see: {parser.prog} --help)"


def with_unit(text: str, unit: str) -> str:
    """Append a unit to a number, such as `3.2 MPa`; a dimensionless number stays as it is."""
    return text if unit == "1" else f"{text} {unit}"
