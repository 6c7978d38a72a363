"""Error over CPU minutes with AdamW, SOAP and Muon, for FLARE and the baselines of Table 1. This is not in the paper.

Every training holds out a tenth of its training samples as a validation split. Learning rates are chosen on that split;
the test split is only reported. All optimizers have the cosine schedule with a warm-up of a tenth and gradients clipped
at 1; they differ in name, learning rates, betas and weight decay (`OPTIMIZER_DEFAULTS`).

* Search, cells `search/…`: four learning rates, `RATES` times 1/3, 1, 3 and 10, in a quarter of the epochs, for
  FLARE on every dataset and for the baselines on Elasticity.
* Comparison, cells `<dataset>/<model>/<optimizer>/length=…`: the chosen rate (`CHOSEN`) for T epochs. FLARE with SOAP
  and Muon is also trained for T/2, T/3 and T/4 epochs, each with a schedule of its own.
* Inputs, cells `inputs/…`: FLARE with Muon for T/2 epochs on every dataset, with or without normalized points and
  Fourier features, and with the lower default learning rate.
* Recipe, cells `recipe/…`: FLARE with Muon on all samples of Elasticity, one or two settings changed at a time.
* Subsampling, cells `subsample/…`: FLARE with Muon on grids of the paper's resolution. All runs on a dataset process
  equally many points: few points of each sample for many epochs, or many points for few epochs.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from flare.data.batching import Subsample
from flare.report.style import Look, ordered_looks
from flare.reproduce.budgets import BENCHMARKS, BUDGETS, Budget
from flare.reproduce.estimate import points
from flare.reproduce.figures import cpu_curves
from flare.reproduce.items.table1 import PAPER
from flare.reproduce.jobs import Data, Overrides, Training
from flare.reproduce.ledger import Record
from flare.reproduce.study import ERROR, Block, Cell, Item, Outcome, mean_spread
from flare.reproduce.tables import Table
from flare.train.config import OPTIMIZER_DEFAULTS

Key = tuple[str, str, str]
"""Dataset, model, optimizer."""
OPTIMIZERS = {"adamw": "AdamW", "soap": "SOAP", "muon": "Muon"}
"""Setting -> name in tables."""
LOOKS = {
    "adamw": Look("#000000", "o"),
    "soap": Look("#0072b2", "s"),
    "muon": Look("#d55e00", "D"),
}
INPUTS: dict[str, Overrides] = {
    f"points={'gaussian' if points == 'gaussian' else 'as-they-are'}+fourier={octaves}": (
        ("data.normalize.points", points),
        ("model.fourier", octaves),
    )
    for points in ("identity", "gaussian")
    for octaves in (0, 2, 4)
}
"""Part of a cell's name -> how points enter the model."""
DATASETS = tuple(name for name in BENCHMARKS if name != "cars")
RATES = {
    "adamw": {"lr": 1e-3, "rest_lr": 1e-3},
    "soap": {"lr": 3e-3, "rest_lr": 3e-3},
    "muon": {"lr": 3e-3, "rest_lr": 1e-3},
}
"""Learning rates that searches multiply by a factor."""
FACTORS = {"1-3": 1 / 3, "1": 1.0, "3": 3.0, "10": 10.0}
"""Part of a cell's name -> learning rate as a multiple of that in `RATES`."""
CHOSEN: dict[Key, float] = {
    ("elasticity", "flare", "adamw"): 3.0,
    ("elasticity", "flare", "soap"): 3.0,
    ("elasticity", "flare", "muon"): 3.0,
    ("elasticity", "transformer", "adamw"): 3.0,
    ("elasticity", "transformer", "soap"): 3.0,
    ("elasticity", "transformer", "muon"): 3.0,
    ("elasticity", "perceiver", "adamw"): 3.0,
    ("elasticity", "perceiver", "soap"): 3.0,
    ("elasticity", "perceiver", "muon"): 10.0,
    ("elasticity", "gnot", "adamw"): 3.0,
    ("elasticity", "gnot", "soap"): 10.0,
    ("elasticity", "gnot", "muon"): 3.0,
    ("elasticity", "lno", "adamw"): 1.0,
    ("elasticity", "lno", "soap"): 3.0,
    ("elasticity", "lno", "muon"): 3.0,
    ("elasticity", "transolver", "adamw"): 10.0,
    ("elasticity", "transolver", "soap"): 10.0,
    ("elasticity", "transolver", "muon"): 10.0,
    ("darcy", "flare", "adamw"): 1.0,
    ("airfoil", "flare", "adamw"): 10.0,
    ("pipe", "flare", "adamw"): 1.0,
    ("lpbf", "flare", "adamw"): 1 / 3,
    ("lpbf", "flare", "soap"): 1.0,
    ("lpbf", "flare", "muon"): 1 / 3,
}
"""Factor with the lowest validation error in the search of budget `cpu`. All budgets use it.

A dataset without a search takes that of Elasticity; without that either, it is 1.
"""
LENGTHS = {"1": 1, "1-2": 2, "1-3": 3, "1-4": 4}
"""Part of a cell's name -> divisor of the epochs."""
TIMES = {"smoke": (8.0, 4.0), "cpu": (2.0, 0.5), "paper": (1.0, 1.0)}
"""Budget -> T as a multiple of the budget's epochs: of FLARE, which is cheap, and of the baselines."""
SHORTER = {("cpu", "lpbf"): 0.5}
"""Budget and dataset -> multiple of T: samples of LPBF have many points."""
EVALUATIONS = 8
"""At most, in a run."""
VALIDATION = "rel_l2_validation"
WIDER = {"smoke": (("model.channels", 16),)}
"""Budget -> sizes of models in place of the budget's: Muon and SOAP leave narrower matrices to AdamW."""

