"""Budgets: how much of the paper to repeat. `paper` is all of it, `cpu` takes hours on two cores, `smoke` seconds.

A budget sets the size of each dataset, the length of trainings and the sizes of models. Items ask it for trainings.
The benchmark `cars` is DrivAerML with published files and its stand-in `car-potential` otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flare.data.benchmarks.cards import card
from flare.reproduce.jobs import Data, Job, Overrides, Training, recipe
from flare.train.presets import merged
from flare.utils.errors import ConfigError, suggest_name

BENCHMARKS = ("elasticity", "darcy", "airfoil", "pipe", "cars", "lpbf")
"""Benchmarks of Table 1, in its order."""
NARROWEST = 4
"""Fewest channels of a head. A halved model has fewer heads rather than narrower ones."""
MADE_AS = {"cars": "car-potential"}
"""Benchmark -> generated dataset, where its name is another."""


@dataclass(frozen=True)
class Scale:
    """Dataset of a benchmark, overrides of every training on it, and number of seeds."""

    data: Data
    overrides: Overrides = ()
    seeds: int = 1


@dataclass(frozen=True)
class Budget:
    """Sizes of datasets, models and trainings."""

    name: str
    about: str
    scales: Mapping[str, Scale]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Sizes of every model that has such options, in place of the paper's."""
    halved: Sequence[str] = ()
    """Names of the sizes that are half of the paper's."""
    published: bool = False
    """True if benchmarks are read from their published files."""

    @property
    def key(self) -> str:
        """Name of the budget in file names."""
        return f"{self.name}-published" if self.published else self.name

    @property
    def title(self) -> str:
        """Name of the budget in headings and tables."""
        return f"`{self.name}`" + (", published files" if self.published else "")

    @property
    def comparable(self) -> bool:
        """True if models have the paper's sizes or half of them, so that its numbers are shown beside ours."""
        return not self.sizes

    def seeds(self, job: Job) -> int:
        """Return the default number of seeds of a job."""
        return next((scale.seeds for scale in self.scales.values() if scale.data == job.data), 1)

    def model(self, dataset: str, model: str = "flare") -> dict[str, Any]:
        """Return name and sizes of a model on a benchmark."""
        name = self.scales[dataset].data.name
        sizes: dict[str, Any] = merged(recipe(name, model), self._sizes(name, model))["model"]
        return sizes

    def training(self, dataset: str, model: str = "flare", *more: tuple[str, Any]) -> Training:
        """Return the training of a model on a benchmark. `more` are overrides of a cell, which come last."""
        scale = self.scales[dataset]
        return Training(scale.data, model, (*scale.overrides, *self._sizes(scale.data.name, model), *more))

    def _sizes(self, dataset: str, model: str) -> list[tuple[str, Any]]:
        if not self.sizes and not self.halved:
            return []
        from flare.models import model_options

        papers = recipe(dataset, model)["model"]
        own = [(name, value) for name, value in self.sizes.items() if name in model_options(papers["name"])]
        halves = [(name, papers[name] // 2) for name in self.halved]
        if "channels" in self.halved and papers["channels"] // 2 // papers["heads"] < NARROWEST:
            halves.append(("heads", papers["heads"] // 2))
        return [(f"model.{name}", value) for name, value in (*own, *halves)]

    def shrunk(self, dataset: str, model: str, settings: Overrides) -> Overrides:
        """Return settings in the paper's sizes with those halved that this budget halves."""
        halved = {f"model.{name}" for name in self.halved}
        sizes = {key: value // 2 if key in halved else value for key, value in settings}
        if "channels" in self.halved and "model.heads" in sizes:
            channels = self.model(dataset, model)["channels"]
            sizes["model.heads"] = min(sizes["model.heads"], channels // NARROWEST)
        return tuple(sizes.items())


def _papers() -> dict[str, Scale]:
    made = {name: MADE_AS.get(name, name) for name in BENCHMARKS}
    sizes = {name: card(of).samples for name, of in made.items()}
    return {name: Scale(Data(made[name], n["train"] + n["test"], n["test"])) for name, n in sizes.items()}


def _cpu() -> dict[str, Scale]:
    """Return about 500 points, a few hundred samples and tens of epochs: minutes per training.

    Batches have one sample, so that all models take equally many steps.
    """

    def short(epochs: int, evaluations: int, *more: tuple[str, Any]) -> Overrides:
        return (*more, ("data.batch_size", 1), ("epochs", epochs), ("evaluate_every", epochs // evaluations))

    # In few steps FLARE learns several times as much from points between -1.7 and 1.7 as from points between 0 and 1.
    normalized = ("data.normalize.points", "gaussian")
    return {
        # Half of the points, drawn again every epoch. Tests use all points.
        "elasticity": Scale(Data("elasticity", 500, 100), short(16, 8, normalized, ("data.subsample", 486)), seeds=3),
        "darcy": Scale(Data("darcy", 350, 50, {"resolution": 22}), short(12, 4)),
        "airfoil": Scale(Data("airfoil", 180, 30, {"stride": 5}), short(20, 5)),
        "pipe": Scale(Data("pipe", 350, 50, {"nodes": 49, "stride": 2}), short(12, 4)),
        "cars": Scale(
            Data("car-potential", 150, 30, {"points": 4096, "refinement": 0.5}),
            short(20, 5, normalized, ("data.subsample", 512)),
        ),
        # Fewer parts without mirror images were not enough for any model; see results/notes/table1.md.
        "lpbf": Scale(
            Data("lpbf", 240, 40, {"layers": 30}),
            short(
                60,
                6,
                ("data.subsample", 512),
                ("data.mirror", ["x", "y", "x=y"]),
                ("data.normalize.displacement", "gaussian"),
            ),
        ),
    }


def _smoke() -> dict[str, Scale]:
    short: Overrides = (("data.batch_size", 1), ("epochs", 1))
    return {
        "elasticity": Scale(Data("elasticity", 6, 2), short),
        "darcy": Scale(Data("darcy", 6, 2, {"resolution": 8, "stride": 1, "grid": "node"}), short),
        "airfoil": Scale(Data("airfoil", 3, 1, {"resolution": "half", "stride": 5}), short),
        "pipe": Scale(Data("pipe", 4, 2, {"nodes": 9}), short),
        "cars": Scale(Data("car-potential", 3, 1, {"points": 128, "refinement": 0.25}), short),
        "lpbf": Scale(Data("lpbf", 3, 1, {"layers": 60}), (*short, ("data.subsample", 64))),
    }


TINY = {"channels": 8, "blocks": 2, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0, "slices": 4, "modes": 4}
BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("smoke", "tiny models and a few samples, to check that everything runs", _smoke(), TINY),
        Budget(
            "cpu",
            "for two CPU cores",
            _cpu(),
            halved=("blocks", "channels"),
        ),
        Budget("paper", "the paper's setting, one seed; for GPUs", _papers()),
    )
}


def budget_named(name: str, *, published: bool = False) -> Budget:
    """Return a budget.

    Args:
        name: One of `BUDGETS`.
        published: Read the published files of benchmarks instead of generating data.

    Raises:
        ConfigError: The name is unknown, or a budget other than `paper` is to read published files.
    """
    if name not in BUDGETS:
        raise ConfigError(f"unknown budget {name!r}; {suggest_name(name, BUDGETS)}")
    budget = BUDGETS[name]
    if not published:
        return budget
    if name != "paper":
        raise ConfigError(f"published=True needs budget 'paper', not {name!r}: published files are read completely")
    scales = {key: replace(scale, data=_published(scale.data)) for key, scale in budget.scales.items()}
    return replace(budget, scales=scales, published=True)


def _published(data: Data) -> Data:
    original = card(data.name).stands_in_for
    options = {"size": "40k"} if original == "drivaerml" else {}
    return replace(data, name=original or data.name, options=options, published=True)
