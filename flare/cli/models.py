"""`flare models`: every model with its parameters, operations and memory for so many points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt
from typing import Any

from flare.cli import parse
from flare.cli.options import make_parser
from flare.train.presets import preset_names, preset_path, read_yaml
from flare.train.recipes import recipe_names, with_model

EPILOG = """examples:
  flare models
  flare models --preset darcy --in-dim 3
  flare models --points 1000000"""


def run(words: Sequence[str]) -> int:
    parser = make_parser("models", "List the models and what each costs for one sample.", EPILOG)
    parser.add_argument("--points", type=int, default=10_000, help="points of the sample, N")
    parser.add_argument("--preset", help=f"with the sizes the paper has for it: {', '.join(preset_names())}")
    parser.add_argument("--in_dim", type=int, default=2, help="features per point")
    parser.add_argument("--out_dim", type=int, default=1, help="fields per point")
    chosen = parse(parser, words)
    show(chosen.points, chosen.preset, chosen.in_dim, chosen.out_dim)
    return 0


def show(points: int, preset: str | None, in_dim: int, out_dim: int) -> None:
    from flare.models.cost import cost_of

    base = read_yaml(preset_path(preset)) if preset else {"model": {"name": "flare"}}
    print(f"{'model':<16} {'parameters':>12} {'GFLOP':>12} {'MB kept':>12}   for {points:,} points")
    for name in recipe_names():
        model = with_model(base, preset or "", name)["model"]
        if name == "transolver-conv":
            model = _with_grid(model, points)
        of_grid = model["grid"][0] * model["grid"][1] if "grid" in model else points
        cost = cost_of(model, in_dim, out_dim, of_grid)
        note = "" if of_grid == points else f"   for {of_grid:,}, a grid"
        print(f"{name:<16} {cost.parameters:>12,} {cost.flops / 1e9:>12,.1f} {cost.activations / 1e6:>12,.1f}{note}")
    print("GFLOP: of a forward, matrix products alone. MB kept: for a backward, by PyTorch's operators;")
    print("FLARE's native kernels keep about a tenth.")


def _with_grid(model: Mapping[str, Any], points: int) -> dict[str, Any]:
    side = max(2, isqrt(points))
    return {"grid": [side, side], **model}
