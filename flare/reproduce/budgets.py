"""How much of the paper to repeat: `paper` all of it, `cpu` what two cores do in hours, `smoke` what takes seconds.

A budget gives each benchmark a size of dataset and a length of training, and models their sizes; the experiments ask
it for trainings and do not know which budget they work for. The cars are DrivAerML where published files are read, and
else the stand-in `car-potential`, beside which no number of the paper is shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flare.data.benchmarks.cards import card
from flare.reproduce.jobs import Data, Job, Overrides, Training, recipe
from flare.train.presets import merged
from flare.utils.errors import ConfigError, nearest

BENCHMARKS = ("elasticity", "darcy", "airfoil", "pipe", "cars", "lpbf")
"""Those of Table 1, in its order."""
NARROWEST = 4
"""Channels of a head: a halved model has fewer heads rather than narrower ones."""
MADE_AS = {"cars": "car-potential"}
"""Benchmark -> dataset that is made of it; of all others the name is the same."""


@dataclass(frozen=True)
class Scale:
    """A benchmark's dataset, settings of every training on it, and its number of seeds."""

    data: Data
    overrides: Overrides = ()
    seeds: int = 1


@dataclass(frozen=True)
class Budget:
    name: str
    about: str
    scales: Mapping[str, Scale]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Of every model that has them, in place of the paper's."""
    halved: Sequence[str] = ()
    """Sizes that every model has half of."""
    published: bool = False
    """Whether benchmarks are read from their published files."""

    @property
    def key(self) -> str:
        """In names of files."""
        return f"{self.name}-published" if self.published else self.name

    @property
    def comparable(self) -> bool:
        """Whether models are those of the paper or, as rows then say, halves of them: its numbers may stand beside."""
        return not self.sizes

    def seeds(self, job: Job) -> int:
        """With how many a job is done, unless asked for others."""
        return next((scale.seeds for scale in self.scales.values() if scale.data == job.data), 1)

    def model(self, dataset: str, model: str = "flare") -> dict[str, Any]:
        """Name and sizes of a model on a benchmark, as this budget has it."""
        name = self.scales[dataset].data.name
        sizes: dict[str, Any] = merged(recipe(name, model), self._sizes(name, model))["model"]
        return sizes

    def training(self, dataset: str, model: str = "flare", *more: tuple[str, Any]) -> Training:
        """A model on a benchmark as this budget has it, with the settings of an experiment's cell over all else."""
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
        """Settings in the paper's sizes, with half of those that this budget halves, and no head too narrow."""
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
    """About 500 points, a few hundred samples, tens of epochs: minutes for a training; see `flare reproduce list`.

    Batches of one: from so few samples, more steps teach more, and every model takes as many.
    """

    def short(epochs: int, evaluations: int, *more: tuple[str, Any]) -> Overrides:
        return (*more, ("data.batch_size", 1), ("epochs", epochs), ("evaluate_every", epochs // evaluations))

    # Points from -1.7 to 1.7 rather than 0 to 1: from few steps FLARE learns several times as much; see small_sets.
    normalised = ("data.normalise.points", "gaussian")
    return {
        # Half of the points, drawn anew every epoch; tests are on all.
        "elasticity": Scale(Data("elasticity", 500, 100), short(16, 8, normalised, ("data.subsample", 486)), seeds=3),
        "darcy": Scale(Data("darcy", 350, 50, {"resolution": 22}), short(12, 4)),
        "airfoil": Scale(Data("airfoil", 180, 30, {"stride": 5}), short(20, 5)),
        "pipe": Scale(Data("pipe", 350, 50, {"nodes": 49, "stride": 2}), short(12, 4)),
        "cars": Scale(
            Data("car-potential", 150, 30, {"points": 4096, "refinement": 0.5}),
            short(20, 5, normalised, ("data.subsample", 512)),
        ),
        # Fewer parts, without mirror images, in half the epochs taught no model anything; see results/notes/table1.md.
        "lpbf": Scale(
            Data("lpbf", 240, 40, {"layers": 30}),
            short(
                60,
                6,
                ("data.subsample", 512),
                ("data.mirror", ["x", "y", "x=y"]),
                ("data.normalise.displacement", "gaussian"),
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
        Budget(
            "smoke", "tiny models, a handful of samples: shows that everything runs, and nothing else", _smoke(), TINY
        ),
        Budget(
            "cpu",
            "for two CPU cores: a part of the paper's setting, each row or the words beside it say which",
            _cpu(),
            halved=("blocks", "channels"),
        ),
        Budget("paper", "the paper's setting, one seed as it has; for GPUs, or for weeks", _papers()),
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
    scales = {key: replace(scale, data=_published(scale.data)) for key, scale in budget.scales.items()}
    return replace(budget, scales=scales, published=True)


def _published(data: Data) -> Data:
    original = card(data.name).stands_in_for
    options = {"size": "40k"} if original == "drivaerml" else {}
    return replace(data, name=original or data.name, options=options, published=True)