GRIDS = ("darcy", "airfoil", "pipe")
POINTS = {"smoke": (16, 32), "cpu": (1024, 2048, 4096), "paper": (1024, 2048, 4096)}
"""Budget -> points drawn from each sample in every epoch; the first is where `grow` starts."""
GROWTH = 0.8
"""Part of the run in which the points of `grow` become all points."""
PASSES = {"smoke": 2.0, "cpu": 30.0}
"""Budget -> epochs with the fewest points; the paper's epochs with all points otherwise."""
SAMPLES, HELD_OUT = 250, 50
"""Samples of a grid in budget `cpu`, and how many of them are for validation and for the test, each."""


def model_names(budget: Budget, dataset: str) -> list[str]:
    """List FLARE and the baselines that Table 1 has on a dataset, without variants; in budget `smoke` FLARE and LNO."""
    known = [name for name, errors in PAPER.items() if errors[BENCHMARKS.index(dataset)] is not None]
    if budget.name == "smoke":
        known = ["lno", "flare"] if dataset == "elasticity" else ["flare"]
    return sorted((name for name in known if name != "transolver-conv"), key=lambda name: name != "flare")


def optimizer_settings(optimizer: str, factor: float = 1.0) -> Overrides:
    """Return all settings of an optimizer, its learning rates multiplied by a factor."""
    default = OPTIMIZER_DEFAULTS[optimizer]
    rates = {name: float(f"{rate * factor:.3g}") for name, rate in RATES[optimizer].items()}
    own = {"name": optimizer, **rates, "betas": list(default["betas"]), "weight_decay": default["weight_decay"]}
    common = {"schedule": "cosine", "warmup": 0.1, "clip": 1.0}
    return tuple((f"optim.{name}", value) for name, value in (own | common).items())


RECIPE_EPOCHS = {"smoke": 2, "cpu": 12, "paper": 50}
SMALL_MODEL: Overrides = (("model.blocks", 4), ("model.latents", 32))
"""The demo's model in place of the paper's, for recipes and subsampling in budget `cpu`."""
RECIPE_RATE = 6e-3
FASTEST, LONGEST = "fourier=4+epochs=10", "adamw+lr=3e-3+epochs=36"
"""The recipe that is to reach the error of the other, both measured on one machine."""
RECIPES: dict[str, Overrides] = {
    "base": (),
    "lr=3e-3": (("optim.lr", 3e-3),),
    "lr=9e-3": (("optim.lr", 9e-3),),
    "lr=1.8e-2": (("optim.lr", 1.8e-2),),
    "rest-lr=3e-3": (("optim.rest_lr", 3e-3),),
    "warmup=0.02": (("optim.warmup", 0.02),),
    "warmup=0.3": (("optim.warmup", 0.3),),
    "schedule=wsd": (("optim.schedule", "wsd"), ("optim.decay", 0.5), ("optim.warmup", 0.02)),
    "weight-decay=0.1": (("optim.weight_decay", 0.1),),
    "adamw+lr=1e-3": optimizer_settings("adamw"),
    "adamw+lr=3e-3": optimizer_settings("adamw", 3),
    "adamw+lr=1e-2": optimizer_settings("adamw", 10),
    LONGEST: optimizer_settings("adamw", 3),
    "adamw+lr=3e-3+fourier=4+epochs=36": (*optimizer_settings("adamw", 3), ("model.fourier", 4)),
    "fourier=4": (("model.fourier", 4),),
    FASTEST: (("model.fourier", 4),),
    "batch=1": (("data.batch_size", 1),),
    "batch=4": (("data.batch_size", 4),),
    "points=486": (("data.subsample", 486),),
}
"""Part of a cell's name -> settings in place of those of `base`."""
LONGER = {"points=486": 2, FASTEST: 5 / 6, LONGEST: 3, "adamw+lr=3e-3+fourier=4+epochs=36": 3}
"""Part of a cell's name -> multiple of the epochs: half of the points for twice the epochs cost about the same."""
REPEATED = ("base", "fourier=4", FASTEST, LONGEST)
"""Recipes with three seeds."""


