"""Writing files so that nothing half-written is ever taken for whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flare.errors import DataError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path of the same kind beside `path`; it takes the place of `path` when all went well."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.stem}.{os.getpid()}{final.suffix}")
    try:
        yield temporary
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """A file of the user's is never overwritten; say so before the work, not after it."""
    if Path(path).exists():
        raise DataError(f"{path} exists already; choose another name or remove it")


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n")
