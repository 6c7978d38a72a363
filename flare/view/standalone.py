"""The page and its data as one HTML file that opens from disk, with no network: to mail to a colleague.

The modules of the page become data: addresses in its import map; the answers become elements `<script data-path>` of
gzip in base64. Nothing is quantised: the colleague sees the same numbers.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flare.utils.errors import DataError
from flare.utils.files import making, refuse_existing
from flare.view.answers import answer
from flare.view.server import PAGE
from flare.view.source import Source

MODES_BYTES = 16e6
"""Eigenvectors go along where they take less than this."""


def write_standalone(source: Source, path: str | Path, samples: Sequence[int]) -> dict[str, Any]:
    """Write the page with these samples; whole or not at all. Returns its catalogue."""
    refuse_existing(path)
    catalogue = source.catalogue()
    known = {sample["id"]: sample for sample in catalogue["samples"]}
    for sample in samples:
        if sample not in known:
            raise DataError(f"there is no sample {sample} to put into {path}; there are {_few(sorted(known))}")
    catalogue["samples"] = [known[sample] for sample in samples]
    spectra = catalogue["spectra"]
    if spectra:
        spectra["painted"] = _modes_bytes(catalogue) < MODES_BYTES
    data = {"catalogue": json.dumps(catalogue).encode()}
    for question in _questions(catalogue):
        data[question] = answer(source, question)[1]
    with making(path) as temporary:
        temporary.write_text(_page(catalogue["title"], data), encoding="utf-8")
    return catalogue


def chosen_samples(catalogue: dict[str, Any], count: int) -> list[int]:
    """Median, best, worst and then others, evenly by error, where errors are known; else the first of the page."""
    samples = catalogue["samples"]
    judged = sorted((s for s in samples if "error" in s), key=lambda s: s["error"])
    if not judged:
        start = [s for s in samples if s["split"] == catalogue.get("start")] or samples
        return [s["id"] for s in start[:count]]
    places = [len(judged) // 2, 0, len(judged) - 1]
    places += [round((i + 1) * (len(judged) - 1) / (count - 2)) for i in range(count - 3)]
    return [judged[place]["id"] for place in dict.fromkeys(places[:count])]


def _questions(catalogue: dict[str, Any]) -> list[str]:
    """Everything the page may ask for."""
    spectra, found = catalogue["spectra"], []
    for sample in catalogue["samples"]:
        base = f"samples/{sample['id']}"
        found += [base, *(f"{base}/fields/{field['name']}" for field in catalogue["fields"])]
        if spectra:
            found.append(f"{base}/spectra")
        if spectra and spectra["painted"]:
            found += [f"{base}/modes/{b}/{h}" for b in range(spectra["blocks"]) for h in range(spectra["heads"])]
    return found


def _modes_bytes(catalogue: dict[str, Any]) -> float:
    spectra = catalogue["spectra"]
    points = sum(sample["points"] for sample in catalogue["samples"])
    return 4.0 * points * spectra["blocks"] * spectra["heads"] * spectra["modes"]


def _page(title: str, data: dict[str, bytes]) -> str:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    ours = (file for file in PAGE.iterdir() if file.name.endswith(".js") and not file.name.startswith("three."))
    modules = {"three": PAGE / "three.min.js"} | {f"flare/{file.name}": file for file in ours}
    addresses = {name: f"data:text/javascript;base64,{_base64(file.read_bytes())}" for name, file in modules.items()}
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    embedded = "\n".join(
        f'<script type="text/plain" data-path="{html.escape(path)}">{_base64(gzip.compress(body, 6, mtime=0))}</script>'
        for path, body in data.items()
    )
    before, _, rest = page.partition('<script type="importmap">')
    page = f'{before}<script type="importmap">{json.dumps({"imports": addresses})}{rest[rest.index("</script>") :]}'
    start = '<script type="module">import "flare/main.js";</script>'
    for old, new in {
        '<link rel="stylesheet" href="style.css">': f"<style>\n{style}</style>",
        '<script type="module" src="main.js"></script>': f"{embedded}\n{start}",
        "<title>FLARE</title>": f"<title>{html.escape(title)}</title>",
    }.items():
        assert old in page
        page = page.replace(old, new)
    return page


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _few(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (f", … {numbers[-1]}" if len(numbers) > 8 else "")
