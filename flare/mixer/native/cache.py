"""Where a library lies, and whether it is the right one.

Its name, `kernels-<key>-<checksum>.so`, carries a key of all it was made from and the checksum of its bytes: a stale,
foreign or damaged library is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

HERE = Path(__file__).parent
SOURCES = HERE / "src"
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
KEEP = 32
"""Libraries in a cache: for the kinds of machine that share a home, and the versions of torch and FLARE on them."""
HOUR = 3600

Loader = Callable[[Path], ctypes.CDLL]
"""Raises Unavailable for a file that is no library of ours."""


class Unavailable(Exception):
    """Why there are no kernels here, and what to do about it."""


def find() -> Path | None:
    """A whole library for this machine: shipped with the package, or in a cache."""
    return next(_whole(folders()), None)


def folders() -> list[Path]:
    """Where a library may lie: beside this file (built into the wheel) or in a cache."""
    return [HERE, *caches()]


def caches() -> list[Path]:
    """Where a library may be built: the folder the user names or has, and one for when that cannot be written."""
    found = [named_cache() or _home_cache()]
    with suppress(OSError):  # a system that is read-only all over has no temporary folder
        found.append(Path(tempfile.gettempdir()) / f"flare-engine-{os.getuid()}")
    return [folder for folder in found if folder]


def named_cache() -> Path | None:
    named = os.environ.get("FLARE_CACHE")
    return Path(named).absolute() if named else None


def _home_cache() -> Path | None:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "flare-engine"
    except RuntimeError:  # a user without a name or a home, as in some containers
        return None


def _whole(places: Iterable[Path]) -> Iterator[Path]:
    for folder in places:
        for path in sorted(folder.glob(f"kernels-{key()}-*.so")):
            with suppress(OSError):  # not for us to read, or gone by now
                if is_trusted(folder) and path.stem.endswith(checksum(path)):
                    yield path


def first_that_loads(places: Iterable[Path], load: Loader) -> ctypes.CDLL | None:
    """A whole library may still not load, such as one made with another C library in a home that machines share."""
    for path in _whole(places):
        with suppress(Unavailable):
            return load(path)
    return None


def is_trusted(folder: Path) -> bool:
    """Nobody but the user or root can have put something there, or the user named it."""
    return folder in (HERE, named_cache()) or folder.lstat().st_uid in (0, os.getuid())


def checksum(path: Path) -> str:
    """To load half a library is to crash: what has no bytes behind it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def tidy(folder: Path) -> None:
    """Remove what a killed build left, and the oldest libraries. One that was still of use is built again."""
    with suppress(OSError):
        by_age = sorted(folder.glob("kernels-*.so"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-KEEP]:
            path.unlink()
        for left in folder.glob(".building-*"):
            if time.time() - left.stat().st_mtime > HOUR:  # nobody compiles for so long
                shutil.rmtree(left)


# ---- what it is made from --------------------------------------------------------------------------------------------


def key() -> str:
    """Of the sources, the flags, the processor and torch's thread pool. Not of the compiler: none is needed to load."""
    return _key(*flags())


@cache
def _key(*flags: str) -> str:
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    runtime = openmp_runtime()
    for part in (*flags, platform.machine(), *_processor_features(), runtime.name if runtime else ""):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def flags() -> list[str]:
    return [*FLAGS, _host_flag(), *extra_flags()]


def extra_flags() -> list[str]:
    """The user's own, for the compiler and the linker; they come last, so they have the last word."""
    return os.environ.get("FLARE_CXXFLAGS", "").split()


def _host_flag() -> str:
    return "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"


def _processor_features() -> list[str]:
    """What tells processors apart, so that a shared home folder never hands one the other's instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor(), platform.platform(), output("sysctl", "-n", "machdep.cpu.brand_string")]
    wanted = ("flags", "Features", "CPU implementer", "CPU part")
    return sorted({word for line in lines if line.startswith(wanted) for word in line.split(":", 1)[1].split()})


def openmp_runtime() -> Path | None:
    """The OpenMP library that torch itself runs on: its own, or one of the system's that it has loaded."""
    folder = Path(torch.__file__).parent / "lib"
    for pattern in ("libgomp*", "libomp*", "libiomp5*"):
        for path in sorted(folder.glob(pattern)):
            return path
    from threadpoolctl import threadpool_info

    return next((Path(found["filepath"]) for found in threadpool_info() if found["user_api"] == "openmp"), None)


def output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout
    except OSError:
        return ""
