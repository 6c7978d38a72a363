"""Atomic writing of files and folders, locks, and checks before long work."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flare.utils.errors import DataError


@contextmanager
def replace_atomically(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write to a temporary path beside `path` that replaces it on success.

    Use it for our own files, such as checkpoints, records and pages. Use `create_file` for files that
    belong to the user.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".{final.stem}.{os.getpid()}{final.suffix}")
    try:
        yield temporary
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def create_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Write to a path of the same name in a hidden folder beside, and move the result into place on success.

    The result may be a file, a folder, or a .vtm file with its blocks. Nothing is overwritten, not even a file that
    appeared meanwhile, such as the result of the same command in another terminal.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield hidden / final.name
        for staged in sorted(hidden.iterdir()):  # the blocks of a .vtm file come before the file that names them
            _move_in(staged, final.with_name(staged.name))
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def create_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Fill a new folder beside `path` that takes the name `path` on success and is deleted otherwise."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _move_in(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_in(staged: Path, final: Path) -> None:
    """Move a complete file or folder to its name, unless the name is taken by now."""
    try:
        if staged.is_dir():
            staged.rename(final)  # fails if a file or a non-empty folder exists
        else:
            final.hardlink_to(staged)  # renaming would overwrite
    except OSError:
        check_not_existing(final)
        staged.rename(final)  # a file system without links


def replace_between_marks(page: Path, begin: str, end: str, text: str) -> None:
    """Replace the text between two marks of a page."""
    before, after = split_at_marks(page, begin, end)
    with replace_atomically(page) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def split_at_marks(page: Path, begin: str, end: str) -> tuple[str, str]:
    """Return the text before and after two marks of a page. Also call it before long work whose result goes there.

    Raises:
        DataError: The page does not exist or lacks a mark.
    """
    try:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(end, 1)
    except (OSError, ValueError):
        raise DataError(f"{page} does not exist or lacks the marks {begin} and {end}") from None
    return before, after


@contextmanager
def lock(path: str | os.PathLike[str], message: str | None = None) -> Iterator[None]:
    """Hold a lock file; a killed process releases it.

    Args:
        path: The lock file.
        message: Text of the error if another process holds it. None: wait for that process.

    Raises:
        DataError: Another process holds it, and there is a message.
    """
    with Path(path).open("a", encoding="utf-8") as file:
        take_lock(file, message)
        yield


def take_lock(file: IO[Any], message: str | None) -> None:
    """Lock an open file until it is closed; see `lock`."""
    try:
        import fcntl
    except ImportError:  # Windows: files opened twice fail anyway
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if message else 0))
    except OSError:
        if message:  # without one, two processes on some network folders may do the same work
            file.close()
            raise DataError(message) from None


def is_occupied(path: str | os.PathLike[str]) -> bool:
    """Return whether a path exists that must not be overwritten; an empty folder may be."""
    path = Path(path)
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def check_not_existing(path: str | os.PathLike[str]) -> None:
    """Raise a `DataError` if a path exists, before the work that would overwrite it."""
    if is_occupied(path):
        raise DataError(f"{path} exists already; choose another name or remove it")


def check_disk_space(folder: str | os.PathLike[str], needed: int, what: str, remedy: str) -> None:
    """Raise a `DataError` if a folder has no room for `needed` bytes, before the work that would fill it."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(f"{what} need {needed / 1e9:.3g} GB, but {folder} has {free / 1e9:.3g} GB free; {remedy}")


def nearest_folder(path: str | os.PathLike[str]) -> Path:
    """Return the parent folder of `path`, or its innermost parent that exists."""
    return next(folder for folder in Path(path).absolute().parents if folder.is_dir())


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    """Write a record as JSON, atomically."""
    with replace_atomically(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def save_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write named arrays as .npz. Names may be any, unlike those of `numpy.savez`, which has arguments of its own."""
    import numpy as np

    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
