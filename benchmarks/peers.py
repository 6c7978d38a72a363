"""Measure FLARE and the baselines on one sample in turns in one process, and write the table into `PAGE`.

.venv/bin/python benchmarks/peers.py                    some minutes
.venv/bin/python benchmarks/peers.py --points 400       to try out
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import nn

from flare.models import build_model, count_parameters, use_backend
from flare.train.recipes import OF_DATA, recipe_names, with_model
from flare.utils.files import replace_between_marks
from measure import CLOCKS, PERFORMANCE, RESULTS, interleaved, load, others_percent, save, threads

PAGE = PERFORMANCE
BEGIN, END = "<!-- speed table -->", "<!-- end of speed -->"
THREADS = 2


def network(name: str, side: int) -> nn.Module:
    torch.manual_seed(0)
    model = with_model({"model": {"name": "flare"}}, "", name)["model"]
    if model.get("grid") == OF_DATA:
        model = {**model, "grid": [side, side]}
    return build_model(model.pop("name"), 2, 1, **model)


def calls(model: nn.Module, points: int) -> dict[str, Callable[[], Any]]:
    x, dy = torch.randn(1, points, 2), torch.randn(1, points, 1)
    learned = [p for p in model.parameters() if p.requires_grad]

    def infer() -> Any:
        with torch.inference_mode():
            return model(x)

    return {"inference": infer, "training step": lambda: torch.autograd.grad(model(x), learned, dy)}


def measure(points: int, rounds: int) -> list[dict[str, Any]]:
    side = isqrt(points)
    models = {name: network(name, side) for name in recipe_names()}
    models["flare, sdpa"] = use_backend(network("flare", side), "sdpa")
    rows = [{"model": name, "parameters": count_parameters(model)} for name, model in models.items()]
    with threads(THREADS):
        for mode in ("inference", "training step"):
            turns = {
                name: calls(model.train(mode == "training step"), side * side)[mode] for name, model in models.items()
            }
            for call in turns.values():
                call()
            seconds = interleaved(turns, rounds, CLOCKS[THREADS])
            for row in rows:
                row[mode] = seconds[row["model"]]
                row[f"{mode}, times FLARE"] = seconds[row["model"]] / seconds["flare"]
    return rows


def table(record: dict[str, Any]) -> str:
    modes = ("inference", "training step")
    lines = [
        f"| model | parameters |{''.join(f' {mode}, ms | × FLARE |' for mode in modes)}",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in record["rows"]:
        cells = (f" {1e3 * row[mode]:,.0f} | {row[f'{mode}, times FLARE']:.1f} |" for mode in modes)
        lines.append(f"| {row['model']} | {row['parameters']:,} |{''.join(cells)}")
    facts = record["environment"]
    about = (
        f"One sample of {record['points']:,} points, float32, {THREADS} threads, medians of {record['rounds']} rounds "
        f"in turns; a training step is forward and backward. At {facts['commit']} with torch {facts['torch']} on "
        f"{facts['processor']}."
    )
    return "\n".join([*lines, "", about])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args(arguments)
    record = {
        "points": isqrt(given.points) ** 2,
        "rounds": given.rounds,
        "others_percent": others_percent(),
        "rows": measure(given.points, given.rounds),
    }
    save("peers", record, given.out)
    made = table(load("peers", given.out) or {})
    print(made)
    replace_between_marks(given.page, BEGIN, END, made)


if __name__ == "__main__":
    main()
