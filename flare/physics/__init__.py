"""Numerical solvers that make data, each usable alone, and the generators built on them."""

from __future__ import annotations

from flare.data.generation.generate import Generator
from flare.data.sample import Sample, Schema
from flare.utils.registry import class_named

GENERATORS: dict[str, str] = {
    "airfoil": "flare.physics.airfoil:Airfoil",
    "car-potential": "flare.physics.cars:CarPotential",
    "darcy": "flare.physics.darcy:Darcy",
    "elasticity": "flare.physics.elasticity:Elasticity",
    "lpbf": "flare.physics.lpbf.dataset:LPBF",
    "pipe": "flare.physics.pipe:Pipe",
}
"""Dataset name -> class of its generator. A new dataset is one file and one line here; see CONTRIBUTING.md."""


def generator_class(name: str) -> type[Generator[Schema, Sample]]:
    return class_named(name, GENERATORS, "generator")
