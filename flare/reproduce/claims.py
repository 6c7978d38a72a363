"""What the paper claims beside what the records say of it: the first thing to be seen in the list of results."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from flare.data.benchmarks.cards import card
from flare.reproduce.budgets import Budget
from flare.reproduce.items.table1 import DATASETS, PAPER, RAW
from flare.reproduce.ledger import Ledger
from flare.reproduce.names import IN_THE_PAPER
from flare.reproduce.registry import item_named
from flare.reproduce.study import Cell, Outcome, chosen, outcomes
from flare.reproduce.tables import Table
from flare.reproduce.verdicts import NO_DIFFERENCE, overlap

Claim = tuple[str, str, str]
"""Of the paper; what is here; whether it holds."""
HOLDS, FAILS, SAME = "holds", "does **not** hold", NO_DIFFERENCE.lower()
MARK = "†"


def claims(ledger: Ledger, budget: Budget) -> str:
    """A table, in Markdown, of the claims that have records, with a note to it; empty where none has."""
    table1 = [claim for dataset in DATASETS for claim in _of_table1(ledger, budget, dataset)]
    blocks = [claim for dataset in ("elasticity", "darcy") for claim in _more_blocks(ledger, budget, dataset)]
    independent, shared = "blocks=8/independent", "blocks=8/shared"
    pairs = [
        *_pair(ledger, budget, "shared-latents", "independent latents beat shared ones", independent, shared),
        *_pair(ledger, budget, "kv-depth", "a deeper MLP of keys and values lowers the error", "depth=3", "depth=0"),
    ]
    rows = [*table1, *blocks, *pairs]
    if not rows:
        return ""
    head = ("claim of the paper", f"here, budget `{budget.name}`, rel-L2 × 1e-3", "verdict")
    return f"{Table(head, rows, text=3).markdown()}{_as_they_are(ledger, budget)}"


def _as_they_are(ledger: Ledger, budget: Budget) -> str:
    """The note on Elasticity: its order with points as the paper has them."""
    raw = _raw(ledger, budget)
    if not raw:
        return ""
    who = "FLARE is" if _name(raw[0]) == "flare" else "FLARE is **not**"
    seeds = ", of one seed" if any(outcome.spread is None for outcome in raw) else ""
    told = f"With points as they are, as in the paper, {who} the lowest{seeds}: {_order(raw)}."
    return f"\n{MARK} Points are normalised in this budget. {told}\n"


def order_flips(ledger: Ledger, budget: Budget) -> bool:
    """Whether another model has the lowest error on Elasticity as soon as points are not normalised."""
    usual, raw = _ranked(ledger, _models(budget, "elasticity")), _raw(ledger, budget)
    return bool(usual and raw) and _name(usual[0]) != _name(raw[0])


def _raw(ledger: Ledger, budget: Budget) -> list[Outcome]:
    return _ranked(ledger, [c for c in _models(budget, "elasticity", extra=True) if c.parts[1].endswith(RAW)])


def _models(budget: Budget, dataset: str, *, extra: bool = False) -> list[Cell]:
    return [c for c in item_named("table1").cells(budget) if c.parts[0] == dataset and c.extra == extra]


def _ranked(ledger: Ledger, cells: Sequence[Cell]) -> list[Outcome]:
    """Those with numbers, the lowest error first."""
    return sorted((o for o in outcomes(ledger, cells) if o.values()), key=lambda outcome: outcome.mean)


def _name(outcome: Outcome) -> str:
    return outcome.cell.parts[1].removesuffix(RAW)


def _order(ranked: Sequence[Outcome]) -> str:
    """`1. transformer 52.3, 2. transolver-conv 68.5, 3. flare 68.9; of 7 models`: the first two, and FLARE."""
    told = [f"{k}. {_name(o)} {o.number}" for k, o in enumerate(ranked, start=1) if k <= 2 or _name(o) == "flare"]
    return f"{', '.join(told)}; of {len(ranked)} models"


def _judged(verdict: str, found: Sequence[Outcome]) -> str:
    """What is of one seed has no spread that could take it back."""
    return f"one seed: {verdict}" if any(outcome.spread is None for outcome in found) else verdict


def _of_table1(ledger: Ledger, budget: Budget, dataset: str) -> list[Claim]:
    """Who has the lowest error on a benchmark."""
    wanted = _models(budget, dataset)
    ranked = _ranked(ledger, wanted)
    if len(ranked) < 2:
        return []
    column = {model: e for model, errors in PAPER.items() if (e := errors[DATASETS.index(dataset)]) is not None}
    papers = min(column, key=lambda model: column[model])
    about = card(budget.scales[dataset].data.name)
    stand_in = f" ({about.name}, a stand-in)" if about.stands_in_for else ""
    mark = MARK if dataset == "elasticity" and _as_they_are(ledger, budget) else ""
    best, others = ranked[0], ranked[1:]
    if papers not in map(_name, ranked):
        verdict = f"{papers} has no number yet"
    elif any(overlap(best, other) for other in others):
        close = [_name(other) for other in others if overlap(best, other)]
        verdict = f"{SAME}: {', '.join([_name(best), *close])}"
    else:
        verdict = HOLDS if _name(best) == papers else FAILS
    few = "" if len(ranked) == len(wanted) else f"{len(ranked)} of {len(wanted)} models: "
    who = papers if papers == "flare" else f"{papers}, not flare,"
    claim = f"[Table 1](table1.md): {who} has the lowest error on {dataset}{stand_in}"
    return [(claim, _order(ranked), few + _judged(verdict, ranked) + mark)]


def _more_blocks(ledger: Ledger, budget: Budget, dataset: str) -> list[Claim]:
    """Whether the error falls at every step to more blocks, whatever the number of latents."""
    lines: dict[str, list[Outcome]] = {}
    for outcome in outcomes(ledger, chosen(item_named("blocks-latents").cells(budget), [dataset])):
        if outcome.values():
            lines.setdefault(_value(outcome.cell.parts[2]), []).append(outcome)
    lines = {latents: line for latents, line in lines.items() if len(line) > 1}
    steps = [step for line in lines.values() for step in pairwise(line)]
    if not steps:
        return []
    falls = sum(b.mean < a.mean and not overlap(a, b) for a, b in steps)
    rises = any(b.mean > a.mean and not overlap(a, b) for a, b in steps)
    verdict = HOLDS if falls == len(steps) else f"{FAILS} at every step" if rises else f"{SAME} at some steps"
    here = [
        f"{line[0].number} to {line[-1].number} from {_value(line[0].cell.parts[1])} to "
        f"{_value(line[-1].cell.parts[1])} blocks with {latents} latents"
        for latents, line in lines.items()
    ]
    told = f"{'; '.join(here)}; {falls} of {len(steps)} steps fall"
    claim = f"[Figure 9](blocks-latents.md): the error falls with more blocks on {dataset}"
    return [(claim, told, _judged(verdict, [outcome for step in steps for outcome in step]))]


def _pair(ledger: Ledger, budget: Budget, item: str, claim: str, better: str, worse: str) -> list[Claim]:
    """Whether one cell is better than another."""
    cells = [cell for name in (better, worse) for cell in chosen(item_named(item).cells(budget), [name])]
    found = [outcome for outcome in outcomes(ledger, cells) if outcome.values()]
    if len(found) < 2:
        return []
    one, other = found
    verdict = SAME if overlap(one, other) else HOLDS if one.mean < other.mean else FAILS
    where = IN_THE_PAPER[item]
    here = f"{better} {one.number}, {worse} {other.number}"
    return [(f"[{where}]({item}.md): {claim}", here, _judged(verdict, found))]


def _value(part: str) -> str:
    return part.split("=")[1]
