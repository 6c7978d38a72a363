"""What a number was made with: versions, hardware, commit. The birth certificate of a result."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import flare
from flare.utils.text import counted

PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors")


def describe_environment() -> dict[str, str]:
    """Name -> value, all text, in the order a person would ask."""
    import psutil
    import torch

    facts = {"flare": flare.__version__, "commit": commit(), "python": platform.python_version()}
    facts |= {name: _version(name) for name in PACKAGES}
    facts["system"] = f"{platform.system()} {platform.machine()}"
    facts["processor"] = (
        f"{processor()}, {counted(os.cpu_count() or 1, 'core')}, {counted(torch.get_num_threads(), 'thread')} for torch"
    )
    facts["memory"] = f"{psutil.virtual_memory().total / 2**30:.1f} GiB"
    for i in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(i)
        facts[f"cuda:{i}"] = f"{gpu.name}, {gpu.total_memory / 2**30:.1f} GiB"
    return facts


def peak_memory_mb() -> float:
    """Most memory in use so far: of the GPU where there is one, else of this process."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's memory before this program started
        kilobytes = next(
            line.split()[1] for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM")
        )
        return int(kilobytes) / 2**10
    import resource

    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def gigabytes(mebibytes: float) -> float:
    """GB, 10⁹ bytes, as pages and tables say it, of the MiB that are measured."""
    return mebibytes * 2**20 / 1e9


def memory_of(device: str, ranks: int = 1) -> float:
    """MiB that are free for each of so many ranks of this machine; on GPUs each has its own."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0] / 2**20
    import psutil

    return psutil.virtual_memory().available / 2**20 / ranks


def forget_peak_memory() -> None:
    """Let `peak_memory_mb` count from now on, where the system can: Linux, and GPUs."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit() -> str:
    """Of the checkout flare runs from, with a + where files differ from it; `none` for an installed package."""
    folder = Path(flare.__file__).parent
    try:
        git = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(git, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return done.stdout.strip() or "none"


@cache
def processor() -> str:
    """Its name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
