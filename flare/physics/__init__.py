"""Numerical solvers that make data, each usable alone, and the generators built on them."""

from __future__ import annotations

from collections.abc import Callable

from flare.data.generation.generate import Generator
from flare.data.sample import Sample, Schema
from flare.utils.registry import Registered, Registry

GENERATORS: Registry[type[Generator[Schema, Sample]]] = Registry(
    "generator",
    {
        "airfoil": "flare.physics.airfoil:Airfoil",
        "car-potential": "flare.physics.cars:CarPotential",
        "darcy": "flare.physics.darcy:Darcy",
        "elasticity": "flare.physics.elasticity:Elasticity",
        "lpbf": "flare.physics.lpbf.dataset:LPBF",
        "pipe": "flare.physics.pipe:Pipe",
    },
)
"""Dataset name -> class of its generator."""


def generator_class(name: str) -> type[Generator[Schema, Sample]]:
    """Return the class of a generator."""
    return GENERATORS.get(name)


def register_dataset(name: str) -> Callable[[Registered], Registered]:
    """Register a generator of a dataset; `flare data make NAME` then makes it.

    The class is a frozen dataclass, whose fields are the options of the command, with three methods: `schema()` returns
    the `Schema`, `sample(rng)` returns a `Sample` drawn with a `numpy.random.Generator`, and `provenance()` returns a
    mapping with `kind` (`published`, `recreated`, `stand-in` or `user`).

    Args:
        name: Name of the dataset, such as `waves`.

    Returns:
        A decorator that returns the class unchanged.

    Raises:
        ConfigError: Another dataset has this name.

    Example:
        >>> from dataclasses import dataclass
        >>> import flare, numpy as np
        >>> @flare.register_dataset("waves")
        ... @dataclass(frozen=True)
        ... class Waves:
        ...     points: int = 32
        ...
        ...     def schema(self):
        ...         x = flare.Field(role="points", components=("x",), unit="m")
        ...         u = flare.Field(role="target", components=("u",), unit="m")
        ...         return flare.Schema(name="waves", fields={"x": x, "u": u})
        ...
        ...     def sample(self, rng):
        ...         x = rng.random((self.points, 1))
        ...         return flare.Sample({"x": x, "u": np.sin(x + rng.random())})
        ...
        ...     def provenance(self):
        ...         return {"kind": "user"}
        >>> Waves().sample(np.random.default_rng(0)).values["u"].shape
        (32, 1)
    """
    return GENERATORS.register(name)
