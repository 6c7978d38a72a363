"""The command `flare`. One file per verb: it parses the arguments, calls the library and prints the result."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flare.utils.errors import ConfigError, FlareError, closest_name, one_line, suggest_name
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
ABOUT = "Neural surrogates on meshes of up to millions of points."
NOTES = """  or  flare help VERB; every setting:  flare VERB --help-all
--version prints the version; --debug shows the traceback of an error."""
HELP = ("-h", "--help", "--help-all")
FORMER = {
    "--fit": ["--memory-check"],
    "--split": ["--ranks-share"],
    "--points": ["--place-points", "--coordinates"],
    "--calibration": ["--cache"],
    "--steps": ["--frames"],
    "--only": ["--ids"],
}
"""Former name of an option -> its present names in different verbs, for messages."""
_options: dict[str, str] = {}
"""Argument -> option of the parser that was used last, to name options in messages."""


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
            code = _dispatch(words)
            sys.stdout.flush()
            return code
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
    except Exception as error:
        from flare.train.signals import Interrupted

        if not isinstance(error, Interrupted):
            raise
        again = f"flare train --resume {error.run}" if words[0] == "train" else "the same command"
        print(f"saved; resume with:  {again}", file=sys.stderr)
        return error.exit_code


def _describe(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    if isinstance(error, MemoryError):
        return f"there is not enough memory; {one_line(error) or 'process less at a time'}"
    return with_options(str(error))


def with_options(message: str, options: Mapping[str, str] = _options) -> str:
    """Name options instead of arguments in a message of the library.

    The library writes arguments as `name=value`, or as `name` in backticks. Those that are options of the command line
    become `--name value` and `--name`. Inputs to pass, such as `parameters={"speed": ...}`, become `--set speed=VALUE`.

    Args:
        message: Message of the library.
        options: Argument -> option; default those of the parser that was used last.
    """

    def replace(found: re.Match[str]) -> str:
        option = options.get(found["quoted"] or found["name"])
        value = (found["any"] or found["value"] or "").strip("\"'")
        if option is None:
            return found[0]
        if value in ("true", "false"):
            return option if value == "true" else f"--no-{option[2:]}"
        return f"{option} {value}".strip()

    if "set" in options:
        message = re.sub(r'\b(?:features|parameters)=\{"(\w+)": \.\.\.\}', r"--set \1=VALUE", message)
    quoted = r"`(?P<quoted>[\w.]+)(?:=(?P<any>[^`]*))?`"
    bare = r"""(?<![\w-])(?P<name>[A-Za-z][\w.]*)=(?P<value>"[^"]*"|'[^']*'|[\w.+-]*\w)"""
    return re.sub(f"{quoted}|{bare}", replace, message)


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["--version"]:
        from flare.utils import __version__

        print(__version__)
        return 0
    # Only the verb that runs is imported, so that help and errors are immediate.
    return run_verb(words, "flare", VERBS, lambda verb: import_module(f"flare.cli.{verb}").run, ABOUT, NOTES)


def run_verb(
    words: Sequence[str],
    command: str,
    verbs: Mapping[str, str],
    find: Callable[[str], Callable[[Sequence[str]], int | None]],
    about: str,
    notes: str = "",
) -> int:
    """Run the verb that some words begin with, or print an overview if there is none.

    Args:
        words: A verb and its arguments. `help VERB` is the same as `VERB --help`.
        command: What comes before the verb, such as `flare data`.
        verbs: Verb -> what it does.
        find: Function from a verb to the function that runs it and returns an exit code, None for 0.
        about: What the verbs are for.
        notes: More lines of the overview.
    """
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in HELP:
        width = max(map(len, verbs))
        listed = "\n".join(f"  {verb:<{width}}  {text}".rstrip() for verb, text in verbs.items())
        print(f"usage: {command} VERB ...\n\n{about}\n\n{listed}\n\nOptions of a verb:  {command} VERB --help{notes}")
        return 0
    if words[0] not in verbs:
        raise ConfigError(f"{command} does not know {words[0]!r}; {suggest_name(words[0], verbs)}")
    return find(words[0])(words[1:]) or 0


def make_parser(
    verb: str, description: str, examples: str = "", groups: Mapping[str, str] | None = None
) -> ArgumentParser:
    """Create the parser of a verb. The docstring of a setting becomes its help.

    Args:
        verb: Words after `flare`.
        description: What the verb does.
        examples: Text below the options.
        groups: Title -> arguments, separated by spaces, that `--help` shows. Default: all arguments.
    """
    from jsonargparse import ArgumentParser, set_parsing_settings

    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser: Any = ArgumentParser(
        prog=f"flare {verb}", description=description, epilog=examples, exit_on_error=False, allow_abbrev=False
    )
    parser.purposes = groups
    return parser


