"""The compiled kernels: built once on this machine, kept in a cache, loaded by ctypes.

The library is plain C with pointers and sizes, so it knows nothing of torch's version; it only shares torch's OpenMP
runtime, so that both work with one pool of threads. Its name, `kernels-<key>-<checksum>.so`, carries a key of all it
was made from and the checksum of its bytes: a stale, foreign or damaged library is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from flare.errors import ConfigError
from flare.files import replacing, wait_for_lock
from flare.terminal import say

HERE = Path(__file__).parent
SOURCES = HERE / "src"
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
_loading = threading.Lock()


def kernels() -> ctypes.CDLL:
    """The loaded library; built first where need be. Raises Unavailable with the reason."""
    outcome = _outcome()
    if isinstance(outcome, Unavailable):
        raise Unavailable(str(outcome))  # a new one: the same, raised again and again, would gather tracebacks
    return outcome


def why_not() -> str | None:
    """The reason why there are no kernels here; None where there are."""
    outcome = _outcome()
    return str(outcome) if isinstance(outcome, Unavailable) else None


# torch.compile calls it once and does not look inside. torch.compiler.assume_constant_result does the same, and takes a
# second to import.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _outcome() -> ctypes.CDLL | Unavailable:
    global _loaded
    if _loaded is None:
        with _loading:  # one thread builds, the others wait
            _loaded = _loaded or _load()
    return _loaded


def _load() -> ctypes.CDLL | Unavailable:
    if _is_switched_off():
        return Unavailable(f"switched off by FLARE_NATIVE={os.environ['FLARE_NATIVE']}")
    try:
        return obtain()
    except Unavailable as error:
        return error
    except OSError as error:  # a full disk, no memory to start a compiler: no reason to stop a program
        return Unavailable(f"the kernels could not be built: {error}")


def _is_switched_off() -> bool:
    value = os.environ.get("FLARE_NATIVE") or "1"
    if value.lower() in ("0", "off", "no", "false"):
        return True
    if value.lower() in ("1", "on", "yes", "true"):
        return False
    raise ConfigError(f"FLARE_NATIVE={value} is neither 1 (use the native kernels, the default) nor 0 (do without)")


def obtain(folder: Path | None = None) -> ctypes.CDLL:
    """The library of `folder`, or else the first that loads; built where there is none."""
    if platform.system() == "Windows":
        raise Unavailable("the kernels are for Linux and macOS")
    if folder:
        return open_library(build(folder))
    return _first_that_loads(folders()) or open_library(build())


def open_library(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name, letters in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [_CTYPES[letter] for letter in letters]
            function.restype = ctypes.c_int
        library.flare_compiled_for.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise Unavailable(f"the library does not load: {error}") from None
    return library


def describe(library: ctypes.CDLL) -> str:
    """Where it lies, and the instructions it uses."""
    return f"{library._name} ({library.flare_compiled_for().decode()})"


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
    """A whole library for this machine: shipped with the package, or in a cache."""
    return next(_whole(folders()), None)


def folders() -> list[Path]:
    """Where a library may lie: beside this file (built into the wheel) or in a cache."""
    return [HERE, *caches()]


def caches() -> list[Path]:
    """Where a library may be built: the folder the user names or has, and one for when that cannot be written."""
    found = [_named_cache() or _home_cache()]
    with suppress(OSError):  # a system that is read-only all over has no temporary folder
        found.append(Path(tempfile.gettempdir()) / f"flare-engine-{os.getuid()}")
    return [folder for folder in found if folder]


def _named_cache() -> Path | None:
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
                if _is_trusted(folder) and path.stem.endswith(_checksum(path)):
                    yield path


def _first_that_loads(places: Iterable[Path]) -> ctypes.CDLL | None:
    """A whole library may still not load, such as one made with another C library in a home that machines share."""
    for path in _whole(places):
        with suppress(Unavailable):
            return open_library(path)
    return None


def _is_trusted(folder: Path) -> bool:
    """Nobody but the user or root can have put something there, or the user named it."""
    return folder in (HERE, _named_cache()) or folder.lstat().st_uid in (0, os.getuid())


def _checksum(path: Path) -> str:
    """To load half a library is to crash: what has no bytes behind it cannot be read."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


