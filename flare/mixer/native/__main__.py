"""`python -m flare.mixer.native`: build the kernels now, such as for an image that will run without a compiler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flare.mixer.native import library
from flare.mixer.native.cache import Unavailable, named_cache
from flare.utils.terminal import attached, say


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flare.mixer.native", description="Build the CPU kernels now rather than on first use."
    )
    parser.add_argument("--into", type=Path, metavar="DIR", help="build there; default: the cache, where FLARE looks")
    folder = parser.parse_args(argv).into or named_cache()  # which is wanted there, wherever else there may be one
    try:
        with attached():
            print(library.describe(library.obtain(folder, again=True)))
    except (Unavailable, OSError) as error:
        say(f"No kernels: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
