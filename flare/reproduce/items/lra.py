"""Attentions side by side on tasks of the Long Range Arena: equal budget, several seeds, beside what can be guessed.

Every run has a folder of its own, `<out>/<task>/<contender>/seed-<n>`. What is finished is not trained again, so a
comparison that was stopped goes on with the same command. A contender that diverges is said to, and the others go on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from flare.reproduce.runs import train_all
from flare.sequence.guesses import reading
from flare.sequence.listops import ListOps
from flare.sequence.making import HOW_TO_MAKE, SHORT_LISTOPS, SHORT_SIZES
from flare.sequence.store import generate_sequences
from flare.train.config import TrainConfig
from flare.train.presets import build_config, merged, preset_path, read_yaml
from flare.train.recipes import with_attention
from flare.train.tasks import make_task
from flare.utils.errors import ConfigError, DataError
from flare.utils.files import replacing, write_json
from flare.utils.text import duration

CONTENDERS: dict[str, dict[str, Any]] = {
    **{name: {"attention": name} for name in ("flare", "vanilla", "linear", "linformer", "norm", "performer")},
    "flare-rotary": {"attention": "flare", "position": "rotary"},
    "flare-rotary-latents": {"attention": "flare", "position": "rotary", "rotate_latents": True},
    "flare-qk-norm": {"attention": "flare", "qk_norm": True},
}
"""The six attentions, and FLARE with what the paper's runs do not have: what differs in the model's settings."""
SIX = list(CONTENDERS)[:6]
IN_THE_PAPER = ("vanilla", "linear", "linformer", "norm", "performer", "flare")
PAPER = {
    task: dict(zip(IN_THE_PAPER, accuracies, strict=True))
    for task, accuracies in {
        "listops": (36.70, 17.15, 36.70, 17.10, 35.90, 36.15),
        "text": (64.93, 66.00, 53.00, 63.08, 64.21, 64.00),
        "retrieval": (77.18, 71.84, 64.72, 76.07, 68.42, 77.30),
        "image": (38.02, 9.86, 41.88, 36.94, 35.36, 40.96),
        "pathfinder": (70.52, 75.00, 70.09, 70.15, 53.83, 71.91),
    }.items()
}
"""Accuracies of its table, in per cent: one run each, on the dev split, without a mask."""
BEGIN, END = "<!-- lra table -->", "<!-- end of lra -->"


@dataclass(frozen=True)
class Row:
    """What the seeds of one contender gave."""

    contender: str
    parameters: int
    accuracy: dict[str, list[float]]
    """Split -> one for each seed that came to its end; the last split is what counts."""
    seconds: list[float]
    diverged: int
    """Seeds that did not."""

    @property
    def mean(self) -> float:
        return statistics.mean(list(self.accuracy.values())[-1]) if self.accuracy else 0.0


def run(
    out: Path,
    *,
    tasks: Iterable[str],
    contenders: Sequence[str] = SIX,
    seeds: int = 3,
    data: Path = Path("data"),
    overrides: Sequence[tuple[str, Any]] = (),
    samples: int | None = None,
    workers: int = 1,
    tell: Callable[[str], None] = print,
) -> str:
    """Train what is not trained yet, and judge.

    Args:
        tasks: presets, such as `listops-small`; the data of each are in a folder of that name below `data`. Short
            expressions are made where they are missing.
        overrides: settings in place of the presets', such as ("steps", 100).
        samples: of the short expressions to make; None for as many as the preset is for.

    Returns:
        A table a task, Markdown; also in `<out>/<task>/table.json` and `table.md`.
    """
    wanted = {}
    for task in tasks:
        folder = data / task
        if task == "listops-small":  # at once where it is there, and refused where it is another
            try:
                generate_sequences(ListOps(**SHORT_LISTOPS), folder, **_shares(samples), seed=0, workers=workers)
            except DataError as error:
                raise DataError(f"{error} (--data says in which folder the tasks' data are)") from None
        wanted[task] = configurations(task, contenders, seeds, folder, overrides)
    return "\n".join(_compare(task, of_task, out / task, tell) for task, of_task in wanted.items())


def _shares(samples: int | None) -> dict[str, Any]:
    usual = SHORT_SIZES["samples"]
    return {name: count * (samples or usual) // usual for name, count in SHORT_SIZES.items()}


def settings_of(task: str, contender: str, overrides: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The settings of a contender on the preset of a task."""
    return merged(_preset(task, contender), overrides)


@cache
def _preset(task: str, contender: str) -> dict[str, Any]:
    """Not to be changed. Read once: a sweep asks for it often."""
    name, sizes = f"lra/{task}", CONTENDERS[contender]
    own = with_attention(read_yaml(preset_path(name)), name, sizes["attention"])
    return merged(own, [(f"model.{key}", value) for key, value in sizes.items()])


