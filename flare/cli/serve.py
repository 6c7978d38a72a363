"""`flare serve`: serve trained surrogates over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flare.cli import make_parser, parse
from flare.serve.limits import ServerLimits
from flare.utils.errors import ConfigError

TOKEN_VARIABLE = "FLARE_TOKEN"
OPTIONS = "runs host port token_file scratch limits.workers limits.points limits.upload_mb limits.memory_mb"
"""Arguments of the short help."""
EXAMPLES = """examples:
  flare serve runs/demo
  curl --data-binary @part.vtu 'http://127.0.0.1:8000/models/demo/predict?kind=vtu&answer=vtu' -o part_pred.vtu
  FLARE_TOKEN=$(cat token) flare serve runs/demo bracket=runs/7 --host 0.0.0.0 --limits.workers 2"""


def run(words: Sequence[str]) -> None:
    """Run the command until it is interrupted."""
    parser = make_parser("serve", "Serve trained surrogates over HTTP.", EXAMPLES, {"options": OPTIONS})
    parser.add_argument("runs", nargs="+", help="run folders, or NAME=FOLDER to give a model another name")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at; a public one requires a token")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at; 0 chooses a free one")
    parser.add_argument("--token-file", help=f"file with the token; default the environment variable {TOKEN_VARIABLE}")
    parser.add_argument("--scratch", help="parent of the private temporary folder; default that of the system")
    parser.add_class_arguments(ServerLimits, "limits")
    args = parse(parser, words)

    try:
        from flare.serve.server import serve
    except ImportError as missing:
        message = f"serving needs the package {missing.name}; install it with:  pip install 'flare-engine[serve]'"
        raise ConfigError(message) from None
    token = read_token(args.token_file)
    access = "with the token" if token else "without a token, from this machine only"

    def report(address: str, models: list[str]) -> None:
        print(f"serving {', '.join(models)} at {address} {access}; stop with Ctrl-C", flush=True)

    options = {"host": args.host, "port": args.port, "token": token, "scratch": args.scratch}
    serve(args.runs, limits=ServerLimits(**args.limits.as_dict()), on_start=report, **options)


def read_token(file: str | None) -> str | None:
    """Read the token from a file or the environment; command lines can be read by other users.

    Returns:
        The token; None if there is no file and the environment variable is empty.

    Raises:
        ConfigError: The file cannot be read.
    """
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {file} cannot be read: {error}") from None
