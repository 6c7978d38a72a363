"""`flare models`: list the models with their parameters, operations and memory for a number of points."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from flare.cli import count, make_parser, parse
from flare.models import MODELS
from flare.train.presets import preset_name, preset_names, preset_path, read_yaml
from flare.train.recipes import OF_DATA, needs_grid, predicts_fields, recipe_names, with_model
from flare.utils.errors import ConfigError

EPILOG = """examples:
  flare models
  flare models --preset darcy
  flare models --points 1000000 --in-dim 3"""

SHAPES: dict[str, tuple[int, int | tuple[int, int]]] = {
    "elasticity": (2, 972),
    "darcy": (3, (85, 85)),
    "airfoil": (2, (221, 51)),
    "pipe": (2, (129, 129)),
    "drivaerml": (3, 40_000),
    "drivaer-1m": (3, 1_000_000),
    "lpbf": (3, 10_000),
    "demo": (2, 972),
    "small": (3, (13, 13)),
}
"""Input features per point, and number of points or grid of a sample, by preset. LPBF has 736 to 47,542 points."""


def run(words: Sequence[str]) -> None:
    """Print one line per model."""
    parser = make_parser("models", "List the models and what each costs for one sample.", EPILOG)
    parser.add_argument("--preset", help=f"use the sizes of the paper for {', '.join(preset_names())}")
    parser.add_argument("--points", type=count, help="points per sample; default that of the preset, or 10,000")
    parser.add_argument("--in-dim", type=count, help="input features per point; default those of the preset, or 2")
    parser.add_argument("--out-dim", type=count, default=1, help="fields to predict per point")
    chosen = parse(parser, words)
    path = preset_path(chosen.preset) if chosen.preset else None
    preset = preset_name(path) if path else ""
    base = read_yaml(path) if path else {}
    names = list(dict.fromkeys([*recipe_names(), *MODELS]))
    if not predicts_fields(base):
        raise ConfigError(f"--preset {chosen.preset} is for sequences; docs/concepts/baselines.md lists attentions")
    in_dim, shape = SHAPES.get(preset, (2, (100, 100)))
    if chosen.points is not None:
        side = isqrt(chosen.points)
        shape = (side, side) if isinstance(shape, tuple) else chosen.points
    grid, points = (shape, shape[0] * shape[1]) if isinstance(shape, tuple) else (None, shape)
    points = points if chosen.points is None else chosen.points
    in_dim = in_dim if chosen.in_dim is None else chosen.in_dim

    from flare.models.cost import cost_of

    print(f"{'model':<16} {'parameters':>12} {'GFLOP':>12} {'MB kept':>12}   for {points:,} points")
    for name in names:
        if name in recipe_names() and needs_grid(name) and not grid:
            continue
        model = with_model(base, preset, name)["model"]
        size = points
        if model.get("grid") == OF_DATA and grid:
            model, size = {**model, "grid": list(grid)}, grid[0] * grid[1]
        note = "" if size == points else f"   for {size:,} points of a grid"
        cost = cost_of(model, in_dim, chosen.out_dim, size)
        print(f"{name:<16} {cost.parameters:>12,} {cost.flops / 1e9:>12,.1f} {cost.activations / 1e6:>12,.1f}{note}")
    print(
        "GFLOP: matrix products of one forward pass. MB kept: what PyTorch's own operators keep for the backward pass;"
    )
    print("the native kernels of FLARE keep about an eighth of it.")