def cells(budget: Budget) -> list[Cell]:
    return [
        *(cell for key in _keys(budget) for cell in _comparison(budget, key)),
        *(cell for key in _searched(budget) for cell in _search(budget, key)),
        *(cell for dataset in DATASETS for cell in _inputs(budget, dataset)),
        *_recipes(budget),
        *(cell for dataset in GRIDS for cell in _subsample(budget, dataset)),
    ]


def _keys(budget: Budget) -> list[Key]:
    return [(d, m, o) for d in DATASETS for m in model_names(budget, d) for o in OPTIMIZERS]


def _searched(budget: Budget) -> list[Key]:
    return [(d, m, o) for d, m, o in _keys(budget) if d == "elasticity" or m == "flare"]


def chosen_factor(key: Key) -> float:
    """Return the learning rate as a multiple of that in `RATES`."""
    return CHOSEN.get(key, CHOSEN.get(("elasticity", *key[1:]), 1.0))


def _comparison(budget: Budget, key: Key) -> list[Cell]:
    dataset, model, optimizer = key
    has_shorter = model == "flare" and optimizer != "adamw" and budget.name != "smoke"
    lengths = list(LENGTHS) if has_shorter else ["1"]
    seeds = None if dataset == "elasticity" else 1
    factor = chosen_factor(key)
    return [
        Cell((*key, f"length={length}"), _training(budget, key, factor, LENGTHS[length]), seeds=seeds)
        for length in lengths
    ]


def _search(budget: Budget, key: Key) -> list[Cell]:
    # FLARE with the chosen rate is the run `length=1-4` of the comparison as well, and needs its curve.
    evaluations = EVALUATIONS if key[1] == "flare" else 1
    return [
        Cell(("search", *key, f"lr={name}"), _training(budget, key, factor, 4, evaluations), extra=True, seeds=1)
        for name, factor in FACTORS.items()
    ]


