"""Training steps of the six attentions, and of FLARE with additions, on long sequences: tokens a second and memory;
table and plot in `PAGE`.

.venv/bin/python benchmarks/sequences.py              about 20 minutes
.venv/bin/python benchmarks/sequences.py --quick      two short lengths, to try out

The model is that of the preset lra/listops for each attention, without a mask. Time is CPU time of one thread, in turns
in one process; memory is the peak of forward and backward above what the process held, in a fresh process each.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from flare.models import count_parameters
from flare.report.style import ACCENT, INK, SMALL, new_figure, plain
from flare.sequence.attention import ATTENTIONS
from flare.sequence.encoder import SequenceEncoder
from flare.sequence.recipes import with_attention
from flare.train.presets import preset_path, read_yaml
from flare.utils.files import replace_atomically, replace_between_marks
from measure import (
    CLOCKS,
    IMAGES,
    PERFORMANCE,
    RESULTS,
    interleaved,
    load,
    others_percent,
    peak_above,
    run_isolated,
    save,
    threads,
)

PAGE, PICTURE = PERFORMANCE, IMAGES / "sequences.png"
BEGIN, END = "<!-- sequences table -->", "<!-- end of sequences -->"
LENGTHS = (1024, 2048, 4096, 8192, 16384)
VOCABULARY, LABELS = 16, 10
CONTENDERS: dict[str, dict[str, Any]] = {name: {} for name in ATTENTIONS} | {
    "flare-rotary": {"position": "rotary"},
    "flare-qk-norm": {"qk_norm": True},
}
"""The six, and what may be added to FLARE: settings of the model besides those of the preset."""
COLOURS = {
    "flare": ACCENT,
    "flare-rotary": "#f59e0b",
    "flare-qk-norm": "#be185d",
    "vanilla": INK,
    "linear": "#0f766e",
    "linformer": "#7c3aed",
    "norm": "#a16207",
    "performer": "#2563eb",
}
Row = dict[str, Any]


def model_of(contender: str, length: int) -> SequenceEncoder:
    settings = with_attention(read_yaml(preset_path("lra/listops")), "lra/listops", contender.partition("-")[0])
    sizes = {name: value for name, value in settings["model"].items() if name not in ("name", "length")}
    torch.manual_seed(0)
    return SequenceEncoder(VOCABULARY, LABELS, length, **sizes | CONTENDERS[contender])


def step_of(attention: str, length: int) -> Callable[[], Any]:
    """Forward and backward of one sequence."""
    model = model_of(attention, length).train()
    ids, dy = torch.randint(1, VOCABULARY, (1, length)), torch.randn(1, LABELS)
    learned = list(model.parameters())
    return lambda: torch.autograd.grad(model(ids), learned, dy)


def peak_of_step(attention: str, length: int) -> float:
    """MiB of one training step, after a short one has loaded all that is loaded once."""
    with threads(1):
        step_of(attention, 64)()
        return peak_above(step_of(attention, length))


def measure(lengths: Sequence[int], rounds: int) -> list[Row]:
    print(f"{'attention':<13} {'tokens':>7} {'seconds':>9} {'tokens/s':>9} {'MiB':>8}")
    rows: list[Row] = []
    for length in lengths:
        turns = {attention: step_of(attention, length) for attention in CONTENDERS}
        with threads(1):
            for step in turns.values():  # the first one pays for memory, and for all that is made once
                step()
            repeated = max(min(3, rounds), min(rounds, rounds * 2048 // length))
            seconds = interleaved(turns, repeated, CLOCKS[1])
        for attention in CONTENDERS:
            peak = run_isolated(peak_of_step, attention, length)
            row = {"attention": attention, "length": length, "seconds": seconds[attention], "peak_mb": peak}
            row["rounds"] = repeated
            row |= {"parameters": count_parameters(model_of(attention, length))}
            rows.append(row)
            rate = length / seconds[attention]
            print(f"{attention:<13} {length:7,} {seconds[attention]:9.3f} {rate:9,.0f} {peak:8,.0f}", flush=True)
    return rows


def table(record: Row) -> str:
    """Markdown: thousands of tokens a second, and MiB, of each attention at each length."""
    lengths = sorted({row["length"] for row in record["rows"]})
    cells = {(row["attention"], row["length"]): row for row in record["rows"]}
    lines = [
        f"| tokens/ms, MiB |{''.join(f' {length:,} |' for length in lengths)}",
        f"|---|{'---:|' * len(lengths)}",
    ]
    for attention in CONTENDERS:
        of = [cells[attention, length] for length in lengths]
        texts = [f"{row['length'] / row['seconds'] / 1e3:.1f}, {row['peak_mb']:,.0f}" for row in of]
        lines.append(f"| {attention} | {' | '.join(texts)} |")
    facts = record["environment"]
    rounds = ", ".join(str(cells["flare", length]["rounds"]) for length in lengths)
    about = (
        f"Forward and backward of one sequence, model of the preset lra/listops, float32. Time: CPU time of one "
        f"thread, medians of {rounds} rounds in turns, after one to warm up. Memory: the peak of a step in a fresh "
        f"process above what it held before, so without the weights but with their gradients. The C library gives "
        f"arrays of 32 MB and more back to the system when they are freed, so that they cost page faults each time: "
        f"the features of performer are that large from 4,096 tokens on. At {facts['commit']} with torch "
        f"{facts['torch']} on {facts['processor'].partition(',')[0]}."
    )
    return "\n".join([*lines, "", about])


def picture(record: Row) -> Figure:
    figure = new_figure(9.0, 3.6)
    left, right = figure.subplots(1, 2)
    for attention in CONTENDERS:
        rows = [row for row in record["rows"] if row["attention"] == attention]
        lengths = [row["length"] for row in rows]
        wide = 2.0 if attention == "flare" else 1.2
        line: dict[str, Any] = {"marker": "o", "markersize": 3.5, "color": COLOURS[attention], "linewidth": wide}
        left.plot(lengths, [row["seconds"] for row in rows], **line, label=attention)
        right.plot(lengths, [row["peak_mb"] for row in rows], **line, label=attention)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    plain(left, x="tokens", y="seconds, one thread", title="One training step")
    plain(right, x="tokens", y="peak memory, MiB", title="Its memory")
    left.legend(fontsize=SMALL, frameon=False, labelcolor=INK)
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two short lengths, to try out; nothing is kept")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the record")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page with the table")
    parser.add_argument("--picture", type=Path, default=PICTURE)
    given = parser.parse_args(arguments)
    busy = others_percent()
    rows = measure((256, 512) if given.quick else LENGTHS, given.rounds)
    if given.quick:
        return
    save("sequences", {"rounds": given.rounds, "others_percent": busy, "rows": rows}, given.out)
    record = load("sequences", given.out) or {}
    shown = os.path.relpath(given.picture, given.page.parent)
    replace_between_marks(given.page, BEGIN, END, f"{table(record)}\n\n![Time and memory of a training step]({shown})")
    with replace_atomically(given.picture) as temporary:
        picture(record).savefig(temporary, dpi=150, metadata={"Software": None})
    print(f"Table in {given.page}, plot in {given.picture}")


if __name__ == "__main__":
    main()
