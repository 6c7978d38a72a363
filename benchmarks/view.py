"""The page with a million points: how long until it shows them, and how long a frame and a hover take.

.venv/bin/python benchmarks/view.py                    all, some minutes; the table goes into `PAGE`
.venv/bin/python benchmarks/view.py runs/demo          only the pictures of that run, for docs/how-to/view.md

Truth, prediction and error in three panels, drawn by chromium's software renderer on this machine's processor: the
slowest "graphics card" a user can have. Times are processor time of the browser, all its processes together. Needs
playwright and chromium.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from browser import READY, browser, why_not
from flare.mesh.topology import grid_triangles
from flare.utils.files import replace_between_marks
from flare.view.server import ViewServer
from flare.view.source import Arrays
from flare.view.standalone import write_standalone
from measure import IMAGES, PERFORMANCE, RESULTS, load, others_percent, save
from table import origin, table, three_digits

PAGE = PERFORMANCE
BEGIN, END = "<!-- view table -->", "<!-- end of view -->"
SIDES = (320, 1000)
"""Bodies have side² points."""
FRAMES = 3


class Ripples:
    """A body of side² points, as a surface or as a cloud, with a field and a prediction of it."""

    def __init__(self, side: int, kind: str) -> None:
        u, v = np.meshgrid(np.linspace(-1, 1, side), np.linspace(-1, 1, side), indexing="ij")
        r = np.hypot(u, v)
        points = np.stack([u, v, 0.15 * np.cos(9 * r)], -1).reshape(-1, 3)
        if kind == "cloud":
            points = np.random.default_rng(0).standard_normal((side * side, 3)) * [1.0, 0.6, 0.3]
        self.points, self.side, self.kind = points.astype(np.float32), side, kind

    def catalogue(self) -> dict[str, Any]:
        sample = {"id": 0, "split": "test", "points": len(self.points)}
        field = {"name": "height", "unit": "mm", "role": "target", "compared": True}
        about = {"version": 1, "title": f"{self.kind}", "facts": [], "dimension": 3, "length_unit": "m"}
        return about | {"fields": [field], "parameters": [], "samples": [sample], "spectra": None}

    def geometry(self, sample: int) -> Arrays:
        arrays = {"points": self.points}
        if self.kind == "surface":
            arrays["triangles"] = grid_triangles(self.side, self.side).astype(np.uint32)
        return arrays

    def field(self, sample: int, name: str) -> Arrays:
        truth = np.sin(3 * self.points[:, 0]) * self.points[:, 2]
        return {"truth": truth, "prediction": truth + 0.01 * np.cos(7 * self.points[:, 1])}

    def spectra(self, sample: int) -> Arrays:
        raise NotImplementedError

    def modes(self, sample: int, block: int, head: int) -> Arrays:
        raise NotImplementedError


def browser_seconds() -> float:
    """Processor time that the browser has used so far, all its processes together."""
    found = 0.0
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "chrom" in process.name():
                times = process.cpu_times()
                found += times.user + times.system
    return found


@contextmanager
def timed(row: dict[str, Any], name: str, share: int = 1) -> Iterator[None]:
    """Keep what passes inside, divided by `share`: on the clock, and of the browser's processor time."""
    begin, used = time.perf_counter(), browser_seconds()
    yield
    row[f"{name}_clock"] = (time.perf_counter() - begin) / share
    row[f"{name}_cpu"] = (browser_seconds() - used) / share


DRAW = """(kind) => {
  const { stage, state } = flare;
  const panel = state.panels[0].element;
  Object.assign(stage.frames, { whole: 1e9, few: 1e9, drawn: 1e9 });   // "slow", and not timed by the page itself
  stage.moving = kind === "moving";
  stage.all = kind === "frame";
  if (kind === "hover") return stage.pick(panel, panel.clientWidth / 2, panel.clientHeight / 2);
  stage.draw();
  stage.settle();
}"""


def opened(chromium: Any, address: str) -> Any:
    """The page, when it has drawn its first frame."""
    page = chromium.new_page(viewport={"width": 1500, "height": 820})
    page.goto(address)
    page.wait_for_selector(READY, timeout=1_200_000)
    page.wait_for_function("() => flare.stage.frames.drawn > 0", timeout=1_200_000)
    return page


def measure(chromium: Any, side: int, kind: str) -> dict[str, Any]:
    source = Ripples(side, kind)
    row: dict[str, Any] = {"kind": kind, "points": side * side}
    with ViewServer(source) as server, tempfile.TemporaryDirectory() as folder:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with timed(row, "served"):
            page = opened(chromium, server.url)
        for step in ("frame", "moving", "hover"):
            with timed(row, step, share=FRAMES):
                for _ in range(FRAMES):
                    page.evaluate(DRAW, step)
        page.close()
        file = Path(folder) / "page.html"
        write_standalone(source, file, [0])
        row["file_mb"] = file.stat().st_size / 1e6
        with timed(row, "file"):
            page = opened(chromium, file.as_uri())
        page.close()
        server.shutdown()
    return row


def tables(record: dict[str, Any]) -> str:
    """Processor time: a busy neighbour makes it hardly longer."""
    head = ["Three panels of", "to load, s", "file to load, s", "file, MB", "frame, s", "moving, s", "hover, s"]
    keys = ("served_cpu", "file_cpu", "file_mb", "frame_cpu", "moving_cpu", "hover_cpu")
    rows = [[f"{r['points']:,} points, {r['kind']}", *(three_digits(r[key]) for key in keys)] for r in record["rows"]]
    return f"{table(head, rows)}\n\n{origin(record)}"


def pictures(run: str, folder: Path = IMAGES) -> None:
    """The page of a run with the pointer on a point, and its eigenvectors."""
    from flare.view.runs import RunSource

    with ViewServer(RunSource(run, device="cpu")) as server, browser() as chromium:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        page = opened(chromium, server.url)
        page.set_viewport_size({"width": 1500, "height": 760})
        box = page.locator(".stage").first.bounding_box()
        page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.4 * box["height"])
        page.wait_for_selector("#readout:not([hidden])")
        page.screenshot(path=folder / "view.png")
        page.click("#spectra-button")
        page.wait_for_selector(".heads")
        page.wait_for_selector(READY)
        page.mouse.move(3, 3)
        page.wait_for_function("() => flare.stage.waiting === null")
        page.screenshot(path=folder / "view-modes.png")
        server.shutdown()


def main(sides: tuple[int, ...] = SIDES, results: Path = RESULTS, docs: Path = PAGE) -> None:
    if reason := why_not():
        sys.exit(f"{reason}; the page cannot be measured")
    busy = others_percent()
    rows = []
    with browser() as chromium:
        for side in sides:
            for kind in ("surface", "cloud"):
                rows.append(measure(chromium, side, kind))
                print(rows[-1], flush=True)
                save("view", {"others_percent": busy, "rows": rows}, results)
                replace_between_marks(docs, BEGIN, END, tables(load("view", results) or {}))


if __name__ == "__main__":
    pictures(sys.argv[1]) if sys.argv[1:] else main()
