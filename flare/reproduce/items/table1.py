"""Table 1: FLARE and the baselines on the benchmarks, each with its own recipe; and the paper's Elasticity run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flare.data.benchmarks.cards import card
from flare.reproduce.budgets import BENCHMARKS, BUDGETS, Budget
from flare.reproduce.figures import learning_curves
from flare.reproduce.jobs import Overrides, Training
from flare.reproduce.study import ERROR, MEAN_FIELD, Block, Cell, Item, Outcome, error_table, matrix, thousandths
from flare.reproduce.tables import Table

DATASETS = BENCHMARKS
"""Columns of the table."""
PAPER: dict[str, Sequence[float | None]] = {
    "transformer": (5.37, 4.38, 6.28, None, None, None),
    "perceiver": (28.0, 20.6, 7.65, 6.90, 248, 23.1),
    "gnot": (13.3, 16.9, 103, 5.89, 115, 24.3),
    "lno": (9.25, 7.64, 17.8, 8.10, 146, 24.7),
    "transolver": (6.40, 18.6, 8.24, 4.87, 70.5, 20.4),
    "transolver-conv": (None, 5.94, 5.50, 3.90, None, None),
    "flare": (3.38, 5.10, 4.28, 2.85, 60.8, 18.5),
}
"""Recipe -> errors in thousandths, None where the paper has none."""
OFFSET = "loss.offset"


@dataclass(frozen=True)
class ModelVariant:
    """A choice in which the paper and its code differ, made the other way."""

    number: int
    """Row in docs/paper/discrepancies.md."""
    model: str
    datasets: Sequence[str]
    settings: Overrides
    """Overrides in the paper's sizes."""
    coded: bool = False
    """True if the authors' code has these settings, and the paper's number with them."""


VARIANTS = {
    "flare-as-printed": ModelVariant(1, "flare", ["lpbf"], (("model.heads", 16), ("model.latents", 256))),
    "perceiver-1024": ModelVariant(3, "perceiver", DATASETS, (("model.latents", 1024),)),
    "perceiver-self": ModelVariant(4, "perceiver", DATASETS, (("model.flavour", "self"),)),
    "perceiver-fast": ModelVariant(5, "perceiver", DATASETS, (("optim.lr", 1e-3),)),
    "lno-8-blocks": ModelVariant(7, "lno", ["airfoil", "pipe"], (("model.blocks", 8),), coded=True),
    "transformer-bias": ModelVariant(
        8, "transformer", ["elasticity", "darcy", "airfoil"], (("model.qkv_bias", True), ("model.gelu", "none"))
    ),
    "gnot-published": ModelVariant(10, "gnot", ["darcy", "airfoil", "pipe"], (("model.published", True),), coded=True),
    "flare-offset": ModelVariant(12, "flare", ["lpbf"], ((OFFSET, card("lpbf").paper_offset),), coded=True),
    "flare-fixed-beta1": ModelVariant(13, "flare", DATASETS, (("optim.cycle_beta1", False),)),
    **{
        f"{model}-decay-norms": ModelVariant(
            15,
            model,
            [dataset for dataset, error in zip(DATASETS, errors, strict=True) if error is not None],
            (("optim.undecayed", ["biases", "latents"]),),
            coded=True,
        )
        for model, errors in PAPER.items()
    },
    "flare-decay-latents": ModelVariant(15, "flare", DATASETS, (("optim.undecayed", ["biases", "norms"]),)),
}
"""Part of a cell's name -> variant. Variants run only when they are selected, as in `--only darcy/gnot-published`."""
RAW = "-raw-points"
"""Suffix of models in budget `cpu` that are trained without normalized points."""


def cells(budget: Budget) -> list[Cell]:
    exact = budget if budget.name == "paper" else BUDGETS["paper"]  # the former may read published files
    found = []
    for dataset in DATASETS:
        for model in PAPER:
            if _papers(dataset, model) is not None:
                ours, theirs = budget.training(dataset, model), exact.training(dataset, model)
                found.append(Cell((dataset, model), ours, theirs, paper=_number(budget, dataset, model)))
        found += [_variant(budget, exact, dataset, name) for name in VARIANTS if dataset in VARIANTS[name].datasets]
        if budget.name == "cpu" and dataset == "elasticity":
            found += [
                replace(
                    cell,
                    parts=(dataset, f"{cell.parts[1]}{RAW}"),
                    job=budget.training(dataset, cell.parts[1], ("data.normalize.points", "identity")),
                    extra=True,
                )
                for cell in found
                if cell.parts[0] == dataset and not cell.extra
            ]
    return found


def _variant(budget: Budget, exact: Budget, dataset: str, name: str) -> Cell:
    variant = VARIANTS[name]
    ours = budget.training(dataset, variant.model, *budget.shrunk(dataset, variant.model, variant.settings))
    # The paper's number belongs to the authors' code. Other variants are compared with the usual training.
    theirs = exact.training(dataset, variant.model, *(variant.settings if variant.coded else ()))
    return Cell(
        (dataset, name),
        ours,
        theirs,
        paper=_number(budget, dataset, variant.model) if variant.coded else None,
        extra=True,
        discrepancies={key: variant.number for key, _ in variant.settings},
    )


