"""Compile the kernels into a library: once, even if several processes start together, and atomically."""

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
    KernelsUnavailable,
    Loader,
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
from flare.utils.files import replace_atomically, wait_for_lock

logger = logging.getLogger(__name__)

DAY = 86400


def build(load: Loader, folder: Path | None = None, *, again: bool = False) -> Path:
    """Return the path of the library, after compiling it unless another process already has.

    Args:
        load: Function that opens a library; one that does not load is not kept.
        folder: Folder to build in. None means the first cache that is writable.
        again: Compile even if this compiler failed within the last day.

    Raises:
        KernelsUnavailable: There is no compiler or no writable folder, or the build fails.
    """
    folder = folder.absolute() if folder else _writable(caches())
    folder.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(folder / "kernels.lock"):
        ready = first_that_loads([folder], load)  # built by another process meanwhile
        return Path(ready._name) if ready else _build(load, folder, find_compiler(), again)


def _build(load: Loader, folder: Path, compiler: str, again: bool) -> Path:
    log = folder / f"kernels-{key()}.log"
    identity = _identity(compiler)
    if not again and _failed_recently(log, identity):
        raise KernelsUnavailable(_failure(log))
    logger.info("Building FLARE's CPU kernels (once, about half a minute) ...")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
        made = Path(scratch) / "kernels.so"
        try:
            compile_library(compiler, made)
            load(made)
        except (subprocess.CalledProcessError, KernelsUnavailable) as error:
            raise _failed(error, log, identity) from None
        target = folder / f"kernels-{key()}-{checksum(made)}.so"
        made.replace(target)
    log.unlink(missing_ok=True)
    tidy(folder)
    return target


def _writable(candidates: list[Path]) -> Path:
    for folder in candidates:
        with suppress(OSError):
            private = folder != named_cache()  # FLARE_CACHE may be part of an image and shared by its users
            folder.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
            if is_trusted(folder):
                with tempfile.TemporaryFile(dir=folder), (folder / "kernels.lock").open("a"):
                    return folder
    tried = " or ".join(map(str, candidates)) or "any folder"
    raise KernelsUnavailable(f"cannot write to {tried}; set FLARE_CACHE to a folder of your own")


def compile_library(compiler: str, target: Path) -> None:
    """Compile the sources, two at a time, and link them."""
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
    english = os.environ | {"LC_ALL": "C"}  # `_failure` searches for the word "error"
    subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", env=english)


def find_compiler() -> str:
    """Return the command of the C++ compiler. CXX may contain options or start with ccache."""
    named = os.environ.get("CXX", "").strip()
    for name in [named] if named else ["g++", "c++", "clang++"]:  # g++ first: torch on Linux uses its OpenMP
        program, *options = name.split()
        path = shutil.which(program)
        if path:
            return shlex.join([path, *options])
    if named:
        raise KernelsUnavailable(f"CXX={named} is not a program; set it to a C++ compiler, or unset it")
    raise KernelsUnavailable(
        "no C++ compiler found; install one (Debian: apt install g++, macOS: xcode-select --install) or set CXX"
    )


def _identity(compiler: str) -> str:
    return f"{compiler} {next(iter(output(*shlex.split(compiler), '--version').splitlines()), '')}"


def _failed_recently(log: Path, identity: str) -> bool:
    """Return whether this compiler failed within a day; later the cause (memory, disk) may be gone."""
    return (
        log.is_file()
        and time.time() - log.stat().st_mtime < DAY
        and log.read_text(encoding="utf-8").startswith(f"{identity}\n")
    )


def _failed(error: subprocess.CalledProcessError | KernelsUnavailable, log: Path, identity: str) -> KernelsUnavailable:
    """Write the log of a failed build and return the error to raise."""
    command, output_ = "", str(error)
    if isinstance(error, subprocess.CalledProcessError):
        if error.returncode < 0:  # Ctrl-C or the end of a job, not a fault of the compiler
            return KernelsUnavailable(
                f"the compiler was stopped by signal {-error.returncode}; the next program tries again"
            )
        command, output_ = shlex.join(error.cmd), error.stderr.strip() or str(error)
    with replace_atomically(log) as temporary:
        temporary.write_text(f"{identity}\n{command}\n{output_}\n", encoding="utf-8")
    return KernelsUnavailable(_failure(log))


def _failure(log: Path) -> str:
    lines = log.read_text(encoding="utf-8").splitlines()[2:] or ["the compiler printed no message"]
    first = next((line for line in lines if re.search("error|undefined|cannot find", line, re.IGNORECASE)), lines[-1])
    return (
        f"the kernels could not be built: {first.strip()}. The whole log is {log}. "
        "To try again before a day has passed, run python -m flare.mixer.native or set CXX to another compiler"
    )
