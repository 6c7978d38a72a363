"""Errors of a block against float64, native and eager in float32, up to a million points.

    .venv/bin/python benchmarks/accuracy.py            about a minute
    .venv/bin/python benchmarks/accuracy.py --quick    small sizes, to try out

An error is the largest difference over the largest entry: of the output, and of the worst of all gradients. Weights and
inputs are of order one, so that every layer matters; sums over points are what grows with N.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flare import FLAREBlock
from flare.mixer import native
from measure import RESULTS, save

POINTS = (1_000, 10_000, 100_000, 1_000_000)
SIZES = {"channels": 16, "heads": 2, "latents": 16}
Row = dict[str, Any]


def make_block() -> FLAREBlock:
    torch.manual_seed(0)
    block = FLAREBlock(SIZES["channels"], SIZES["heads"], SIZES["latents"])
    for weight in block.parameters():
        if weight.ndim > 1:
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return block


def by(block: FLAREBlock, backend: str) -> FLAREBlock:
    block = copy.deepcopy(block)
    for part in block.modules():
        if hasattr(part, "backend"):
            part.backend = backend
    return block


def results(block: FLAREBlock, x: Tensor) -> list[Tensor]:
    """Output, and the gradients of its input and of all weights."""
    x = x.clone().requires_grad_()
    y = block(x)
    slope = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, [x, *block.parameters()], slope)]


def errors(got: Sequence[Tensor], want: Sequence[Tensor]) -> Row:
    each = [((a - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want, strict=True)]
    return {"output": each[0], "gradient": max(each[1:])}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first two N, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    native.require()
    print(f"{'points':>9} {'variant':<10} {'output':>8} {'gradient':>9}")
    block, rows = make_block(), []
    for points in POINTS[:2] if chosen.quick else POINTS:
        x = torch.randn(1, points, SIZES["channels"])
        want = results(by(block, "sdpa").double(), x.double())
        for contender, backend in {"eager": "sdpa", "native": "native"}.items():
            row = {"points": points, "contender": contender} | errors(results(by(block, backend), x), want)
            print(f"{points:9,} {contender:<10} {row['output']:8.1e} {row['gradient']:9.1e}", flush=True)
            rows.append(row)
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("accuracy", {"sizes": SIZES, "rows": rows}, out)


if __name__ == "__main__":
    main()
