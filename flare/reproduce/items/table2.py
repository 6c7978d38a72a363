"""Table 2: six attentions on the tasks of the Long Range Arena, beside what can be guessed.

Judged by the test split, with masks, unless `dev-split` asks for what the published table very probably is: the
validation split, padding taken for tokens. That, the kernel of linear attention, Performer's features and the rate on
Text are number 20 of docs/discrepancies.md, each way a cell.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from flare.reproduce.budgets import TINY, Budget
from flare.reproduce.classification import Classification, Sequences
from flare.reproduce.decisions import decided
from flare.reproduce.items.lra import PAPER, SIX, settings_of
from flare.reproduce.jobs import Overrides
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import DEPARTURES, Block, Cell, Item, Outcome, digits, origin, outcomes
from flare.reproduce.tables import Table
from flare.reproduce.verdicts import flare_among
from flare.sequence.guesses import reading
from flare.sequence.listops import ListOps
from flare.sequence.making import SHORT_LISTOPS, SHORT_SIZES

SHORT = asdict(ListOps(**SHORT_LISTOPS))
LISTOPS = Sequences("listops", 100_000, 2_000, val=2_000)
SMALL_LISTOPS = Sequences(
    "listops", SHORT_SIZES["samples"], SHORT_SIZES["test_samples"], SHORT, val=SHORT_SIZES["val_samples"]
)
PATHFINDER = Sequences("pathfinder", 200_000, 20_000, val=20_000)
SMALL_IMAGE = Sequences("image", 0, 0, {"side": 8, "levels": 16}, published=True)


def _published(name: str) -> Sequences:
    return Sequences(name, 0, 0, published=True)


@dataclass(frozen=True)
class Task:
    """A preset, its data and how it is trained under a budget."""

    data: Sequences
    overrides: Overrides = ()
    seeds: int = 1
    extra: bool = False
    """Done only when named: its files must be fetched."""


TASKS: Mapping[str, Mapping[str, Task]] = {
    "smoke": {
        "listops-small": Task(
            Sequences("listops", 60, 20, SHORT, val=20),
            (
                *((f"model.{key}", TINY[key]) for key in ("channels", "blocks", "heads")),
                *(("data.batch_size", 4), ("steps", 2)),
            ),
        )
    },
    "cpu": {"listops-small": Task(SMALL_LISTOPS, seeds=3), "image-small": Task(SMALL_IMAGE, seeds=3, extra=True)},
    "paper": {
        "listops": Task(LISTOPS),
        "text": Task(_published("text")),
        "retrieval": Task(_published("retrieval")),
        "image": Task(_published("image")),
        "pathfinder": Task(PATHFINDER),
    },
}
"""Budget -> preset -> task. Small tasks are no setting of the paper, so no number of it stands beside them."""
OWN, DEV = "own", "dev-split"
AS_PUBLISHED = ("data.protocol", "dev-split-no-mask")
OVERWRITTEN = ("flare", "performer", "norm")
"""Attentions that the authors' script of Text trains with Linformer's rate, by an oversight."""


@dataclass(frozen=True)
class Variant:
    """What number 20 leaves to choose, the other way."""

    tasks: Sequence[str]
    attentions: Sequence[str]
    settings: Overrides
    coded: bool = False
    """Whether the authors' script has it so, and with it the paper's number."""


VARIANTS = {
    "elu-kernel": Variant(["listops", "retrieval", "image"], ["linear"], (("model.kernel", "elu"),)),
    "identity-kernel": Variant(["listops-small"], ["linear"], (("model.kernel", "identity"),)),
    "simple-features": Variant(["listops-small"], ["performer"], (("model.features", 256), ("model.kind", "simple"))),
    "script-rate": Variant(["text"], OVERWRITTEN, (("optim.lr", 5e-7), AS_PUBLISHED), coded=True),
}
"""Name -> what is otherwise. Done when chosen:  flare reproduce table2 --only listops-small/identity-kernel"""


def cells(budget: Budget) -> list[Cell]:
    found = []
    for name, task in TASKS[budget.name].items():
        for contender in SIX:
            usual = Classification(task.data, contender, task.overrides, task=name)
            as_published = usual.with_settings(AS_PUBLISHED)
            paper = PAPER[name][contender] / 100 if name in PAPER else None
            found.append(Cell((name, contender), usual, paper=paper, extra=task.extra, seeds=task.seeds))
            if not task.extra:
                found.append(Cell((name, contender, DEV), as_published, paper=paper, extra=True, seeds=task.seeds))
            for way, variant in VARIANTS.items():
                if name in variant.tasks and contender in variant.attentions:
                    job, known = usual.with_settings(*variant.settings), paper if variant.coded else None
                    found.append(Cell((name, contender, way), job, paper=known, extra=True, seeds=task.seeds))
    return found


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    blocks: list[Block] = [_table(found)]
    for name in dict.fromkeys(outcome.cell.parts[0] for outcome in found):
        wanted = [cell for cell in cells(budget) if cell.parts[0] == name and _protocol(cell) == OWN]
        here = [o for o in found if o.cell.parts[0] == name]
        verdict = _verdict(name, wanted, here)
        blocks += [verdict + _caveat(name, wanted) if verdict else "", _extent(name, here), _sizes(name, wanted)]
    averages = _averages(found)
    if averages.rows:
        blocks += ["Averages over the five tasks, of attentions that have numbers of all:", averages]
    if budget.name != "paper":
        tasks = ", ".join(TASKS[budget.name])
        blocks.append(f"Small tasks and models ({tasks}), not those of the paper; its numbers are under `paper`.")
    return [*blocks, origin(found)]


HEAD = ("task", "attention", "how", "parameters", "dev, %", "test, %", "seeds", "paper, %", "that is", DEPARTURES)


def _table(found: Sequence[Outcome]) -> Table:
    rows = []
    for outcome in found:
        cell = outcome.cell
        paper = "" if cell.paper is None else f"{100 * cell.paper:.2f}"
        measured = (outcome.parameters, *_accuracies(outcome), outcome.seeds, paper)
        rows.append((*cell.parts[:2], _protocol(cell), *measured, _reading(outcome), _departures(cell)))
    return Table(HEAD, rows, text=3, notes=2)


def _protocol(cell: Cell) -> str:
    """Or the name of the variant."""
    return OWN if len(cell.parts) == 2 else cell.parts[2]


def _judged_on_dev(cell: Cell) -> bool:
    return isinstance(cell.job, Classification) and AS_PUBLISHED in cell.job.overrides


def _accuracies(outcome: Outcome) -> tuple[str, str]:
    """On both splits, where both were judged; words on what did not end well stand with the one that counts."""
    judged = 0 if _judged_on_dev(outcome.cell) else 1
    words = [_accuracy(outcome, split) for split in ("val", "test")]
    words[judged] = outcome.error()
    return words[0], words[1]


def _accuracy(outcome: Outcome, split: str) -> str:
    of_seeds = [record.result.get("accuracies", {}) for record in outcome.records if record.outcome == "done"]
    values = [of[split] for of in of_seeds if split in of]
    spread = statistics.stdev(values) if len(values) > 1 else None
    return digits(statistics.mean(values), spread, outcome.unit) if values else ""


def _departures(cell: Cell) -> str:
    """In words; rows of small tasks have no setting of the paper to depart from."""
    job = cell.job
    assert isinstance(job, Classification)
    if job.task not in PAPER:
        settings = job.settings()
        own = f"; {of_its_own}" if (of_its_own := _own(settings["model"])) else ""
        return f"a small task and a small model ({_common(settings)}{own}), no setting of the paper"
    words = [] if job.on.published else ["samples of our generator"]
    if not _judged_on_dev(cell):
        words.append("judged on test with masks, not on dev without (#20)")
    if _protocol(cell) == "elu-kernel":
        words.append("kernel elu + 1, not the script's identity (#20)")
    if job.task == "text" and job.model in OVERWRITTEN and _protocol(cell) != "script-rate":
        words.append("the rate that the script states, 1e-5, not the 5e-7 it leaves (#20)")
    return "; ".join(words + decided(job))


COMMON = ("channels", "blocks", "heads")
KERNELS = {"elu": "elu + 1"}
"""As people write them."""


def _common(settings: Mapping[str, Any]) -> str:
    """`64 channels, 3 blocks, 8 heads, rate 0.002`."""
    return ", ".join([*(f"{settings['model'][key]} {key}" for key in COMMON), f"rate {settings['optim']['lr']:g}"])


def _own(model: Mapping[str, Any]) -> str:
    """What only one kind of attention has; empty where it has nothing of the sort."""
    if "latents" in model:
        return f"{model['latents']} latents"
    if "kernel" in model:
        return f"kernel {KERNELS.get(model['kernel'], model['kernel'])}"
    if "projected" in model:
        return f"{model['projected']} projected tokens"
    return f"{model['features']} {model['kind']} random features" if "features" in model else ""


def _sizes(name: str, wanted: Sequence[Cell]) -> str:
    """The models of a task and their rate, as the jobs have them."""
    of = {cell.parts[1]: cell.job.settings() for cell in wanted if isinstance(cell.job, Classification)}
    alike: dict[str, list[str]] = {}
    for contender, settings in of.items():
        alike.setdefault(_common(settings), []).append(contender)
    groups = "; ".join(f"{'all' if len(alike) == 1 else ', '.join(names)} {words}" for words, names in alike.items())
    own = "; ".join(f"{contender} {words}" for contender, of_it in of.items() if (words := _own(of_it["model"])))
    return f"*{name}: {groups}. Of their own: {own}.*"


def _caveat(name: str, wanted: Sequence[Cell]) -> str:
    """What an order on a small task does not show, beginning with a space; empty for the paper's tasks."""
    if name in PAPER:
        return ""
    jobs = [cell.job for cell in wanted if isinstance(cell.job, Classification)]
    rates = ", ".join(dict.fromkeys(f"{job.settings()['optim']['lr']:g}" for job in jobs))
    other = []
    for job in jobs:
        here = _own(job.settings()["model"])
        there = _own(settings_of(name.removesuffix("-small"), job.model, ())["model"])
        # Fewer latents or tokens belong to a smaller model; another kernel, other features are another attention.
        if here != there and job.model in ("linear", "performer"):
            other.append(f"{job.model} ({here}; there {there})")
    unlike = f" Not what the published runs have: {', '.join(other)}." if other else ""
    rate = f" One rate for all, {rates}, tried out with FLARE alone: another attention might do better with its own."
    return rate + unlike


