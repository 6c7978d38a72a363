"""Table 2: six attentions on the tasks of the Long Range Arena, beside trivial baselines.

Accuracies are those of the test split with masks. Cells `dev-split` have the protocol that the published table most
probably has: validation split, padding treated as tokens. This protocol, the kernel of linear attention, the features
of Performer and the learning rate of Text are number 20 of docs/paper/discrepancies.md, and each choice is a cell.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from flare.reproduce.budgets import TINY, Budget
from flare.reproduce.jobs import Overrides
from flare.reproduce.sequences import ATTENTIONS, PAPER, Classification, Sequences
from flare.reproduce.sequences import VARIANTS as OF_FLARE
from flare.reproduce.study import Block, Cell, Item, Outcome, mean_spread
from flare.reproduce.tables import Table
from flare.sequence.listops import ListOps

SHORT = asdict(ListOps(min_length=10, max_length=80, max_depth=3))
LISTOPS = Sequences("listops", 100_000, 2_000, val=2_000)
SMALL_LISTOPS = Sequences("listops", 54_000, 2_000, SHORT, val=2_000)
PATHFINDER = Sequences("pathfinder", 200_000, 20_000, val=20_000)
SMALL_IMAGE = Sequences("image", 0, 0, {"side": 8, "levels": 16}, published=True)


def _published(name: str) -> Sequences:
    return Sequences(name, 0, 0, published=True)


@dataclass(frozen=True)
class SequenceTask:
    """A preset with its data and training settings in a budget."""

    data: Sequences
    overrides: Overrides = ()
    seeds: int = 1
    extra: bool = False
    """True for a task that runs only when selected, because its files must be downloaded."""


TASKS: Mapping[str, Mapping[str, SequenceTask]] = {
    "smoke": {
        "listops-small": SequenceTask(
            Sequences("listops", 60, 20, SHORT, val=20),
            (
                *((f"model.{key}", TINY[key]) for key in ("channels", "blocks", "heads")),
                *(("data.batch_size", 4), ("steps", 2)),
            ),
        )
    },
    "cpu": {
        "listops-small": SequenceTask(SMALL_LISTOPS, seeds=3),
        "image-small": SequenceTask(SMALL_IMAGE, seeds=3, extra=True),
    },
    "paper": {
        "listops": SequenceTask(LISTOPS),
        "text": SequenceTask(_published("text")),
        "retrieval": SequenceTask(_published("retrieval")),
        "image": SequenceTask(_published("image")),
        "pathfinder": SequenceTask(PATHFINDER),
    },
}
"""Budget -> preset -> task. The small tasks are not in the paper and have none of its numbers."""
OWN, DEV = "own", "dev-split"
AS_PUBLISHED = ("data.protocol", "dev-split-no-mask")
SCRIPT_RATE = ("optim.lr", 5e-7)
"""Learning rate of Linformer, which the authors' script of Text also gives to the attentions in `OVERWRITTEN`."""
OVERWRITTEN = ("flare", "performer", "norm")


@dataclass(frozen=True)
class AttentionVariant:
    """A choice of number 20 of docs/paper/discrepancies.md, made the other way."""

    tasks: Sequence[str]
    attentions: Sequence[str]
    settings: Overrides
    coded: bool = False
    """True if the authors' script has these settings, and the paper's number with them."""


VARIANTS = {
    "elu-kernel": AttentionVariant(["listops", "retrieval", "image"], ["linear"], (("model.kernel", "elu"),)),
    "identity-kernel": AttentionVariant(["listops-small"], ["linear"], (("model.kernel", "identity"),)),
    "simple-features": AttentionVariant(
        ["listops-small"], ["performer"], (("model.features", 256), ("model.kind", "simple"))
    ),
    "script-rate": AttentionVariant(["text"], OVERWRITTEN, (SCRIPT_RATE, AS_PUBLISHED), coded=True),
}
"""Part of a cell's name -> variant. They run only when selected: `--only listops-small/identity-kernel`."""


def cells(budget: Budget) -> list[Cell]:
    found = []
    for name, task in TASKS[budget.name].items():
        for attention in OF_FLARE if budget.name == "cpu" else ATTENTIONS:
            usual = Classification(task.data, attention, task.overrides, task=name)
            paper = PAPER[name][attention] / 100 if name in PAPER else None
            ways: list[tuple[tuple[str, ...], Overrides, bool]] = [((), (), True)]
            if not task.extra and attention in ATTENTIONS:
                ways.append(((DEV,), (AS_PUBLISHED,), True))
            for way, variant in VARIANTS.items():
                if name in variant.tasks and attention in variant.attentions:
                    ways.append(((way,), variant.settings, variant.coded))
            for way_parts, settings, has_number in ways:
                found.append(
                    Cell(
                        (name, attention, *way_parts),
                        usual.with_settings(*settings) if settings else usual,
                        exact=_script(usual) if name in PAPER else None,
                        paper=paper if has_number else None,
                        extra=task.extra or bool(way_parts) or attention not in ATTENTIONS,
                        seeds=task.seeds,
                        discrepancies=dict.fromkeys(("data.protocol", "optim.lr", "model.kernel"), 20),
                    )
                )
    return found


