"""Mixer backends against `reference`: time of forward + backward, and peak memory, in turns in one run.

    .venv/bin/python benchmarks/mixer.py

Times are interleaved medians, so that a busy machine slows all alike; read the ratios, not the seconds. Peak memory is
that of a fresh process above its memory before the call.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from flare.environment import describe_environment
from flare.files import write_json
from flare.mixer import BACKENDS, mix

SIZES = {  # B, H, N, M, D
    "Elasticity": (2, 8, 972, 64, 8),
    "Darcy": (2, 16, 7225, 256, 4),
    "Pipe": (2, 8, 16641, 128, 8),
}


def tensors(size: tuple[int, ...]) -> list[torch.Tensor]:
    b, h, n, m, d = size
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(s, generator=generator).requires_grad_() for s in ((h, m, d), (b, h, n, d), (b, h, n, d))]


def step(qkv: list[torch.Tensor], backend: str) -> None:
    torch.autograd.grad(mix(*qkv, backend=backend).square().sum(), qkv)


def peak_mb(name: str, backend: str) -> float:
    """Of one forward + backward in a fresh process."""
    code = (
        "import sys; sys.path.insert(0, 'benchmarks')\n"
        "import mixer; from flare.environment import peak_memory_mb\n"
        f"qkv = mixer.tensors({SIZES[name]!r}); before = peak_memory_mb()\n"
        f"mixer.step(qkv, {backend!r}); print(peak_memory_mb() - before)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def main(rounds: int = 9) -> None:
    records = []
    print(f"{'':<12} {'backend':<10} {'ms':>8} {'vs reference':>13} {'peak MB':>8}")
    for name, size in SIZES.items():
        qkv = tensors(size)
        times: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
        for _ in range(rounds):
            for backend, taken in times.items():
                begin = time.perf_counter()
                step(qkv, backend)
                taken.append(time.perf_counter() - begin)
        medians = {backend: statistics.median(taken[1:]) for backend, taken in times.items()}  # the first warms up
        for backend, median in medians.items():
            ratio, peak = medians["reference"] / median, peak_mb(name, backend)
            print(f"{name:<12} {backend:<10} {1e3 * median:8.1f} {ratio:12.2f}x {peak:8.0f}")
            records.append({"size": name, "backend": backend, "ms": 1e3 * median, "speed_up": ratio, "peak_mb": peak})
    path = Path(__file__).parent / "results" / "mixer.json"
    write_json(path, {"environment": describe_environment(), "rows": records})
    print(f"kept in {path.relative_to(Path.cwd())}")


if __name__ == "__main__":
    main()
