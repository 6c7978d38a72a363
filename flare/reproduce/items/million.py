"""Blocks x latents at a million points: seconds a step, memory, and the error after a fixed budget of steps.

The data are Darcy flows on a grid of that many points, unless a dataset is named. Every run has a process and a folder
of its own, and every row is kept in `million.json`: a stopped study goes on when called again, and so does one of which
only that file is there.

A CPU has no time for many steps of a million points. Steps of fewer, drawn anew each time, teach more for the same
price: with `subsample` a run is trained on these and judged on all; time and memory are those of one step on all.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isqrt
from pathlib import Path
from typing import Any

from flare.data.dataset import Dataset
from flare.data.generation.generate import generate
from flare.measure import alone
from flare.report.page import png
from flare.reproduce.analyses import Experiment
from flare.reproduce.budgets import Budget
from flare.reproduce.ledger import Ledger
from flare.reproduce.study import DEPARTURES, READ_OFF, Block, Cell, Item, Picture, another_machine, origin, outcomes
from flare.reproduce.tables import Table
from flare.reproduce.verdicts import OF_ONE_SEED
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.run import start_or_resume
from flare.train.run_folder import RunFolder
from flare.trial import Setting, measure
from flare.utils.environment import gigabytes
from flare.utils.errors import ConfigError
from flare.utils.files import write_json
from flare.utils.text import duration

POINTS = 1_000_000
BLOCKS, LATENTS = (1, 2, 4, 8), (128, 512, 1024, 2048)
TRAIN, TEST = 8, 2
"""Samples that are made."""
STEPS = 64
BEGIN, END = "<!-- million table -->", "<!-- end of million -->"
USUAL = {"precision": "32", "constants": False, "fingerprint": None}
"""Of records that do not say."""
Row = dict[str, Any]


def run(
    out: Path,
    *,
    data: Path | None = None,
    points: int = POINTS,
    blocks: Sequence[int] = BLOCKS,
    latents: Sequence[int] = LATENTS,
    steps: int = STEPS,
    subsample: int | None = None,
    precision: str = "32",
    constants: bool = False,
    limit_seconds: float = 3600.0,
    workers: int = 1,
    tell: Callable[[str], None] = print,
) -> str:
    """Train what is not trained yet, and write `million.json`, `million.md` and `million.png` into `out`.

    Args:
        subsample: points of a training step; None takes all.
        precision: of training, as `flare train --precision`.
        constants: normalise by the published constants of DrivAerML, not by what the training samples tell.
        limit_seconds: a run that will take longer, judged by smaller ones, is left out and said to be.
    """
    about = {**_of_data(data, points), "steps": steps, "subsample": subsample}
    about |= {"precision": precision, "constants": constants}
    record = _begun(out / "million.json", about) | {"left_out": [], "limit_seconds": limit_seconds}
    record["samples"] = _sizes_of_splits(data)
    rows: list[Row] = record["rows"]
    done = {(row["blocks"], row["latents"]) for row in rows}
    missing = [(b, m) for b in sorted(blocks) for m in sorted(latents) if (b, m) not in done]
    if missing:
        dataset = Dataset(data) if data else _darcy(out / "data", points, workers)
    for b, m in missing:
        expected = _seconds_of(b, m, rows) * steps * min(1.0, (subsample or math.inf) / about["points"])
        if expected > limit_seconds:
            tell(f"{b} blocks, {m} latents: left out, it would take {expected:.0f} s of {limit_seconds:g}")
            record["left_out"].append({"blocks": b, "latents": m, "seconds": expected})
            continue
        tell(f"{b} blocks, {m} latents")
        folder = out / "runs" / f"blocks-{b}-latents-{m}"
        config = _config(dataset, b, m, about)
        result = alone(start_or_resume, config, folder, {"data.path"})  # both may have been moved
        cost = _cost_of_training(result, folder) if subsample is None else _cost_of_a_step(dataset, config, folder)
        made = {"data_fingerprint": dataset.fingerprint, "training_seconds": result["seconds"]}
        made["environment"] = result["environment"]
        rows.append({"blocks": b, "latents": m, **cost, **_errors(result), **made})
        rows.sort(key=lambda row: (row["blocks"], row["latents"]))
        record["environment"] = result["environment"]
        write_json(out / "million.json", record)
    write_json(out / "million.json", record)  # also with what was left out last
    from flare.report.million import million_figure

    million_figure(record).savefig(out / "million.png", dpi=150)
    text = table(record)
    (out / "million.md").write_text(text, encoding="utf-8")
    return text


def _of_data(data: Path | None, points: int) -> dict[str, Any]:
    """Name and points; known also of flows that are not made yet, which need no fingerprint."""
    if data is None:
        return {"data": "darcy", "points": _side(points) ** 2, "fingerprint": None}
    dataset = Dataset(data)
    return {
        "data": dataset.schema.name,
        "points": int(dataset.sizes.max()),
        "fingerprint": dataset.fingerprint,
    }


def _sizes_of_splits(data: Path | None) -> list[int]:
    """Samples to train and to test."""
    if data is None:
        return [TRAIN, TEST]
    dataset = Dataset(data)
    return [len(dataset.split(name)) for name in ("train", "test")]


def _begun(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """What there is of a study of the same settings, those with other blocks and latents included."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    alike = {**USUAL, **kept}.items() >= about.items()
    return {**about, **({"rows": kept["rows"], "environment": kept["environment"]} if alike else {"rows": []})}