def _script(usual: Classification) -> Classification:
    """Return a training as the authors' script has it."""
    rate = [SCRIPT_RATE] if usual.task == "text" and usual.model in OVERWRITTEN else []
    script = usual.with_settings(AS_PUBLISHED, *rate)
    assert isinstance(script, Classification)
    return script


def report(found: Sequence[Outcome], budget: Budget) -> list[Block]:
    blocks: list[Block] = ["Accuracies:", _table(found), "Tasks:", _tasks(found), "Models:", _models(found)]
    averages = _averages(found)
    return blocks + (["Averages over the five tasks:", averages] if averages.rows else [])


def _way(cell: Cell) -> str:
    """Return the protocol or variant of a cell."""
    return OWN if len(cell.parts) == 2 else cell.parts[2]


def _table(found: Sequence[Outcome]) -> Table:
    accuracies = ("dev, %", "test, %", "best trivial baseline, %")
    head = ("task", "attention", "how", "parameters", *accuracies, "seeds", "paper, %")
    rows = []
    for outcome in found:
        cell, first = outcome.cell, outcome.result
        guesses = [of[first["split"]] for of in first.get("guesses", {}).values()]
        baseline = f"{100 * max(guesses):.1f}" if guesses else ""
        paper = "" if cell.paper is None else f"{100 * cell.paper:.2f}"
        measured = (outcome.parameters, *_accuracies(outcome), baseline, outcome.seeds, paper)
        rows.append((*cell.parts[:2], _way(cell), *measured))
    return Table(head, rows, text=3)


def _accuracies(outcome: Outcome) -> tuple[str, str]:
    """Return the accuracies of both splits. The split of the protocol also shows failed and unfinished seeds."""
    job = outcome.cell.job
    evaluated = 0 if isinstance(job, Classification) and AS_PUBLISHED in job.overrides else 1
    of_seeds = [record.result.get("accuracies", {}) for record in outcome.records if record.outcome == "done"]
    texts = [mean_spread([of[split] for of in of_seeds if split in of], outcome.unit) for split in ("val", "test")]
    texts[evaluated] = outcome.error()
    return texts[0], texts[1]


def _tasks(found: Sequence[Outcome]) -> Table:
    """Build a table of samples and length of training of each task."""
    rows = []
    for name in dict.fromkeys(outcome.cell.parts[0] for outcome in found):
        # The own protocol has both splits.
        here = sorted((o for o in found if o.cell.parts[0] == name), key=lambda o: _way(o.cell) != OWN)
        first = next((o.result for o in here if "train_samples" in o.result), {})
        job = here[0].cell.job
        assert isinstance(job, Classification)
        options = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in job.on.options.items())
        counts = [first.get("train_samples"), *(first.get("samples", {}).get(split) for split in ("val", "test"))]
        texts = ("" if count is None else f"{count:,}" for count in (*counts, first.get("steps")))
        rows.append((name, options, *texts, f"{job.settings()['data']['batch_size']}"))
    return Table(("task", "options", "train", "dev", "test", "steps", "batch"), rows, text=2)


MODEL_SETTINGS = ("channels", "blocks", "heads", "latents", "kernel", "projected", "features", "kind")


def _models(found: Sequence[Outcome]) -> Table:
    """Build a table of the sizes of each attention and its learning rate."""
    rows = []
    for outcome in found:
        job = outcome.cell.job
        assert isinstance(job, Classification)
        settings = job.settings()
        sizes = (str(settings["model"].get(key, "")) for key in MODEL_SETTINGS)
        rows.append((*outcome.cell.parts[:2], _way(outcome.cell), f"{settings['optim']['lr']:g}", *sizes))
    return Table(("task", "attention", "how", "learning rate", *MODEL_SETTINGS), rows, text=3)


def _averages(found: Sequence[Outcome]) -> Table:
    """Build a table of the attentions that have numbers of all five tasks."""
    rows = []
    for protocol in (OWN, DEV):
        for attention in ATTENTIONS:
            name = (attention, protocol)
            of = {o.cell.parts[0]: o.mean for o in found if o.values() and (o.cell.parts[1], _way(o.cell)) == name}
            if set(of) == set(PAPER):
                paper = statistics.mean(accuracies[attention] for accuracies in PAPER.values())
                rows.append((*name, mean_spread([statistics.mean(of.values())], Classification.unit), f"{paper:.2f}"))
    return Table(("attention", "protocol", "average, %", "paper, %"), rows, text=2)


ITEM = Item("table2", "Table 2: attentions × tasks of the Long Range Arena", cells, report)
