"""Answers to the requests of the page, as bytes for a server or a file.

    catalogue                              JSON
    samples/{id}                           geometry
    samples/{id}/fields/{name}             one channel
    samples/{id}/spectra                   eigenvalues of every block and head
    samples/{id}/modes/{block}/{head}      eigenvectors of one

All but the first are safetensors; docs/reference/viewer.md describes their content.
"""

from __future__ import annotations

import json
import re

import numpy as np
from safetensors.numpy import save

from flare.view.source import Arrays, NotThere, Source

JSON, ARRAYS = "application/json", "application/octet-stream"


def answer(source: Source, path: str) -> tuple[str, bytes]:
    """Return content type and bytes of one answer.

    Args:
        source: Data to show.
        path: Request without %-escapes.

    Raises:
        NotThere: There is no such sample, field or mode.
    """
    if path == "catalogue":
        return JSON, json.dumps(source.catalogue()).encode()
    if found := re.fullmatch(r"samples/(\d{1,9})(?:/(.+))?", path):
        arrays = _arrays(source, int(found[1]), found[2] or "")
        return ARRAYS, save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    raise NotThere(f"there is no {path!r}")


def _arrays(source: Source, sample: int, rest: str) -> Arrays:
    if not rest:
        return source.geometry(sample)
    if rest == "spectra":
        return source.spectra(sample)
    if found := re.fullmatch(r"fields/(.+)", rest):
        return source.field(sample, found[1])
    if found := re.fullmatch(r"modes/(\d{1,6})/(\d{1,6})", rest):
        return source.modes(sample, int(found[1]), int(found[2]))
    raise NotThere(f"there is no {rest!r} of a sample")