def _averages(found: Sequence[Outcome]) -> Table:
    """A line for every attention and protocol with numbers of all five tasks."""
    rows = []
    for protocol in (OWN, DEV):
        for contender in SIX:
            name = (contender, protocol)
            of = {o.cell.parts[0]: o.mean for o in found if o.values() and (o.cell.parts[1], _protocol(o.cell)) == name}
            if set(of) == set(PAPER):
                paper = statistics.mean(accuracies[contender] for accuracies in PAPER.values())
                rows.append((*name, digits(statistics.mean(of.values()), None, Classification.unit), f"{paper:.2f}"))
    return Table(("attention", "protocol", "average, %", "paper, %"), rows, text=2)


def _reading(outcome: Outcome) -> str:
    """What the mean over seeds is beside what can be guessed: from the numbers, for records keep older words."""
    first = _first(outcome)
    if not first:
        return ""
    split = first["split"]
    guessed = {kind: of[split] for kind, of in first["guesses"].items()}
    return f"{split}: {reading(outcome.mean, first['samples'][split], guessed)}"


def _first(outcome: Outcome) -> Mapping[str, Any]:
    return next((record.result for record in outcome.records if record.outcome == "done"), {})


def _verdict(name: str, wanted: Sequence[Cell], found: Sequence[Outcome]) -> str:
    """Who is best by our protocol, and what can be guessed."""
    own = [outcome for outcome in found if _protocol(outcome.cell) == OWN]
    ranked = sorted((outcome for outcome in own if outcome.values()), key=lambda outcome: -outcome.mean)
    if not ranked:
        return ""
    order = ", ".join(f"{outcome.cell.parts[1]} {outcome.number}" for outcome in ranked)
    first = _first(ranked[0])
    guessed = "; ".join(
        f"{kind} {digits(of[first['split']], None, Classification.unit)}" for kind, of in first["guesses"].items()
    )
    words = f"**{name}**, {first['split']} split: {order}. What can be guessed: {guessed}."
    return words + flare_among(ranked, wanted, own, "best")


