"""The viewer with all its data on disk: as one HTML file that needs no network, or as a folder for a server.

In the HTML file, the modules of the page are data: addresses of its import map and the answers to its requests are
elements ``<script data-path>`` with gzip in base64. Values are not quantized.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flare.utils.errors import DataError
from flare.utils.files import check_not_existing, create_file, create_folder
from flare.view.answers import answer
from flare.view.server import PAGE
from flare.view.source import Source

MODES_BYTES = 16e6
"""Largest size of all eigenvectors that are written to the file."""


def write_standalone(source: Source, path: str | Path, samples: Sequence[int]) -> dict[str, Any]:
    """Write the page with some samples to one HTML file.

    Args:
        source: What to look at.
        path: New HTML file.
        samples: Ids of the samples.

    Returns:
        The catalogue of the page.

    Raises:
        DataError: The file exists, or there is no such sample. Nothing is written then.
    """
    check_not_existing(path)
    catalogue = source.catalogue()
    known = {sample["id"]: sample for sample in catalogue["samples"]}
    for sample in samples:
        if sample not in known:
            ids = [str(id) for id in sorted(known)]
            some = ", ".join(ids[:8]) + (f", … {ids[-1]}" if len(ids) > 8 else "")
            raise DataError(f"there is no sample {sample} to write to {path}; known: {some}")
    catalogue["samples"] = [known[sample] for sample in samples]
    spectra = catalogue["spectra"]
    if spectra:
        points = sum(sample["points"] for sample in catalogue["samples"])
        size = 4 * points * spectra["blocks"] * spectra["heads"] * spectra["modes"]
        spectra["painted"] = size < MODES_BYTES
    with create_file(path) as temporary:
        temporary.write_text(_build_page(catalogue["title"], _collect(source, catalogue)), encoding="utf-8")
    return catalogue


def choose_samples(catalogue: dict[str, Any], count: int) -> list[int]:
    """Choose samples for a file: median, best and worst, then others evenly by error.

    Without known errors, the first samples that the page would show.
    """
    samples = catalogue["samples"]
    ranked = sorted((s for s in samples if "error" in s), key=lambda s: s["error"])
    if not ranked:
        start = [s for s in samples if s["split"] == catalogue.get("start")] or samples
        return [s["id"] for s in start[:count]]
    places = [len(ranked) // 2, 0, len(ranked) - 1]
    places += [round((i + 1) * (len(ranked) - 1) / (count - 2)) for i in range(count - 3)]
    return [ranked[place]["id"] for place in dict.fromkeys(places[:count])]


def record_answers(source: Source, folder: str | Path) -> None:
    """Write every answer that the page may request to a new folder, one file each; see `find_recorded`."""
    with create_folder(folder) as temporary:
        for path, body in _collect(source, source.catalogue()):
            (temporary / _file_name(path)).write_bytes(body)


def find_recorded(folder: str | Path, path: str) -> Path | None:
    """Return the file that answers a request for `path`, or None if there is none.

    A path is looked up by its hash, so that no path leads out of the folder.
    """
    file = Path(folder) / _file_name(path)
    return file if file.exists() else None


def _file_name(path: str) -> str:
    return hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()


def _collect(source: Source, catalogue: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of every answer that a page with this catalogue may request."""
    yield "catalogue", json.dumps(catalogue).encode()
    spectra = catalogue["spectra"]
    for sample in catalogue["samples"]:
        base = f"samples/{sample['id']}"
        paths = [base, *(f"{base}/fields/{field['name']}" for field in catalogue["fields"])]
        if spectra:
            paths.append(f"{base}/spectra")
        if spectra and spectra["painted"]:
            paths += [f"{base}/modes/{b}/{h}" for b in range(spectra["blocks"]) for h in range(spectra["heads"])]
        yield from ((path, answer(source, path)[1]) for path in paths)


def _build_page(title: str, answers: Iterator[tuple[str, bytes]]) -> str:
    page = (PAGE / "index.html").read_text(encoding="utf-8")
    ours = (file for file in PAGE.iterdir() if file.name.endswith(".js") and not file.name.startswith("three."))
    modules = {"three": PAGE / "three.min.js"} | {f"flare/{file.name}": file for file in ours}
    addresses = {name: f"data:text/javascript;base64,{_base64(file.read_bytes())}" for name, file in modules.items()}
    style = (PAGE / "style.css").read_text(encoding="utf-8")
    embedded = "\n".join(
        f'<script type="text/plain" data-path="{html.escape(path)}">{_base64(gzip.compress(body, 6, mtime=0))}</script>'
        for path, body in answers
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