def _training(budget: Budget, key: Key, factor: float, divisor: int, evaluations: int = EVALUATIONS) -> Training:
    dataset, model, optimizer = key
    flare, baselines = TIMES[budget.name]
    usual, data = budget.training(dataset, model, *WIDER.get(budget.name, ())), budget.scales[dataset].data
    times = (flare if model == "flare" else baselines) * SHORTER.get((budget.name, dataset), 1.0)
    whole = math.ceil(usual.settings()["epochs"] * times)
    epochs = math.ceil(whole / divisor)
    return usual.with_settings(
        ("data.holdout", max(1, (data.samples - data.test) // 10)),
        *optimizer_settings(optimizer, factor),
        ("epochs", epochs),
        ("evaluate_every", math.ceil(epochs / evaluations)),
    )


def _inputs(budget: Budget, dataset: str) -> list[Cell]:
    key = (dataset, "flare", "muon")
    job = _training(budget, key, chosen_factor(key), 2)
    variants = {name: job.with_settings(*changes) for name, changes in INPUTS.items()}
    variants["lr=1"] = _training(budget, key, 1.0, 2).with_settings(*INPUTS["points=gaussian+fourier=0"])
    return [Cell(("inputs", dataset, name), variant, extra=True, seeds=1) for name, variant in variants.items()]


def _recipes(budget: Budget) -> list[Cell]:
    if budget.name == "cpu":
        usual = BUDGETS["paper"].training("elasticity", "flare", *SMALL_MODEL)
    else:
        usual = budget.training("elasticity", "flare", *WIDER.get(budget.name, ()))
    epochs, training = RECIPE_EPOCHS[budget.name], usual.on.samples - usual.on.test
    found = []
    for name, changes in RECIPES.items():
        length = math.ceil(epochs * LONGER.get(name, 1))
        job = usual.with_settings(
            ("data.normalize.points", "gaussian"),
            ("data.holdout", max(1, training // 10)),
            *optimizer_settings("muon"),
            ("optim.lr", RECIPE_RATE),
            *changes,
            ("epochs", length),
            ("evaluate_every", math.ceil(length / 2)),
        )
        seeds = 3 if name in REPEATED and budget.name == "cpu" else 1
        found.append(Cell(("recipe", "elasticity", name), job, extra=True, seeds=seeds))
    return found


def _subsample(budget: Budget, dataset: str) -> list[Cell]:
    if budget.name == "cpu":
        usual = replace(BUDGETS["paper"].training(dataset, "flare", *SMALL_MODEL), on=Data(dataset, SAMPLES, HELD_OUT))
    else:
        usual = budget.training(dataset, "flare", *WIDER.get(budget.name, ()))
    training, full = usual.on.samples - usual.on.test, int(points(usual.on))
    holdout = HELD_OUT if budget.name == "cpu" else max(1, training // 10)
    per_epoch = (training - holdout) // usual.settings()["data"]["batch_size"]
    few = POINTS[budget.name][0]
    seen = few * PASSES[budget.name] if budget.name in PASSES else full * usual.settings()["epochs"]
    found = []
    for name in (*map(str, POINTS[budget.name]), "all", "grow"):
        drawn, start = int(name) if name.isdigit() else None, few if name == "grow" else None
        steps = equal_steps(seen, per_epoch, full, drawn, start)
        epochs = math.ceil(steps / per_epoch)
        job = usual.with_settings(
            *optimizer_settings("muon"),
            ("data.normalize.points", "identity" if dataset == "airfoil" else "gaussian"),
            ("data.holdout", holdout),
            ("data.subsample", drawn),
            ("data.subsample_from", start),
            ("data.subsample_growth", GROWTH),
            ("loss.gradient_weight", 0.0),  # it needs whole grids
            ("steps", steps),
            ("epochs", epochs),
            ("evaluate_every", math.ceil(epochs / 5)),
        )
        found.append(Cell(("subsample", dataset, f"points={name}"), job, extra=True, seeds=1))
    return found


@cache
def equal_steps(seen: float, per_epoch: int, full: int, drawn: int | None, start: int | None) -> int:
    """Return the number of steps after which a sample has been seen with so many points in all.

    Args:
        seen: Points of a sample, added up over epochs.
        per_epoch: Steps in an epoch.
        full: All points of a sample.
        drawn: Points drawn in an epoch; None: all.
        start: Points drawn in the first epoch; None: no growth.
    """

    def points_after(steps: int) -> int:
        subsample = Subsample(drawn, start, GROWTH * steps / per_epoch)
        whole, rest = divmod(steps, per_epoch)
        return per_epoch * sum(subsample.of(full, epoch) for epoch in range(whole)) + rest * subsample.of(full, whole)

    most = math.ceil(seen * per_epoch / min(full, drawn or full, start or full))
    return 1 + bisect_left(range(1, most), seen * per_epoch, key=points_after)


def best_factors(searched: Iterable[Outcome]) -> dict[Key, float]:
    """Return search -> factor with the lowest validation error, for every search that has all its records."""
    errors: dict[Key, dict[float, float]] = {}
    for outcome in searched:
        _, dataset, model, optimizer, rate = outcome.cell.parts
        record = outcome.first
        if record is not None and record.outcome != "unfinished":  # a failed one has no error
            of_search = errors.setdefault((dataset, model, optimizer), {})
            of_search[FACTORS[rate.removeprefix("lr=")]] = record.result.get(VALIDATION, math.inf)
    return {
        key: min(found, key=lambda factor: found[factor]) for key, found in errors.items() if len(found) == len(FACTORS)
    }


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    compared = [o for o in found if o.cell.parts[0] in DATASETS]
    blocks: list[Block] = []
    for dataset in DATASETS:
        if here := [o for o in compared if o.cell.parts[0] == dataset]:
            blocks += [f"{dataset}, error after training and CPU minutes of training:", _errors(here)]
    blocks += _reached(compared) + _figures(compared)
    if searched := [o for o in found if o.cell.parts[0] == "search"]:
        blocks += [SEARCH, _search_table(searched, best_factors(searched))]
    if entered := [o for o in found if o.cell.parts[0] == "inputs"]:
        blocks += [INPUTS_TITLE, _variants_table(entered)]
    if tried := [o for o in found if o.cell.parts[0] == "recipe"]:
        blocks += [RECIPE, _variants_table(tried), *_recipes_reached(tried)]
    if drawn := [o for o in found if o.cell.parts[0] == "subsample"]:
        blocks += [SUBSAMPLE, _variants_table(drawn, "steps"), *_subsample_figures(drawn)]
    return blocks


REACHED = "CPU minutes of AdamW for T epochs, and of the others until a run of any length has its error:"
SEARCH = f"Search of the learning rate, validation {ERROR}; in bold the lowest:"
INPUTS_TITLE = "FLARE with Muon, points normalized or not, with and without Fourier features:"
RECIPE = "FLARE with Muon, settings of `base` changed:"
RECIPES_REACHED = f"CPU minutes of `{LONGEST}`, and of `{FASTEST}` until it has that error:"
SUBSAMPLE = "FLARE with Muon on some points of a sample or on all, for the same number of points in all:"
CURVES = "relative L2 error on the validation split over CPU minutes of training, seed 0."


def _errors(found: Sequence[Outcome]) -> Table:
    head = ("model", "optimizer", "epochs", "learning rate", f"test {ERROR}", f"validation {ERROR}", "seeds", "minutes")
    rows = []
    for outcome in found:
        _, model, optimizer, _ = outcome.cell.parts
        settings = _settings(outcome)
        about = (model, OPTIMIZERS[optimizer], str(settings["epochs"]), f"{settings['optim']['lr']:g}")
        rows.append((*about, outcome.error(), _validation(outcome), outcome.seeds, _minutes(outcome)))
    return Table(head, rows, text=2)


def _settings(outcome: Outcome) -> dict[str, Any]:
    assert isinstance(outcome.cell.job, Training)
    return outcome.cell.job.settings()


def _validation(outcome: Outcome) -> str:
    return mean_spread(outcome.values(VALIDATION), outcome.unit)


def _minutes(outcome: Outcome) -> str:
    return mean_spread([curve[-1][0] for record in outcome.records if (curve := _curve(record))], 60.0)


def _curve(record: Record) -> Sequence[tuple[float, float]]:
    """Return (CPU seconds, validation error) of a training that is done."""
    return record.made.get("cpu_curve", ()) if record.outcome == "done" else ()


def _reached(found: Sequence[Outcome]) -> list[Block]:
    """Return the table of the CPU minutes to the validation error that AdamW ends with, where it has a record."""
    others = [name for name in OPTIMIZERS if name != "adamw"]
    head = ["dataset", "model", "AdamW"]
    head += [text for name in others for text in (OPTIMIZERS[name], f"AdamW / {OPTIMIZERS[name]}")]
    rows = []
    for dataset, model in dict.fromkeys((o.cell.parts[0], o.cell.parts[1]) for o in found):
        if goals := _ends(found, (dataset, model, "adamw")):
            row = [dataset, model, mean_spread([seconds for seconds, _ in goals.values()], 60.0)]
            for name in others:
                row += _minutes_to(goals, _runs(found, (dataset, model, name)))
            rows.append(row)
    return [REACHED, Table(head, rows, text=2)] if rows else []


def _recipes_reached(found: Sequence[Outcome]) -> list[Block]:
    """Return the table of the CPU minutes to the validation error of the longest run with AdamW, where it has one."""
    goals = _ends(found, ("recipe", "elasticity", LONGEST))
    if not goals:
        return []
    rows = [
        [LONGEST, mean_spread([seconds for seconds, _ in goals.values()], 60.0), ""],
        [FASTEST, *_minutes_to(goals, _runs(found, ("recipe", "elasticity", FASTEST)))],
    ]
    return [RECIPES_REACHED, Table(["setting", "minutes", "AdamW / setting"], rows, text=1)]


def _ends(found: Iterable[Outcome], key: Key) -> dict[int, tuple[float, float]]:
    """Return (CPU seconds, validation error) at the end of the first run of each seed."""
    return {seed: runs[0][-1] for seed, runs in _runs(found, key).items()}


def _minutes_to(goals: Mapping[int, tuple[float, float]], runs: Curves) -> list[str]:
    """Return two cells: the minutes until `runs` reach the goals, and how many times longer the goals took."""
    times = earliest(goals, runs)
    seeds = f"; {len(times)} of {len(goals)} seeds" if 0 < len(times) < len(goals) else ""
    ratio = mean_spread([goals[seed][0] / seconds for seed, seconds in times.items()], 1.0)
    return [mean_spread(list(times.values()), 60.0) + seeds, f"{ratio}×" if ratio else ""]


Curves = Mapping[int, Sequence[Sequence[tuple[float, float]]]]
"""Seed -> the curve of each run, whatever its length."""


def _runs(found: Iterable[Outcome], key: Key) -> Curves:
    curves: dict[int, list[Sequence[tuple[float, float]]]] = {}
    for outcome in found:
        if outcome.cell.parts[:3] == key:
            for job, record in zip(outcome.jobs, outcome.records, strict=True):
                if isinstance(job, Training) and (curve := _curve(record)):
                    curves.setdefault(job.seed, []).append(curve)
    return curves


def earliest(goals: Mapping[int, tuple[float, float]], runs: Curves) -> dict[int, float]:
    """Return the CPU seconds after which each seed first has an error as low as its goal, where it ever has.

    Args:
        goals: Seed -> (CPU seconds, error) of the optimizer to compare with.
        runs: Those of the other optimizer.
    """
    found = {
        seed: [seconds for curve in runs.get(seed, ()) for seconds, error in curve if error <= goal]
        for seed, (_, goal) in goals.items()
    }
    return {seed: min(times) for seed, times in found.items() if times}


def _figures(found: Sequence[Outcome]) -> list[Block]:
    """Draw FLARE on every dataset, and every baseline on Elasticity."""
    blocks: list[Block] = []
    pairs = dict.fromkeys((o.cell.parts[0], o.cell.parts[1]) for o in found)
    for dataset, model in sorted(pairs, key=lambda pair: pair[1] != "flare"):
        if model != "flare" and dataset != "elasticity":
            continue
        curves, looks = {}, {}
        for outcome in found:
            if outcome.cell.parts[:2] == (dataset, model) and outcome.first is not None:
                optimizer, length = outcome.cell.parts[2], outcome.cell.parts[3].split("=")[1]
                label = OPTIMIZERS[optimizer] + (f", T/{LENGTHS[length]}" if length != "1" else "")
                curves[label] = _curve(outcome.first)
                width = 1.8 / math.sqrt(LENGTHS[length])
                looks[label] = LOOKS[optimizer]._replace(width=width, size=4.0 * width)
        blocks += cpu_curves(f"curves-{dataset}-{model}", f"{model} on {dataset}: {CURVES}", curves, looks)
    return blocks


def _search_table(found: Sequence[Outcome], best: Mapping[Key, float]) -> Table:
    of = {outcome.cell.parts: outcome for outcome in found}
    rows = []
    for dataset, model, optimizer in dict.fromkeys((p[1], p[2], p[3]) for p in of):
        row = [dataset, model, OPTIMIZERS[optimizer], f"{RATES[optimizer]['lr']:g}"]
        for name, factor in FACTORS.items():
            outcome = of.get(("search", dataset, model, optimizer, f"lr={name}"))
            text = "" if outcome is None else _validation(outcome) or outcome.error()
            row.append(f"**{text}**" if best.get((dataset, model, optimizer)) == factor else text)
        rows.append(row)
    rates = (f"× {name.replace('-', '/')}" for name in FACTORS)
    return Table(("dataset", "model", "optimizer", "rate", *rates), rows, text=3)


def _variants_table(found: Sequence[Outcome], length: str = "epochs") -> Table:
    """Build a table of the cells of a group: dataset, setting and length, which is a setting of the training."""
    head = ("dataset", "setting", length, f"test {ERROR}", f"validation {ERROR}", "seeds", "minutes")
    rows = []
    for o in found:
        about = (*o.cell.parts[1:], f"{_settings(o)[length]:,}")
        rows.append((*about, o.error(), _validation(o), o.seeds, _minutes(o)))
    return Table(head, rows, text=2)


def _subsample_figures(found: Sequence[Outcome]) -> list[Block]:
    blocks: list[Block] = []
    for dataset in dict.fromkeys(outcome.cell.parts[1] for outcome in found):
        here = {o.cell.parts[2].split("=")[1]: _curve(o.records[0]) for o in found if o.cell.parts[1] == dataset}
        looks = dict(zip(here, ordered_looks(len(here)), strict=True))
        blocks += cpu_curves(f"subsample-{dataset}", f"FLARE with Muon on {dataset}: {CURVES}", here, looks)
    return blocks


ITEM = Item("optimizers", "Error over CPU minutes with AdamW, SOAP and Muon, not in the paper", cells, report)