def _extent(name: str, found: Sequence[Outcome]) -> str:
    """Of what size a task is, and how long it was trained; empty where no record tells."""
    own = sorted(found, key=lambda outcome: _protocol(outcome.cell) != OWN)  # which tells both splits
    told = next((o for o in own if "train_samples" in _first(o)), None)
    if told is None:
        return ""
    first, job = _first(told), told.cell.job
    assert isinstance(job, Classification)
    options = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in job.on.options.items())
    judged = ", ".join(f"{count:,} of {split}" for split, count in first["samples"].items())
    batch = job.settings()["data"]["batch_size"]
    return (
        f"{name}{f' ({options})' if options else ''}: {first['train_samples']:,} samples to train, to judge {judged}; "
        f"{first['steps']:,} steps of {batch} samples."
    )


def part_of_the_paper(done: Sequence[Cell]) -> str:
    """`small versions of 1 of the paper's 5 tasks (listops), and beside of image`: tasks are more than cells."""
    usual, beside = (list(dict.fromkeys(c.parts[0] for c in done if c.extra == extra)) for extra in (False, True))
    beside = [name for name in beside if name not in usual]
    names = ", ".join(name.removesuffix("-small") for name in usual)
    small = any(name not in PAPER for name in usual)
    words = f"{'small versions of ' * small}{len(usual)} of the paper's {len(PAPER)} tasks{f' ({names})' * small}"
    return words + (f", and beside of {', '.join(n.removesuffix('-small') for n in beside)}" if beside else "")


ITEM = Item("table2", "Table 2: attentions × tasks of the Long Range Arena", cells, report, part_of_the_paper)
