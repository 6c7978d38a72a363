"""`python -m flare.mixer.native`: build the kernels now, for example for an image without a compiler."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from flare.mixer.native import library
from flare.mixer.native.cache import KernelsUnavailable, named_cache
from flare.utils.terminal import attached, print_status


def main(argv: Sequence[str] | None = None) -> int:
    """Build the kernels and print where the library is; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m flare.mixer.native", description="Build the CPU kernels now rather than on first use."
    )
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder for the library; default: the cache")
    folder = parser.parse_args(argv).into or named_cache()  # FLARE_CACHE wins over a library elsewhere
    try:
        with attached():
            print(library.describe_build(library.obtain(folder)))
    except (KernelsUnavailable, OSError) as error:
        print_status(f"No kernels: {error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