def _side(points: int) -> int:
    return isqrt(points - 1) + 1


def _darcy(path: Path, points: int, workers: int) -> Dataset:
    from flare.physics.darcy import Darcy

    generator = Darcy(resolution=_side(points), stride=1, grid="node")
    return generate(generator, path, samples=TRAIN + TEST, test_samples=TEST, seed=0, workers=workers)


def _config(dataset: Dataset, blocks: int, latents: int, about: Mapping[str, Any]) -> TrainConfig:
    """The preset's recipe with this model, for so many steps of one sample."""
    train, steps = len(dataset.split("train")), about["steps"]
    if steps % train:
        raise ConfigError(f"steps={steps} is no multiple of the {train} training samples of {dataset.path}")
    overrides = [
        ("data.path", str(dataset.path)),
        *([] if about["constants"] else [("data.normalise", {})]),
        ("data.subsample", about["subsample"]),
        ("model.blocks", blocks),
        ("model.latents", latents),
        ("precision", about["precision"]),
        ("epochs", steps // train),
        ("evaluate_every", steps // train),
        ("log_every", 1),
    ]
    return build_config(merged(read_yaml(preset_path("drivaer-1m")), overrides), "the study at a million points")


def _cost_of_training(result: Mapping[str, Any], folder: Path) -> Row:
    steps = [1 / r["samples_per_second"] for r in RunFolder(folder).records() if r["kind"] == "train"]
    return {"seconds": statistics.median(steps), "peak_mb": result["peak_memory_mb"]}


def _cost_of_a_step(dataset: Dataset, config: TrainConfig, folder: Path) -> Row:
    """On all points, measured once and kept beside the run."""
    path, schema = folder / "step.json", dataset.schema
    if not path.exists():
        points = int(dataset.sizes.max())
        need = measure(Setting(model=config.model, in_dim=schema.in_dim, out_dim=schema.out_dim, points=points))
        write_json(path, {"seconds": need.seconds, "peak_mb": need.memory_mb})
    kept: Row = json.loads(path.read_text(encoding="utf-8"))
    return kept


def _errors(result: Mapping[str, Any]) -> Row:
    return {"parameters": result["parameters"], "rel_l2": result["rel_l2"], "mean_field": result["rel_l2_mean_field"]}


def _seconds_of(blocks: int, latents: int, rows: Sequence[Row]) -> float:
    """Of a step, at most, from a model with no more blocks nor latents; time grows no faster than either."""
    known = [row for row in rows if row["blocks"] <= blocks and row["latents"] <= latents]
    return min((row["seconds"] * blocks / row["blocks"] * latents / row["latents"] for row in known), default=0.0)


def million_table(record: Mapping[str, Any]) -> Table:
    """A line a model."""
    head = ["blocks", "latents", "parameters", "seconds a step", "GB", "rel-L2", "mean field"]
    rows = [
        [
            *(f"{row['blocks']}", f"{row['latents']}", f"{row['parameters']:,}"),
            *(f"{row['seconds']:.2f}", f"{gigabytes(row['peak_mb']):.2f}"),
            *(f"{row['rel_l2']:.4f}", f"{row['mean_field']:.4f}"),
        ]
        for row in record["rows"]
    ]
    return Table(head, rows, text=0)


def table(record: Mapping[str, Any]) -> str:
    """Markdown, with how it was made."""
    facts = record["environment"]
    machine = f"{facts['processor']}, torch {facts['torch']}, commit {facts['commit']}"
    left_out = [_left_out(record), ""] if record["left_out"] else []
    return "\n".join([million_table(record).markdown(), *left_out, f"*{_how(record)} {machine}.*"]) + "\n"


def _samples(record: Mapping[str, Any]) -> tuple[int, int]:
    """To train and to test; the flows of older records, which do not say, are those that were always made."""
    if "samples" in record:
        train, test = record["samples"]
        return train, test
    return (TRAIN, TEST) if record["data"] == "darcy" else (0, 0)


def _left_out(record: Mapping[str, Any]) -> str:
    left = [f"{row['blocks']} × {row['latents']} ({row['seconds']:,.0f} s)" for row in record["left_out"]]
    why = f"training would take more than {record['limit_seconds']:g} s"
    return f"Left out, blocks × latents, since {why}: {', '.join(left)}." if left else ""


def _how(record: Mapping[str, Any]) -> str:
    drawn = f" and {record['subsample']:,} of its points" if record["subsample"] else ""
    precision = {**USUAL, **record}["precision"]
    train, test = _samples(record)
    how = f"{record['steps']:,} steps of one sample each{drawn}, seed 0, judged on all points"
    if train:
        times = record["steps"] / train
        one = f"{train:,} training samples, {'once' if times == 1 else f'{times:g} times'} each"
        how = f"{one}: {how} of {test:,} test sample{'s' * (test > 1)}"
    how += "" if precision == "32" else f", precision {precision}"
    cost = "time and memory of a step on all, memory of the whole process"
    return f"{record['data']}, {record['points']:,} points; {how}; {cost}."


CPU: dict[str, Any] = {"latents": (128, 512, 2048), "steps": 160, "subsample": 20_000}
SMOKE: dict[str, Any] = {"points": 144, "blocks": (1, 2), "latents": (4,), "steps": 8}
CARS_OF_THE_PAPER = 387, 97
"""To train and to test."""
STEPS_OF_AN_EPOCH = CARS_OF_THE_PAPER[0]
STEPS_OF_THE_PAPER = 500 * STEPS_OF_AN_EPOCH
SECONDS = {"smoke": 30.0, "cpu": 15_000.0, "paper": STEPS_OF_THE_PAPER * 600.0}
"""What it takes, about."""
PAPER = {
    128: (212, 14.6, 8.1, 6.5),
    512: (39.8, 14.2, 8.5, 6.0),
    1024: (44.0, 13.9, 9.7, 8.1),
    2048: (39.5, 15.0, 7.5, 6.1),
}
"""Latents -> errors in thousandths of 1, 2, 4 and 8 blocks on DrivAerML, read off the paper's figure."""
PAPERS_EPOCH = {
    128: (34, 55, 100, 186),
    512: (36, 63, 113, 216),
    1024: (41, 71, 131, 251),
    2048: (52, 95, 177, 343),
}
"""Latents -> seconds of an epoch of 387 steps on one H100, read off; PAPERS_GB the memory there, for any latents."""
PAPERS_GB = (5.9, 9.8, 17.8, 33.7)
PAPERS_TIME = "paper, H100: seconds a step (read off the figure)"
PAPERS_MEMORY = "paper, H100: GB (read off the figure)"


def cells(budget: Budget) -> list[Cell]:
    """The paper's 500 epochs of 387 cars; for less, flows through a million points, which are quickly made."""
    if budget.name == "paper":
        published = budget.scales["cars"].data.published
        options = {"size": "1m"} if published else {"points": POINTS}
        cars = replace(budget.scales["cars"].data, options=options)
        long = {"steps": 500 * (cars.samples - cars.test), "limit_seconds": 1e9, "precision": "16"}
        # The published constants are of the published cars, and wrong for others.
        long |= {"constants": True} if published else {}
        return [Cell(("blocks-latents",), Experiment("million", long, SECONDS["paper"], cars))]
    short = {"smoke": SMOKE, "cpu": CPU}[budget.name]
    return [Cell(("blocks-latents",), Experiment("million", short, SECONDS[budget.name]))]


def report(ledger: Ledger, budget: Budget) -> list[Block]:
    found = outcomes(ledger, cells(budget))
    (made,) = found[0].records
    if made.outcome != "done":
        return [f"Failed: {made.failure}", origin(found)]
    from flare.report.million import million_figure

    record = made.result
    picture = Picture("blocks-latents", "Error, time and memory over blocks, by latents.", png(million_figure(record)))
    return [
        _with_paper(record, made.made),
        f"*{' '.join(filter(None, (_how(record), _made_of(record), _left_out(record))))}*",
        _verdict(record),
        picture,
        origin(found),
    ]


def _with_paper(record: Mapping[str, Any], made: Mapping[str, Any]) -> Table:
    """How the setting differs from the paper's; its time and memory where as many points were taken, which do not
    depend on what these are; and its errors where only the machine differs."""
    plain, departs = million_table(record), _departures(record)
    head, rows = list(plain.head), [list(row) for row in plain.rows]
    if record["points"] == POINTS:
        head += [PAPERS_TIME, PAPERS_MEMORY]
        for row, about in zip(rows, record["rows"], strict=True):
            row += _papers_cost(about["blocks"], about["latents"])
    if not departs:
        head.append(READ_OFF)
        for row, about in zip(rows, record["rows"], strict=True):
            row.append(f"{1e-3 * PAPER[about['latents']][BLOCKS.index(about['blocks'])]:.4f}")
    words = "; ".join([*departs, *another_machine(made)])
    return Table([*head, DEPARTURES], [[*row, words] for row in rows], text=0, notes=1)


def _papers_cost(blocks: int, latents: int) -> tuple[str, str]:
    """Seconds and GB; empty where the paper has no such model."""
    if latents not in PAPERS_EPOCH or blocks not in BLOCKS:
        return "", ""
    epoch = PAPERS_EPOCH[latents][BLOCKS.index(blocks)]
    return f"{epoch / STEPS_OF_AN_EPOCH:.2f} ({epoch} an epoch)", f"{PAPERS_GB[BLOCKS.index(blocks)]}"


def _made_of(record: Mapping[str, Any]) -> str:
    """Of which data, and for how long; older rows do not say."""
    kept = [row for row in record["rows"] if "data_fingerprint" in row]
    if not kept:
        return ""
    data = ", ".join(sorted({row["data_fingerprint"] for row in kept}))
    time = duration(sum(row["training_seconds"] for row in kept))
    return f"Data {data}; {len(kept)} of {len(record['rows'])} rows trained in {time}."


def _departures(record: Mapping[str, Any]) -> list[str]:
    """In which settings a record differs from the paper's study."""
    how = {**USUAL, **record}
    words = []
    if record["data"] != "drivaerml":
        words.append(f"{record['data']}, not DrivAerML")
    samples = _samples(record)
    if any(samples) and samples != CARS_OF_THE_PAPER:
        words.append("{}+{} of {}+{} samples".format(*samples, *CARS_OF_THE_PAPER))
    if record["steps"] != STEPS_OF_THE_PAPER:
        words.append(f"{record['steps']:,} steps with a schedule of their own, not {STEPS_OF_THE_PAPER:,}")
    if record["subsample"]:
        words.append(f"{record['subsample']:,} points a step, not {record['points']:,}")
    if how["precision"] != "16":
        words.append(f"precision {how['precision']}, not 16")
    if not how["constants"]:
        words.append("normalised by the training samples")
    return words


def _verdict(record: Mapping[str, Any]) -> str:
    """Whether the error falls with blocks, as in the paper, for each number of latents; and who has learnt nothing."""
    words = []
    for m in sorted({row["latents"] for row in record["rows"]}):
        rows = sorted((row for row in record["rows"] if row["latents"] == m), key=lambda row: row["blocks"])
        if len(rows) > 1:
            rising = [_step(a, b) for a, b in pairwise(rows) if b["rel_l2"] >= a["rel_l2"]]
            verdict = f"does **not** fall at every step to more blocks ({'; '.join(rising)})"
            steps = ", ".join(str(row["blocks"]) for row in rows)
            falls = "falls with every step to more blocks"
            words.append(f"{m} latents, {steps} blocks: the error {verdict if rising else falls}")
    poor = [f"{row['blocks']} × {row['latents']}" for row in record["rows"] if row["rel_l2"] >= row["mean_field"]]
    none = f" No better than the mean field, blocks × latents: {', '.join(poor)}." if poor else ""
    other = "" if record["data"] == "drivaerml" else " Not the paper's cars, so none of its errors stands beside."
    verdicts = f"{'; '.join(words)}.{OF_ONE_SEED}all." if words else ""
    return verdicts + _missing(record) + none + other


def _step(a: Row, b: Row) -> str:
    return f"{a['blocks']} to {b['blocks']} blocks, {a['rel_l2']:.4f} to {b['rel_l2']:.4f}"


def _missing(record: Mapping[str, Any]) -> str:
    """What of the paper's grid has no row, beginning with a space; none of which was left out for its time."""
    told = [*record["rows"], *record["left_out"]]
    latents = [f"{m}" for m in LATENTS if all(row["latents"] != m for row in told)]
    blocks = [f"{b}" for b in BLOCKS if all(row["blocks"] != b for row in told)]
    absent = [f"{axis} {', '.join(of)}" for axis, of in (("M =", latents), ("B =", blocks)) if of]
    return f" Of the paper's grid of blocks B and latents M not done here: {'; '.join(absent)}." if absent else ""


ITEM = Item("million", "Blocks × latents at a million points", cells, report)
