"""The one private folder of a server's temporary files: emptied at its end, or by the next server after a kill."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flare.utils.errors import DataError
from flare.utils.files import take_lock

PREFIX = "flare-serve-"
LOCK = "lock"


@contextmanager
def private_folder(scratch: str | None = None) -> Iterator[Path]:
    """A new folder that only this user can enter, gone on leaving. Folders of servers that were killed go first."""
    parent = Path(scratch or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    remove_orphans(parent)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (folder / LOCK).open("w") as lock:
        take_lock(lock, f"{folder} is in use")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_orphans(parent: Path) -> None:
    """Folders of our own whose server is gone: a living one holds the lock."""
    for folder in parent.glob(PREFIX + "*"):
        if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.getuid():
            continue
        try:
            with (folder / LOCK).open("a") as lock:
                take_lock(lock, "in use")
                shutil.rmtree(folder, ignore_errors=True)
        except (DataError, OSError):
            continue
