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
    tidy,
)
from flare.utils.files import lock

logger = logging.getLogger(__name__)


def build(load: Loader, folder: Path | None = None) -> Path:
    """Return the path of the library, after compiling it unless another process already has.

    Args:
        load: Function that opens a library; one that does not load is not kept.
        folder: Folder to build in. None means the first cache that is writable.

    Raises:
        KernelsUnavailable: There is no compiler or no writable folder, or the build fails.
    """
    folder = folder.absolute() if folder else _writable(caches())
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / "kernels.lock"):
        ready = first_that_loads([folder], load)  # built by another process meanwhile
        if ready:
            return Path(ready._name)
        compiler = find_compiler()
        logger.info("Building FLARE's CPU kernels (once, about half a minute) ...")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
            made = Path(scratch) / "kernels.so"
            compile_library(compiler, made)
            load(made)
            target = folder / f"kernels-{key()}-{checksum(made)}.so"
            made.replace(target)
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
    english = os.environ | {"LC_ALL": "C"}  # to find the word "error"
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", env=english)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"{shlex.join(command)} ended with code {done.returncode}"]
        found = [line for line in lines if re.search("error|undefined|cannot find", line, re.IGNORECASE)]
        raise KernelsUnavailable(f"the kernels could not be built: {(found or lines[-1:])[0].strip()}")


def find_compiler() -> str:
    """Return the command of the C++ compiler. CXX may contain options or start with ccache."""
    named = os.environ.get("CXX", "").strip()
    for name in [named] if named else ["g++", "c++", "clang++"]:  # g++ first: torch on Linux uses its OpenMP
        program, *options = name.split()
        path = shutil.which(program)
        if path:
            return shlex.join([path, *options])
    remedy = "install one (Debian: apt install g++, macOS: xcode-select --install) or set CXX"
    raise KernelsUnavailable(f"no C++ compiler found{named and f' by CXX={named}'}; {remedy}")
