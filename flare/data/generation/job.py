"""A dataset made in one call or in several: found finished, gone on with, or left with what there is."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flare.data.dataset import AnyFolder
from flare.data.writer import Appended, ArrayWriter
from flare.utils.errors import DataError, first_difference
from flare.utils.files import taken
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


def already_made(
    path: Path, folder: type[AnyFolder], schema: Any, provenance: Mapping[str, Any], keys: Iterable[str]
) -> AnyFolder | None:
    """The finished dataset, where it is this one by these keys of its provenance; None where there is none."""
    if not taken(path):
        return None
    dataset = folder(path)
    made, wanted = dataset.about["provenance"], json.loads(json.dumps(dict(provenance)))
    if dataset.schema.name != schema.name:
        raise another(path, f"{dataset.schema.name}, not {schema.name}")
    difference = first_difference({key: made.get(key) for key in keys}, {key: wanted[key] for key in keys})
    if difference:
        key, was, now = difference
        raise another(path, f"{key.removeprefix('options.')} is {was!r} there, {now!r} here")
    if dataset.schema != schema:
        raise another(path, f"{schema.name} with other fields or another grid")
    return dataset


def another(path: Path, difference: str) -> DataError:
    """The folder is taken by other data than what is asked for."""
    return DataError(f"{path} holds another dataset already: {difference}. Choose another folder, or remove it")


def fill(
    writer: ArrayWriter[Appended, Any], samples: Iterable[Appended], total: int, label: str, *, quiet: bool = False
) -> None:
    """Append `samples`, which begin at `len(writer)`, until there are `total`."""
    with progress(label, total, done=len(writer), quiet=quiet) as update:
        for sample in samples:
            writer.append(sample)
            update()


@contextmanager
def unfinished(writer: ArrayWriter[Any, Any], total: int) -> Iterator[None]:
    """Whatever ends the work within: what is committed is kept, and one message says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        logger.info(f"{_kept(writer, total)}; run the same command to go on")
        raise
    except BrokenProcessPool:
        raise DataError(
            f"a worker process died while making sample {len(writer)} of {writer.path} or one of the next (out of "
            f"memory?). {_kept(writer, total)}; run the same command to go on, perhaps with fewer workers"
        ) from None
    except MemoryError as error:
        raise DataError(
            f"not enough memory for sample {len(writer)} of {writer.path} or one of the next: {error}. "
            f"{_kept(writer, total)}; use fewer workers or a lower resolution"
        ) from None
    except CancelledError:
        raise DataError(
            f"the dask scheduler is gone. {_kept(writer, total)}; start one and run the same command to go on"
        ) from None
    except DataError as error:
        said = str(error)
        raise DataError(f"{said}{'' if said.endswith(('.', '?')) else '.'} {_kept(writer, total)}") from None
    except OSError as error:
        raise DataError(
            f"cannot write {writer.path}: {error.strerror or error}. {_kept(writer, total)}; make room and "
            f"run the same command to go on"
        ) from None
    finally:
        writer.close()


def _kept(writer: ArrayWriter[Any, Any], total: int) -> str:
    return f"{len(writer)} of {total} samples are kept in {writer.partial}"
