"""Compile the kernels into a library: once, however many processes ask, and whole or not at all."""

from __future__ import annotations

import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from flare.mixer.native.cache import (
    SOURCES,
    Loader,
    Unavailable,
    caches,
    checksum,
    extra_flags,
    first_that_loads,
    flags,
    is_trusted,
    key,
    named_cache,
    openmp_runtime,
    output,
    tidy,
)
from flare.utils.files import replacing, wait_for_lock

logger = logging.getLogger(__name__)


DAY = 86400


def build(load: Loader, folder: Path | None = None, *, again: bool = False) -> Path:
    """The library of `folder`, or of the first cache that can be written; compiled once, however many processes ask.

    Args:
        again: try even where this compiler failed within a day.
    """
    folder = folder.absolute() if folder else _writable(caches())
    folder.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(folder / "kernels.lock"):
        ready = first_that_loads([folder], load)  # another process was faster
        return Path(ready._name) if ready else _build(load, folder, find_compiler(), again)


def _build(load: Loader, folder: Path, compiler: str, again: bool) -> Path:
    log = folder / f"kernels-{key()}.log"
    identity = _identity(compiler)
    if not again and _has_failed_lately(log, identity):
        raise Unavailable(_failure(log))
    logger.info("Building FLARE's CPU kernels (once, about half a minute) ...")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
        made = Path(scratch) / "kernels.so"
        try:
            compile_library(compiler, made)
            load(made)  # what does not load here is not kept
        except (subprocess.CalledProcessError, Unavailable) as error:
            raise _failed(error, log, identity) from None
        target = folder / f"kernels-{key()}-{checksum(made)}.so"
        made.replace(target)
    log.unlink(missing_ok=True)
    tidy(folder)
    return target


def _writable(candidates: list[Path]) -> Path:
    for folder in candidates:
        with suppress(OSError):
            private = folder != named_cache()  # a folder with a name may be an image's, for all of its users
            folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
            if is_trusted(folder):
                with tempfile.TemporaryFile(dir=folder), (folder / "kernels.lock").open("a"):
                    return folder
    tried = " or ".join(map(str, candidates)) or "any folder"
    raise Unavailable(f"cannot write to {tried}; set FLARE_CACHE to a folder of your own")


def compile_library(compiler: str, target: Path) -> None:
    """Every source by itself, two at a time, then one link."""
    program = shlex.split(compiler)
    runtime = openmp_runtime()
    openmp = ["-Xclang", "-fopenmp"] if platform.system() == "Darwin" else ["-fopenmp"]
    options = [*flags(), *(openmp if runtime else ["-Wno-unknown-pragmas"])]
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, ThreadPoolExecutor(2) as pool:
        objects = {source: Path(scratch) / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.cpp"))}
        commands = [[*program, *options, "-c", str(source), "-o", str(made)] for source, made in objects.items()]
        list(pool.map(_run, commands))
        link = [str(runtime), f"-Wl,-rpath,{runtime.parent}"] if runtime else []
        _run([*program, "-shared", *extra_flags(), *map(str, objects.values()), *link, "-o", str(target)])


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
    if named:
        raise Unavailable(f"CXX={named} is not a program; set it to a C++ compiler, or unset it")
    raise Unavailable(
        "no C++ compiler found; install one (Debian: apt install g++, macOS: xcode-select --install) or set CXX"
    )


def _identity(compiler: str) -> str:
    return f"{compiler} {next(iter(output(*shlex.split(compiler), '--version').splitlines()), '')}"


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
        "The next attempt is in a day, or by `python -m flare.mixer.native`, or when CXX names another compiler"
    )