def configurations(
    task: str, contenders: Sequence[str], seeds: int, data: Path, overrides: Sequence[tuple[str, Any]]
) -> dict[tuple[str, int], TrainConfig]:
    """(contender, seed) -> settings. Wrong ones show themselves before anything is trained."""
    name = f"lra/{task}"
    if not data.exists():
        raise DataError(f"{data} does not exist; make it with:  {HOW_TO_MAKE[task]} --out {data}")
    found: dict[tuple[str, int], TrainConfig] = {}
    for contender in contenders:
        settings = settings_of(task, contender, [("data.path", str(data)), *overrides])
        configs = [build_config(settings | {"seed": seed}, f"{contender} on {name}") for seed in range(seeds)]
        try:
            make_task(configs[0]).surrogate(configs[0].model)
        except ConfigError as error:
            raise ConfigError(f"{contender} on {name}: {error}") from None
        found |= {(contender, seed): config for seed, config in enumerate(configs)}
    return found


def _compare(task: str, wanted: Mapping[tuple[str, int], TrainConfig], out: Path, tell: Callable[[str], None]) -> str:
    results = train_all(wanted, out, lambda words: tell(f"{task} {words}"), _words)
    done = [result for of_contender in results.values() for result in of_contender if result]
    if not done:
        return f"No run of {task} came to its end.\n"
    rows = sorted((_row(contender, of) for contender, of in results.items()), key=lambda row: -row.mean)
    record = _about(task, done) | {"rows": [asdict(row) for row in rows]}
    write_json(out / "table.json", record)
    text = table(rows, record)
    with replacing(out / "table.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text


def _words(result: Mapping[str, Any]) -> str:
    accuracies = ", ".join(f"{split} {100 * share:.1f} %" for split, share in result["accuracy"].items())
    return f"{accuracies}, in {duration(result['seconds'])}: on {result['split']} {result['reading']}"


def _row(contender: str, results: Sequence[Mapping[str, Any] | None]) -> Row:
    done = [result for result in results if result]
    splits = done[0]["accuracy"] if done else {}
    return Row(
        contender=contender,
        parameters=done[0]["parameters"] if done else 0,
        accuracy={split: [result["accuracy"][split] for result in done] for split in splits},
        seconds=[result["seconds"] for result in done],
        diverged=len(results) - len(done),
    )


def _about(task: str, done: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    same = ("dataset", "provenance", "departures", "train_samples", "samples", "steps", "guesses", "protocol")
    commits = sorted({result["environment"]["commit"] for result in done})
    facts = {key: done[0][key] for key in (*same, "environment")}
    return {"task": task, **facts, "commits": commits}


def table(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """Markdown: contenders, best first, then what can be guessed, then how it was made."""
    splits = list(next(row for row in rows if row.accuracy).accuracy)
    paper = {} if about["departures"] else PAPER.get(about["task"], {})
    theirs = "the paper's, %" if about["protocol"] == "dev-split-no-mask" else "the paper's (dev split, no mask), %"
    judged = splits[-1]
    head = ["attention", "parameters", *(f"{split}, %" for split in splits), "training", f"that is, on {judged}"]
    head += [theirs] if paper else []
    lines = [f"| {' | '.join(head)} |", f"|---|---:{'|---:' * len(splits)}|---:|---|{'---:|' if paper else ''}"]
    guessed = {kind: of[judged] for kind, of in about["guesses"].items()}
    for row in rows:
        cells = [row.contender, f"{row.parameters:,}"]
        if row.accuracy:
            cells += [_spread(row.accuracy[split]) for split in splits]
            cells += [duration(statistics.mean(row.seconds)), reading(row.mean, about["samples"][judged], guessed)]
        else:
            cells += ["", "", *[""] * (len(splits) - 1), "diverged"]
        if row.diverged and row.accuracy:
            cells[-1] += f"; {row.diverged} of {row.diverged + len(row.seconds)} seeds diverged"
        cells += [f"{paper[row.contender]:.2f}" if row.contender in paper else ""] if paper else []
        lines.append(f"| {' | '.join(cells)} |")
    for kind, of in about["guesses"].items():
        blank = [""] if paper else []
        lines.append(f"| | {' | '.join(['', *(f'{100 * of[split]:.1f}' for split in splits), '', kind, *blank])} |")
    return "\n".join([*lines, "", _origin(rows, about)]) + "\n"


def _spread(accuracies: Sequence[float]) -> str:
    spread = f" ± {100 * statistics.stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{100 * statistics.mean(accuracies):.1f}{spread}"


def _origin(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    facts = about["environment"]
    seeds = max(len(row.seconds) + row.diverged for row in rows)
    judged = ", ".join(f"{count:,} of {split}" for split, count in about["samples"].items())
    form = ", ".join(f"{key} {value}" for key, value in about["departures"].items())
    return (
        f"{about['task']}: {about['dataset']}, {about['provenance']}{f' with {form}' if form else ''}, "
        f"{about['train_samples']:,} samples to "
        f"train, to judge {judged}; {about['steps']:,} steps each, protocol {about['protocol']}, mean ± standard "
        f"deviation over {seeds} seed(s), last weights. Made by flare "
        f"{facts['flare']} at {', '.join(about['commits'])} with torch {facts['torch']} on {facts['processor']}."
    )
