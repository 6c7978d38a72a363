"""The compiled kernels: built once on this machine, kept in a cache, loaded by ctypes.

The library is plain C with pointers and sizes, so it knows nothing of torch's version; it only shares torch's OpenMP
runtime, so that both work with one pool of threads. Its name carries a key of everything it was made from, so a stale
or foreign library is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from flare.files import replacing, wait_for_lock
from flare.terminal import say

SOURCES = Path(__file__).parent / "src"
FLAGS = ["-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-Wall", "-Wextra", "-Wno-maybe-uninitialized"]
SIGNATURES = {  # p pointer, i integer, f float
    "flare_encode": "pfppppppppp",
    "flare_decode": "pfpppppppp",
    "flare_mixer_backward": "pfppppppppppppppppppp",
    "flare_resmlp": "iippipp",
    "flare_resmlp_backward": "iippippipp",
    "flare_block_gather": "pffppppppppp",
    "flare_block_scatter": "pffpppppppppp",
    "flare_block_scatter_backward": "pffppppppppppppp",
    "flare_block_gather_backward": "pffppppppppppppppppp",
}
_CTYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}


class Unavailable(Exception):
    """Why there are no kernels here, and what to do about it."""


_loaded: ctypes.CDLL | Unavailable | None = None


def kernels() -> ctypes.CDLL:
    """The loaded library; built first where need be. Raises Unavailable with the reason."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    if isinstance(_loaded, Unavailable):
        raise _loaded
    return _loaded


def why_not() -> str | None:
    """The reason why there are no kernels here; None where there are."""
    try:
        kernels()
    except Unavailable as error:
        return str(error)
    return None


def _load() -> ctypes.CDLL | Unavailable:
    if os.environ.get("FLARE_NATIVE", "1") == "0":
        return Unavailable("switched off by FLARE_NATIVE=0")
    try:
        return open_library(find() or build())
    except Unavailable as error:
        return error


def open_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise Unavailable(f"{path} does not load ({error}); delete it and it is built anew") from None
    for name, letters in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = [_CTYPES[letter] for letter in letters]
        function.restype = ctypes.c_int
    return library


def call(name: str, *arguments: object) -> None:
    """Run a kernel; tensors go by address."""
    plain = [a.data_ptr() if isinstance(a, Tensor) else a for a in arguments]
    if getattr(kernels(), name)(*plain):
        raise MemoryError(f"{name} could not allocate its buffers; use fewer points, latents or threads")


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])


def sizes(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


# ---- where ----------------------------------------------------------------------------------------------------------


def find() -> Path | None:
    """The library for this machine: shipped with the package, or in a cache."""
    return next((folder / file_name() for folder in folders() if _trusted(folder / file_name())), None)


def folders() -> list[Path]:
    """Where a library may lie: beside this file (built ahead), in the user's cache, or where that cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return [Path(__file__).parent, Path(os.environ.get("FLARE_CACHE") or Path(home) / "flare-engine"), _temporary()]


def _trusted(path: Path) -> bool:
    """A library is there, and nobody else can have put it into a folder that all may write."""
    return path.is_file() and (path.parent != _temporary() or _is_mine(path.parent))


def _is_mine(folder: Path) -> bool:
    return not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"flare-engine-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


def file_name() -> str:
    return f"kernels-{key()}.so"


@cache
def key() -> str:
    """Of the sources, the flags, the processor and torch's thread pool. Not of the compiler: none is needed to load."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    runtime = openmp_runtime()
    for part in (*FLAGS, _host_flag(), platform.machine(), *_processor_features(), runtime.name if runtime else ""):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def _processor_features() -> list[str]:
    """What tells processors apart, so that a shared home folder never hands one the other's instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return [platform.processor(), platform.platform()]
    wanted = ("flags", "Features", "CPU implementer", "CPU part")
    return sorted({word for line in lines if line.startswith(wanted) for word in line.split(":", 1)[1].split()})


def openmp_runtime() -> Path | None:
    """The OpenMP library that torch itself runs on."""
    folder = Path(torch.__file__).parent / "lib"
    return next(
        (path for pattern in ("libgomp*", "libomp*", "libiomp5*") for path in sorted(folder.glob(pattern))), None
    )


# ---- build ----------------------------------------------------------------------------------------------------------


def build(folder: Path | None = None) -> Path:
    """Compile into the first folder that can be written, once, however many processes ask. Returns the library."""
    compiler = find_compiler()
    target = (folder or _writable(folders()[1:])) / file_name()
    log = target.with_suffix(".log")
    with wait_for_lock(target.with_suffix(".lock")):
        if target.is_file():
            return target  # another process was faster
        if log.is_file() and log.read_text(encoding="utf-8").startswith(_identity(compiler)):
            raise Unavailable(_failure(log))
        say("Building FLARE's CPU kernels (once, about half a minute) ...")
        try:
            with replacing(target) as temporary:
                compile_library(compiler, temporary)
        except subprocess.CalledProcessError as error:
            command = shlex.join(map(str, error.cmd))
            log.write_text(f"{_identity(compiler)}\n{command}\n{error.stderr}", encoding="utf-8")
            raise Unavailable(_failure(log)) from None
        log.unlink(missing_ok=True)
    return target


def compile_library(compiler: str, target: Path, extra: Sequence[str] = ()) -> None:
    """Every source by itself, two at a time, then one link."""
    runtime = openmp_runtime()
    openmp = ["-Xclang", "-fopenmp"] if platform.system() == "Darwin" else ["-fopenmp"]
    flags = [*FLAGS, _host_flag(), *(openmp if runtime else ["-Wno-unknown-pragmas"]), *extra]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        objects = {source: Path(scratch) / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        commands = [[compiler, *flags, "-c", str(source), "-o", str(made)] for source, made in objects.items()]
        list(pool.map(_run, commands))
        link = [str(runtime), f"-Wl,-rpath,{runtime.parent}"] if runtime else []
        _run([compiler, "-shared", *extra, *map(str, objects.values()), *link, "-o", str(target)])


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def find_compiler() -> str:
    named = os.environ.get("CXX")
    for name in [named] if named else ["c++", "g++", "clang++"]:
        path = shutil.which(name)
        if path:
            return path
    what = f"CXX={named} is not a program" if named else "no C++ compiler found"
    raise Unavailable(f"{what}; install one (Debian: apt install g++, macOS: xcode-select --install) or set CXX")


def _identity(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return f"{compiler} {next(iter(done.stdout.splitlines()), '')}"


def _failure(log: Path) -> str:
    lines = log.read_text(encoding="utf-8").splitlines()
    first = next((line.strip() for line in lines if "error" in line.lower()), lines[-1])
    return f"the kernels did not compile: {first}. The whole log is {log}; delete it to try again, or set another CXX"


def _host_flag() -> str:
    return "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"


def _writable(candidates: list[Path]) -> Path:
    for folder in candidates:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        if _is_mine(folder):
            return folder
    raise Unavailable(f"cannot write to {' or '.join(map(str, candidates))}; set FLARE_CACHE to a folder of your own")