def _papers(dataset: str, model: str) -> float | None:
    """Return the paper's error."""
    value = PAPER[model][DATASETS.index(dataset)]
    return None if value is None else 1e-3 * value


def _number(budget: Budget, dataset: str, model: str) -> float | None:
    """Return the paper's error if it has the same measure and data."""
    about = card(budget.scales[dataset].data.name)
    # The paper's error on LPBF is another measure, which has a table of its own.
    comparable = budget.comparable and not about.paper_offset and not about.stands_in_for
    return _papers(dataset, model) if comparable else None


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    plain = [outcome for outcome in found if not _trained_with_offset(outcome.cell)]
    blocks: list[Block] = _matrix(budget, plain)
    if plain:
        blocks += ["All cells:", error_table(("dataset", "model"), plain)]
    offset = [o for o in found if o.values("rel_l2_offset") or _trained_with_offset(o.cell)]
    if offset:
        title = f"LPBF with the offset of the authors' code ({card('lpbf').paper_offset} mm) in the error:"
        blocks += [title, _offset_table(offset, budget)]
    for dataset in DATASETS:
        here = [o for o in plain if o.cell.parts[0] == dataset and not o.cell.parts[1].endswith(RAW)]
        first = {o.cell.parts[1]: o.first for o in here if o.first is not None}
        caption = f"{dataset}: relative L2 error on the test split during training, seed 0."
        blocks += learning_curves(f"learning-{dataset}", caption, first)
    return blocks


def _matrix(budget: Budget, found: Sequence[Outcome]) -> list[Block]:
    """Build the table as the paper has it, models × benchmarks, without variants."""

    def place(cell: Cell) -> tuple[str, str]:
        return cell.parts[1], cell.parts[0]

    usual = {place(outcome.cell): outcome for outcome in found if not outcome.cell.extra}
    wanted = {
        place(cell): cell for model in PAPER for cell in cells(budget) if cell.parts[1] == model and not cell.extra
    }
    bold = []
    for dataset in DATASETS:
        ended = [key for key, outcome in usual.items() if key[1] == dataset and outcome.values()]
        bold += [min(ended, key=lambda key: usual[key].mean)] if ended else []
    return matrix("model", wanted, usual, bold, f"{ERROR}, ours (paper), lowest mean of a column in bold:")


def _trained_with_offset(cell: Cell) -> bool:
    """Return whether the loss and the error of a cell have the offset of the authors' LPBF code."""
    return isinstance(cell.job, Training) and OFFSET in dict(cell.job.overrides)


def _offset_table(found: Sequence[Outcome], budget: Budget) -> Table:
    rows = []
    for outcome in found:
        dataset, name = outcome.cell.parts
        model = VARIANTS[name].model if name in VARIANTS and VARIANTS[name].coded else name
        paper = _papers(dataset, model) if model in PAPER and budget.comparable else None
        own = _trained_with_offset(outcome.cell)
        error = outcome.error("rel_l2" if own else "rel_l2_offset")
        field = outcome.mean_field if own else ""  # others have the mean field without the offset
        rows.append((dataset, name, error, field, outcome.seeds, "" if paper is None else thousandths(paper)))
    head = ("dataset", "model", f"offset {ERROR}", f"offset {MEAN_FIELD}", "seeds", "paper")
    return Table(head, rows, text=2)


TABLE1 = Item("table1", "Table 1: models × benchmarks", cells, report)

SHORTER = {
    "smoke": (("epochs", 4), ("evaluate_every", 1)),
    "cpu": (("epochs", 50), ("evaluate_every", 5)),
    "paper": (),
}
"""Budget -> overrides of the paper's Elasticity run."""


def run_cells(budget: Budget) -> list[Cell]:
    """List the paper's run of FLARE on Elasticity; in budget `cpu` with a tenth of its epochs."""
    exact = BUDGETS["paper"]
    models = exact if budget.name == "cpu" else budget
    training = models.training("elasticity", "flare", *SHORTER[budget.name])
    paper = _papers("elasticity", "flare") if budget.comparable else None
    return [Cell(("elasticity", "flare"), training, exact.training("elasticity"), paper=paper, seeds=1)]


def run_report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    (outcome,) = found
    done = [r for r in outcome.records if r.made.get("seconds") and r.outcome == "done"]
    more = {"s per epoch": [", ".join(f"{r.made['seconds'] / r.result['epochs']:.0f}" for r in done)]}
    caption = "Relative L2 error on the test split during training, seed 0."
    curves = learning_curves("learning", caption, {"FLARE": outcome.first} if outcome.first is not None else {})
    return ["Error after training:", error_table(("dataset", "model"), found, more=more), *curves]


ELASTICITY_RUN = Item(
    "elasticity-run", "The paper's Elasticity run and its learning curve", run_cells, run_report, "of Table 1"
)
