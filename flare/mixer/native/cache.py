"""Find the kernel library that belongs to this machine and these sources.

The file name `kernels-<key>-<checksum>.so` holds a key of everything the library was built from and the checksum of its
bytes, so that an outdated, foreign or damaged library is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCES = HERE / "src"
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
KEEP = 32
"""Number of libraries in a cache: machines that share a home, and versions of torch and flare, have one each."""

Loader = Callable[[Path], ctypes.CDLL]
"""Opens a library file; raises KernelsUnavailable if it is not a kernel library."""


class KernelsUnavailable(Exception):
    """There are no kernels on this machine; the message has the reason and a remedy."""


def folders() -> list[Path]:
    """Return the folders to search: that of this file (for wheels with a library) and the caches."""
    return [HERE, *caches()]


def caches() -> list[Path]:
    """Return the folders to build in: FLARE_CACHE or the user's cache, then a temporary folder as a fallback."""
    found = [named_cache() or _home_cache()]
    with suppress(OSError):  # a read-only system has no temporary folder
        found.append(Path(tempfile.gettempdir()) / f"flare-engine-{os.getuid()}")
    return [folder for folder in found if folder]


def named_cache() -> Path | None:
    """Return the folder that FLARE_CACHE names, or None."""
    named = os.environ.get("FLARE_CACHE")
    return Path(named).absolute() if named else None


def _home_cache() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "flare-engine"
    except RuntimeError:  # a user without a home folder, as in some containers
        return None


def _intact(places: Iterable[Path]) -> Iterator[Path]:
    """Yield the libraries for this machine whose checksum is right."""
    for folder in places:
        for path in sorted(folder.glob(f"kernels-{key()}-*.so")):
            with suppress(OSError):  # not readable, or removed meanwhile
                if is_trusted(folder) and path.stem.endswith(checksum(path)):
                    yield path


def first_that_loads(places: Iterable[Path], load: Loader) -> ctypes.CDLL | None:
    """Load the first library that loads; in a shared home some may need another C library. None if none loads."""
    for path in _intact(places):
        with suppress(KernelsUnavailable):
            return load(path)
    return None


def is_trusted(folder: Path) -> bool:
    """Return whether only the user or root can write to the folder, or the user chose it."""
    return folder in (HERE, named_cache()) or folder.lstat().st_uid in (0, os.getuid())


def checksum(path: Path) -> str:
    """Return the checksum of a library; loading a truncated one would crash the process."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def tidy(folder: Path) -> None:
    """Remove all but the newest libraries."""
    with suppress(OSError):
        for path in sorted(folder.glob("kernels-*.so"), key=lambda path: path.stat().st_mtime)[:-KEEP]:
            path.unlink()


# ---- what a library is built from ------------------------------------------------------------------------------------


def key() -> str:
    """Return a hash of sources, flags, processor and OpenMP runtime. A built library loads without a compiler."""
    return _key(*flags())


@cache
def _key(*flags: str) -> str:
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    runtime = openmp_runtime()
    for text in (*flags, platform.machine(), *_processor_features(), runtime.name if runtime else ""):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def flags() -> list[str]:
    """Return the compiler flags."""
    host = "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"
    return [*FLAGS, host, *extra_flags()]


def extra_flags() -> list[str]:
    """Return the flags in FLARE_CXXFLAGS, for compiler and linker; they come last and so override the others."""
    return os.environ.get("FLARE_CXXFLAGS", "").split()


def _processor_features() -> list[str]:
    """Return what distinguishes processors, so that machines with a shared home never load each other's library."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        brand = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return [platform.platform(), brand.stdout]
    wanted = ("flags", "Features", "CPU implementer", "CPU part")
    return sorted({word for line in lines if line.startswith(wanted) for word in line.split(":", 1)[1].split()})


def openmp_runtime() -> Path | None:
    """Return the OpenMP library that torch uses: its own, or a system library that it has loaded."""
    folder = Path(torch.__file__).parent / "lib"
    for pattern in ("libgomp*", "libomp*", "libiomp5*"):
        for path in sorted(folder.glob(pattern)):
            return path
    from threadpoolctl import threadpool_info

    return next((Path(found["filepath"]) for found in threadpool_info() if found["user_api"] == "openmp"), None)
