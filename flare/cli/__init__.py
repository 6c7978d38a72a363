"""The command `flare`. One file per verb, each thin: read the arguments, call the library, print the result."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from flare.utils.errors import ConfigError, FlareError, nearest, one_line
from flare.utils.terminal import attached

VERBS = {
    "data": "bring, make, fetch, inspect and check datasets",
    "train": "train a surrogate, or go on with a run",
    "evaluate": "errors of a trained surrogate on a dataset",
    "calibrate": "error bars of a run, and what parts are strange to it",
    "predict": "fields in physical units for meshes, points or a dataset",
    "encode": "a sample as a model's latents: all it takes to know its fields anywhere",
    "probe": "fields along lines, over planes and grids, from an encoded sample",
    "view": "truth, prediction and error in the browser, or as one HTML file",
    "sensitivity": "gradients of a peak, mean or force with respect to points and parameters",
    "export": "a surrogate as one file for other programs: torch.export or ONNX",
    "serve": "an HTTP server for trained surrogates",
    "spectra": "eigenvalues and eigenvectors of a trained FLARE's mixing",
    "models": "every model, with its parameters, operations and memory",
    "compare": "train several models side by side, several seeds each",
    "plan": "memory and time of a run before it is begun, and what fits at most",
    "experiment": "a table made of several runs",
    "reproduce": "the paper's tables and figures, done again",
    "lpbf": "distortion and stress of a part printed by laser powder bed fusion",
    "info": "versions, devices, and which mixer runs here",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Bad input is one message on standard error and exit code 2."""
    # Threads that wait should sleep: spinning gains nothing on a quiet machine and costs several times on a busy one.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when torch is imported, which comes later
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    try:
        with attached():
            return _dispatch(words)
    except FlareError as error:
        if debug:
            raise
        return _complain(f"{type(error).__name__}: {error}")
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if debug:
            raise
        return _complain(f"{type(error).__name__}: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
    except MemoryError as error:
        if debug:
            raise
        return _complain(
            f"MemoryError: there is not enough memory for this; {one_line(error) or 'take less at a time'}"
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130


def _complain(message: str) -> int:
    rank = os.environ.get("RANK", "0")
    print(message if rank == "0" else f"[rank {rank}] {message}", file=sys.stderr)
    return 2


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        import flare

        print(flare.__version__)
        return 0
    if words[0] not in VERBS:
        raise ConfigError(f"flare has no verb {words[0]!r}; {nearest(words[0], VERBS)}  (see: flare --help)")
    return _verb(words[0]).run(words[1:]) or 0


def _verb(name: str) -> ModuleType:
    # Only the verb that is asked for is imported, so that help and errors come at once.
    return import_module(f"flare.cli.{name}")


def _overview() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {name:<{width}}  {help_text}" for name, help_text in VERBS.items()]
    return "\n".join(
        [
            "usage: flare VERB ...",
            "",
            "Neural surrogates on meshes of up to millions of points.",
            "",
            "verbs:",
            *lines,
            "",
            "Each has its own help, such as:  flare train --help",
            "--version tells the version; --debug shows the traceback of an error.",
        ]
    )


def parse(parser: Any, words: Sequence[str], *, free: Callable[[], Iterable[str]] = tuple, **how: object) -> Any:
    """Parse, and turn whatever argparse dislikes into one message with the nearest known option.

    `free` gives options that the parser takes without knowing them, such as --model.channels; asked after a mistake.
    """
    try:
        return parser.parse_args([_spelled(word, parser) for word in words], **how)
    except argparse.ArgumentError as error:
        raise ConfigError(_readable(str(error), parser, free)) from None


def _spelled(word: str, parser: Any) -> str:
    """`--face-mean` and `--face_mean` are the same option."""
    name, equals, value = word.partition("=")
    if not name.startswith("--") or name in parser._option_string_actions:
        return word
    for other in ("--" + name[2:].replace("-", "_"), "--" + name[2:].replace("_", "-")):
        if other in parser._option_string_actions:
            return other + equals + value
    return word


def _readable(message: str, parser: Any, free: Callable[[], Iterable[str]]) -> str:
    unknown = re.search(r"unrecognized arguments?: (--?[\w.-]+)", message, re.IGNORECASE)
    options = [option for action in parser._actions for option in action.option_strings]
    known = [option for option in options if option.startswith("--") and not option.startswith("--print_")]
    if unknown:
        named = [option for option in free() if option.rpartition(".")[2] == unknown[1].lstrip("-")]
        advice = f"did you mean {named[0]!r}?" if named else nearest(unknown[1], known)
        return f"unknown option {unknown[1]}; {advice}  (all: {parser.prog} --help)"
    if "Unable to load config" in message:
        return f"--data, --optim and --loss are groups; a dataset folder is --data.path  (see: {parser.prog} --help)"
    required = re.search(r"arguments are required: ([\w, .-]+)", message)
    if required:  # argparse would name options as they are written, jsonargparse does not
        named = [f"--{name}" if f"--{name}" in known else name for name in required[1].split(", ")]
        message = f"required: {', '.join(named)}"
    return f"{one_line(message)}  (see: {parser.prog} --help)"
