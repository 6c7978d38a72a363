"""Time of an optimizer step of the paper's Elasticity model, beside its forward and backward and public optimizers.

    .venv/bin/python benchmarks/optimizers.py            about a minute
    .venv/bin/python benchmarks/optimizers.py --quick    a small model, to try out

Ours and the public implementations get the same gradients and take turns. SOAP is measured over ten steps, one of which
refreshes its eigenbases. The public ones have the weight matrices only, which favors them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_optimizer
import torch

from flare import build_model
from flare.train.config import OptimConfig
from flare.train.optimizers import OPTIMIZERS, build_optimizer
from flare.train.optimizers.groups import parameter_groups
from measure import CLOCKS, RESULTS, interleaved, others_percent, save, threads

BATCH, POINTS = 2, 972
ROUNDS = 10
STEPS = 10
"""Number of steps of each optimizer in a round."""


def make_calls(sizes: dict[str, int]) -> dict[str, Callable[[], Any]]:
    """Return what is measured by name: `model` (forward and backward), our optimizers, and the public ones."""
    torch.manual_seed(0)
    model = build_model("flare", 2, 1, **sizes)
    x = torch.randn(BATCH, POINTS, 2)

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    step()
    matrices = [
        p
        for group in parameter_groups(model, OptimConfig(), matrices=True)
        if group["matrices"]
        for p in group["params"]
    ]
    optimizers: dict[str, Any] = {name: build_optimizer(model, OptimConfig(name=name, lr=1e-9)) for name in OPTIMIZERS}
    optimizers["torch.optim.Muon"] = torch.optim.Muon(matrices, lr=1e-9)
    optimizers["pytorch_optimizer.SOAP"] = pytorch_optimizer.SOAP(matrices, lr=1e-9, precondition_frequency=10)

    def repeated(optimizer: Any) -> Callable[[], None]:
        def steps() -> None:
            for p in model.parameters():
                if p.grad is None:
                    p.grad = torch.randn_like(p)
            for _ in range(STEPS):
                optimizer.step()

        return steps

    return {"model": step, **{name: repeated(optimizer) for name, optimizer in optimizers.items()}}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model, to try out")
    parser.add_argument("--out", type=Path, help="folder of the record; by default only a whole run is kept")
    chosen = parser.parse_args(arguments)
    sizes = {"channels": 16, "blocks": 1, "heads": 2, "latents": 8} if chosen.quick else {}
    busy, rows = others_percent(), []
    for count in (1, 2):
        with threads(count):
            calls = make_calls(sizes)
            for call in calls.values():
                call()
            found = interleaved(calls, 2 if chosen.quick else ROUNDS, CLOCKS[count])
        model = found.pop("model")
        print(f"{count} thread(s): forward and backward {1e3 * model:.1f} ms")
        for name, seconds in found.items():
            each = seconds / STEPS
            rows.append({"threads": count, "optimizer": name, "seconds": each, "model_seconds": model})
            print(f"  {name:<24} {1e3 * each:7.2f} ms, {each / (each + model):5.1%} of a training step", flush=True)
    out = chosen.out or (None if chosen.quick else RESULTS)
    if out:
        save("optimizers", {"batch": BATCH, "points": POINTS, "others_percent": busy, "rows": rows}, out)


if __name__ == "__main__":
    main()