def parse(
    parser: Any,
    words: Sequence[str],
    *,
    needs_words: bool = False,
    free: Callable[[], Iterable[str]] = tuple,
    **how: object,
) -> Any:
    """Parse arguments, or print the help of the verb and exit.

    Args:
        parser: Parser of the verb.
        words: Arguments. Dashes and underscores in option names are equivalent. Booleans are flags with a `--no-` form.
        needs_words: Print the help if there are no words, as for a parser with a required argument.
        free: Function that returns options which the parser accepts without knowing them, such as --model.channels.
        how: Keyword arguments of `parse_args`.

    Raises:
        ConfigError: An argument is wrong; the message names the nearest known option.
    """
    from flare.cli.help import help_text, option_of, shown_actions

    _options.clear()
    _options.update((action.dest, option_of(action)) for action in shown_actions(parser) if action.option_strings)
    if any(word in HELP for word in words):
        print(help_text(parser, everything="--help-all" in words))
        raise SystemExit(0)
    if not words and (needs_words or any(action.required for action in parser._actions)):
        print(help_text(parser))
        raise SystemExit(2)
    try:
        return parser.parse_args([*_normalized(words, parser)], **how)
    except argparse.ArgumentError as error:
        raise ConfigError(_readable(str(error), parser, free)) from None


def is_flag(action: Any) -> bool:
    """Return whether an option is a boolean with a `--no-` form."""
    return getattr(action, "_typehint", None) is bool


def _normalized(words: Sequence[str], parser: Any) -> Iterator[str]:
    """Yield words as the parser takes them: flags with a value, and values with a minus joined to their option."""
    known, rest = parser._option_string_actions, deque(words)
    while rest:
        name, equals, value = rest.popleft().partition("=")
        positive = _spelled(f"--{name[5:]}", parser) if name.startswith("--no-") else name
        if is_flag(known.get(positive)) and positive != name:
            yield f"{positive}=false"
            continue
        name = _spelled(name, parser)
        action, following = known.get(name), rest[0] if rest else ""
        if action is not None and not equals:
            if is_flag(action):
                equals, value = "=", rest.popleft() if following in ("true", "false") else "true"
            elif action.nargs is None and re.match("-[^-]", following) and following not in known:
                equals, value = "=", rest.popleft()
        yield name + equals + value


def _spelled(name: str, parser: Any) -> str:
    """Return an option in the spelling of the parser: `--face-mean` and `--face_mean` are the same option."""
    spellings = (name, "--" + name[2:].replace("-", "_"), "--" + name[2:].replace("_", "-"))
    known = [each for each in spellings if each in parser._option_string_actions]
    return known[0] if known and name.startswith("--") else name


def _readable(message: str, parser: Any, free: Callable[[], Iterable[str]]) -> str:
    unknown = re.search(r"unrecognized arguments?: (--?[\w.-]+)", message, re.IGNORECASE)
    known = list(_options.values())
    if unknown:
        renamed = [option for option in FORMER.get(unknown[1], []) if option in known]
        named = [option for option in free() if option.rpartition(".")[2] == unknown[1].lstrip("-")]
        close = [*renamed, *named, closest_name(unknown[1], known)][0]
        advice = f"; did you mean {close!r}?" if close else ""
        return f"unknown option {unknown[1]}{advice}  (all options: {parser.prog} --help-all)"
    if "Unable to load config" in message:
        return f"a dataset is an argument without a name, or --data.path FOLDER  (see: {parser.prog} --help)"
    required = re.search(r"arguments are required: ([\w, .-]+)", message)
    if required:  # jsonargparse leaves the dashes out
        message = f"required: {', '.join(_options.get(name, name) for name in required[1].split(', '))}"
    message = re.sub(r'setting "([\w.]+)"', lambda found: _options.get(found[1], found[0]), one_line(message))
    message = re.sub(r"^argument (?:-\w/)?(--\S+): ", r"\1 ", message)
    return f"{message}  (see: {parser.prog} --help)"


def count(text: str) -> int:
    """Parse a number of things, such as `1000000`, `1_000_000` or `1e6`."""
    try:
        number = float(text)
    except ValueError:
        number = 0
    if number < 1 or not number.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(number)


def new_path(text: str) -> str:
    """Return a path to write, or reject it before the work begins if something exists there."""
    from flare.utils.files import is_occupied

    if is_occupied(text):
        raise argparse.ArgumentTypeError(f"{text} exists already; choose another name or remove it")
    return text


def with_unit(text: str, unit: str) -> str:
    """Append a unit to a number, such as `3.2 MPa`; a dimensionless number stays as it is."""
    return text if unit == "1" else f"{text} {unit}"