@cache
def key() -> str:
    """Of the sources, the flags, the processor and torch's thread pool. Not of the compiler: none is needed to load."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
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
        return [platform.processor(), platform.platform(), _output("sysctl", "-n", "machdep.cpu.brand_string")]
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


# ---- build ----------------------------------------------------------------------------------------------------------

KEEP = 32
"""Libraries in a cache: for the kinds of machine that share a home, and the versions of torch and FLARE on them."""
DAY, HOUR = 86400, 3600


def build(folder: Path | None = None) -> Path:
    """The library of `folder`, or of the first cache that can be written; compiled once, however many processes ask."""
    folder = folder.absolute() if folder else _writable(caches())
    folder.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(folder / "kernels.lock"):
        ready = _first_that_loads([folder])  # another process was faster
        return Path(ready._name) if ready else _build(folder, find_compiler())


def _build(folder: Path, compiler: str) -> Path:
    log = folder / f"kernels-{key()}.log"
    identity = _identity(compiler)
    if _has_failed_lately(log, identity):
        raise Unavailable(_failure(log))
    say("Building FLARE's CPU kernels (once, about half a minute) ...")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
        made = Path(scratch) / "kernels.so"
        try:
            compile_library(compiler, made)
            open_library(made)  # what does not load here is not kept
        except (subprocess.CalledProcessError, Unavailable) as error:
            raise _failed(error, log, identity) from None
        target = folder / f"kernels-{key()}-{_checksum(made)}.so"
        made.replace(target)
    log.unlink(missing_ok=True)
    _tidy(folder)
    return target


def compile_library(compiler: str, target: Path, extra: Sequence[str] = ()) -> None:
    """Every source by itself, two at a time, then one link."""
    program = shlex.split(compiler)
    runtime = openmp_runtime()
    openmp = ["-Xclang", "-fopenmp"] if platform.system() == "Darwin" else ["-fopenmp"]
    flags = [*FLAGS, _host_flag(), *(openmp if runtime else ["-Wno-unknown-pragmas"]), *extra]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, ThreadPoolExecutor(2) as pool:
        objects = {source: Path(scratch) / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        commands = [[*program, *flags, "-c", str(source), "-o", str(made)] for source, made in objects.items()]
        list(pool.map(_run, commands))
        link = [str(runtime), f"-Wl,-rpath,{runtime.parent}"] if runtime else []
        _run([*program, "-shared", *extra, *map(str, objects.values()), *link, "-o", str(target)])


def _run(command: list[str]) -> None:
    english = os.environ | {"LC_ALL": "C"}  # so that the word "error" is found
    subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", env=english)


def find_compiler() -> str:
    """As a shell would write it: CXX may hold options, or start with ccache."""
    named = os.environ.get("CXX", "").strip()
    for name in [named] if named else ["g++", "c++", "clang++"]:  # g++ first: torch's OpenMP on Linux is its own
        program, *options = name.split()
        path = shutil.which(program)
        if path:
            return shlex.join([path, *options])
    what = f"CXX={named} is not a program" if named else "no C++ compiler found"
    raise Unavailable(f"{what}; install one (Debian: apt install g++, macOS: xcode-select --install) or set CXX")


def _identity(compiler: str) -> str:
    return f"{compiler} {next(iter(_output(*shlex.split(compiler), '--version').splitlines()), '')}"


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False).stdout
    except OSError:
        return ""


def _has_failed_lately(log: Path, identity: str) -> bool:
    """This compiler, within a day: most failures last, but memory or disk may only have been short."""
    return (
        log.is_file()
        and time.time() - log.stat().st_mtime < DAY
        and log.read_text(encoding="utf-8").startswith(f"{identity}\n")
    )


def _failed(error: subprocess.CalledProcessError | Unavailable, log: Path, identity: str) -> Unavailable:
    """What to say of a failed build, after all of it went into the log."""
    command, told = "", str(error)
    if isinstance(error, subprocess.CalledProcessError):
        if error.returncode < 0:  # by Ctrl-C or a job's end, which says nothing of the compiler
            return Unavailable(f"the compiler was stopped by signal {-error.returncode}; the next program tries again")
        command, told = shlex.join(error.cmd), error.stderr.strip() or str(error)
    with replacing(log) as temporary:
        temporary.write_text(f"{identity}\n{command}\n{told}\n", encoding="utf-8")
    return Unavailable(_failure(log))


def _failure(log: Path) -> str:
    lines = log.read_text(encoding="utf-8").splitlines()[2:] or ["without a word"]
    first = next((line for line in lines if re.search("error|undefined|cannot find", line, re.IGNORECASE)), lines[-1])
    return (
        f"the kernels could not be built: {first.strip()}. The whole log is {log}. "
        "The next attempt is in a day, or as soon as that file is deleted or CXX names another compiler"
    )


def _host_flag() -> str:
    return "-march=native" if platform.machine().lower() in ("x86_64", "amd64") else "-mcpu=native"


def _writable(candidates: list[Path]) -> Path:
    for folder in candidates:
        with suppress(OSError):
            private = folder != _named_cache()  # a folder with a name may be an image's, for all of its users
            folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
            if _is_trusted(folder):
                with tempfile.TemporaryFile(dir=folder), (folder / "kernels.lock").open("a"):
                    return folder
    tried = " or ".join(map(str, candidates)) or "any folder"
    raise Unavailable(f"cannot write to {tried}; set FLARE_CACHE to a folder of your own")


def _tidy(folder: Path) -> None:
    """Remove what a killed build left, and the oldest libraries. One that was still of use is built again."""
    with suppress(OSError):
        by_age = sorted(folder.glob("kernels-*.so"), key=lambda path: path.stat().st_mtime)
        for path in by_age[:-KEEP]:
            path.unlink()
        for left in folder.glob(".building-*"):
            if time.time() - left.stat().st_mtime > HOUR:  # nobody compiles for so long
                shutil.rmtree(left)
