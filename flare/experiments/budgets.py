"""How much of the paper to repeat: `paper` all of it, `cpu` what two cores do in hours, `smoke` what takes seconds.

A budget gives each benchmark a size of dataset, a length of training, and for `smoke` small models; the experiments ask
it for trainings and do not know which budget they work for. To have cars in every experiment that goes through
`Budget.datasets`, give `drivaerml` a line in each of the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from flare.data.cards import card
from flare.errors import ConfigError, nearest
from flare.experiments.jobs import Data, Overrides, Training, recipe

BENCHMARKS = ("elasticity", "darcy", "airfoil", "pipe", "lpbf")
"""Those of Table 1 that can be made here, in its order."""


@dataclass(frozen=True)
class Scale:
    """A benchmark's dataset, and settings of every training on it."""

    data: Data
    overrides: Overrides = ()


@dataclass(frozen=True)
class Budget:
    name: str
    about: str
    seeds: int
    """Of every training, unless asked for others."""
    scales: Mapping[str, Scale]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Of every model that has them, in place of the paper's."""

    @property
    def datasets(self) -> list[str]:
        return list(self.scales)

    def training(self, dataset: str, model: str = "flare", *more: tuple[str, Any]) -> Training:
        """A model on a benchmark as this budget has it, with the settings of an experiment's cell over all else."""
        scale = self.scales[dataset]
        sizes = [(f"model.{name}", value) for name, value in self._sizes(dataset, model).items()]
        return Training(scale.data, model, (*scale.overrides, *sizes, *more))

    def _sizes(self, dataset: str, model: str) -> dict[str, Any]:
        if not self.sizes:
            return {}
        from flare.models import model_options

        options = model_options(recipe(dataset, model)["model"]["name"])
        return {name: value for name, value in self.sizes.items() if name in options}


def _papers() -> dict[str, Scale]:
    sizes = {name: card(name).samples for name in BENCHMARKS}
    return {name: Scale(Data(name, n["train"] + n["test"], n["test"])) for name, n in sizes.items()}


def _cpu() -> dict[str, Scale]:
    """Points, samples and epochs are fewer; models and recipes are the paper's."""
    normalised: Overrides = (("data.normalise.points", "gaussian"),)
    return {
        # Points from -1.7 to 1.7 rather than 0 to 1: from few steps FLARE learns several times as much; see small_sets.
        "elasticity": Scale(Data("elasticity", 500, 100), (*normalised, ("epochs", 20), ("evaluate_every", 5))),
        "darcy": Scale(Data("darcy", 350, 50, {"resolution": 43}), (("epochs", 10),)),
        "airfoil": Scale(Data("airfoil", 240, 40, {"resolution": "half"}), (("epochs", 20),)),
        "pipe": Scale(Data("pipe", 240, 40, {"nodes": 65}), (("epochs", 10),)),
        "lpbf": Scale(
            Data("lpbf", 150, 30, {"layers": 30}),
            (("data.subsample", 2048), ("data.normalise.displacement", "gaussian"), ("epochs", 20)),
        ),
    }


def _smoke() -> dict[str, Scale]:
    short: Overrides = (("data.batch_size", 1), ("epochs", 1))
    return {
        "elasticity": Scale(Data("elasticity", 6, 2), short),
        "darcy": Scale(Data("darcy", 6, 2, {"resolution": 8, "stride": 1, "grid": "node"}), short),
        "airfoil": Scale(Data("airfoil", 3, 1, {"resolution": "half"}), short),
        "pipe": Scale(Data("pipe", 4, 2, {"nodes": 9}), short),
        "lpbf": Scale(Data("lpbf", 3, 1, {"layers": 60}), (*short, ("data.subsample", 64))),
    }


TINY = {"channels": 8, "blocks": 2, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0, "slices": 4, "modes": 4}
BUDGETS = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke",
            "tiny models, a handful of samples: shows that everything runs, and nothing else",
            1,
            _smoke(),
            TINY,
        ),
        Budget(
            "cpu", "the paper's models and recipes on fewer samples, points and epochs, for two CPU cores", 3, _cpu()
        ),
        Budget("paper", "the paper's setting, one seed as it has; for GPUs, or for weeks", 1, _papers()),
    )
}


def budget_named(name: str, *, published: bool = False) -> Budget:
    """A budget; `published` takes the benchmarks' published files instead of making data."""
    if name not in BUDGETS:
        raise ConfigError(f"there is no budget {name!r}; {nearest(name, BUDGETS)}")
    budget = BUDGETS[name]
    if not published:
        return budget
    if name != "paper":
        raise ConfigError("published files are read whole, so they are for --budget paper alone")
    scales = {key: replace(scale, data=replace(scale.data, published=True)) for key, scale in budget.scales.items()}
    return replace(budget, scales=scales)
