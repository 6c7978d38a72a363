"""`flare serve`: trained surrogates behind HTTP."""

from __future__ import annotations

from collections.abc import Sequence

from flare.cli import parse
from flare.cli.options import make_parser
from flare.serve.limits import Limits
from flare.utils.errors import ConfigError

EPILOG = """examples:
  flare serve runs/demo
  curl --data-binary @part.vtu 'http://127.0.0.1:8000/models/demo/predict?kind=vtu&answer=vtu' -o part_pred.vtu
  FLARE_TOKEN=$(cat token) flare serve runs/demo bracket=runs/7 --host 0.0.0.0 --limits.workers 2"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("serve", "Serve trained surrogates over HTTP.", EPILOG)
    parser.add_argument("runs", nargs="+", help="run folders, or NAME=FOLDER to serve one under another name")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen at; others than this machine's want a token"
    )
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    parser.add_argument("--token-file", help="file with the token; default the variable FLARE_TOKEN")
    parser.add_argument("--scratch", help="where the private temporary folder is made; default the system's place")
    parser.add_class_arguments(Limits, "limits")
    args = parse(parser, words)

    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        message = f"serving needs the package {missing.name}; install it with:  pip install 'flare-engine[serve]'"
        raise ConfigError(message) from None
    from flare.serve.guard import read_token
    from flare.serve.start import serve

    token = read_token(args.token_file, args.host)
    limits = Limits(**args.limits.as_dict())
    serve(args.runs, host=args.host, port=args.port, token=token, limits=limits, scratch=args.scratch)
    return 0
