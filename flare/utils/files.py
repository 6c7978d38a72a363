"""Writing files so that nothing half-written is ever taken for whole."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from flare.utils.errors import DataError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary path of the same kind beside `path`; it takes the place of `path` when all went well.

    For what is ours to overwrite, such as checkpoints, records and pages; a file of the user's is `making`.
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
def making(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path of the same name in a hidden folder beside; what is there goes to its place when all went well.

    It may be a file, a folder, or a .vtm file with its blocks. Nothing is overwritten, not even what has appeared
    during the work, such as the result of the same command in another window.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    hidden = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield hidden / final.name
        for staged in sorted(hidden.iterdir()):  # the blocks of a .vtm file before the file that names them
            _move_in(staged, final.with_name(staged.name))
    finally:
        shutil.rmtree(hidden, ignore_errors=True)


@contextmanager
def filling(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside `path`; it takes the name `path` when all went well, and is gone otherwise."""
    final = Path(path)
    temporary = final.with_name(f".{final.name}.{os.getpid()}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        _move_in(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _move_in(staged: Path, final: Path) -> None:
    """Give a whole file or folder its name, unless something has it by now."""
    try:
        if staged.is_dir():
            staged.rename(final)  # fails where there is a file, or a folder that is not empty
        else:
            final.hardlink_to(staged)  # renaming would overwrite
    except OSError:
        refuse_existing(final)
        staged.rename(final)  # a file system without links


def put_between(page: Path, begin: str, end: str, text: str) -> None:
    """Put `text` in place of what stands between two marks of a page."""
    before, after = around_marks(page, begin, end)
    with replacing(page) as temporary:
        temporary.write_text(f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}", encoding="utf-8")


def around_marks(page: Path, begin: str, end: str) -> tuple[str, str]:
    """What stands before and after two marks of a page. To be asked, too, before long work whose result goes there."""
    try:
        before, rest = page.read_text(encoding="utf-8").split(begin)
        _, after = rest.split(end, 1)
    except (OSError, ValueError):
        raise DataError(f"{page} is no page with the marks {begin} and {end}") from None
    return before, after


@contextmanager
def lock(path: str | os.PathLike[str], message: str) -> Iterator[None]:
    """Hold a lock file; raise a DataError with `message` where another process holds it. A killed holder lets go."""
    with Path(path).open("a", encoding="utf-8") as file:
        take_lock(file, message)
        yield


def take_lock(file: IO[Any], message: str) -> None:
    """Lock an open file until it is closed."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock; there, files opened twice fail by themselves
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise DataError(message) from None


@contextmanager
def wait_for_lock(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold a lock file, after whoever holds it now."""
    with Path(path).open("a", encoding="utf-8") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # Windows, some network folders: two may do the same work; each does it whole
            pass
        yield


def taken(path: str | os.PathLike[str]) -> bool:
    """Whether something is there that must not be overwritten; an empty folder is free."""
    path = Path(path)
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def refuse_existing(path: str | os.PathLike[str]) -> None:
    """A file of the user's is never overwritten; say so before the work, not after it."""
    if taken(path):
        raise DataError(f"{path} exists already; choose another name or remove it")


def refuse_full_disk(folder: str | os.PathLike[str], needed: int, what: str, remedy: str) -> None:
    """Say before the work, not in the middle of it, that a folder has no room for so many bytes."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DataError(f"{what} take {needed / 1e9:.3g} GB on disk, and {folder} has {free / 1e9:.3g} left; {remedy}")


def nearest_folder(path: str | os.PathLike[str]) -> Path:
    """The folder in which `path` will be, or the innermost above it that is there already."""
    return next(folder for folder in Path(path).absolute().parents if folder.is_dir())


def write_json(path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
