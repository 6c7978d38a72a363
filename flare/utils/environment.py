"""Record of versions, hardware and commit with which a result was made, and memory measurements."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from flare.utils import __version__
from flare.utils.text import counted

PACKAGES = ("torch", "numpy", "scipy", "lightning-fabric", "safetensors")


def describe_environment() -> dict[str, str]:
    """Return versions, hardware and commit as text by name."""
    import psutil
    import torch

    facts = {"flare": __version__, "commit": commit(), "python": platform.python_version()}
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
    """Return the peak memory so far in MiB: of the GPU if there is one, else of this process."""
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
    """Convert measured MiB to the GB (10⁹ bytes) of pages and tables."""
    return mebibytes * 2**20 / 1e9


def available_memory_mb(device: str, ranks: int = 1) -> float:
    """Return the free memory in MiB for each of `ranks` processes on this machine; GPUs are not shared."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0] / 2**20
    import psutil

    return psutil.virtual_memory().available / 2**20 / ranks


def reset_peak_memory() -> None:
    """Reset `peak_memory_mb` on systems that support it: Linux, and GPUs."""
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
    """Return the commit of the checkout that is running, with a + if files differ; `none` for an installed package."""
    folder = Path(__file__).parents[1]
    try:
        git = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(git, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "none"
    return done.stdout.strip() or "none"


@cache
def processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"
