"""Fetching the published files from the hub: resumed where broken off, checked by checksum, unpacked with care."""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import tarfile
import zlib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from flare.data.benchmarks.cards import Archive
from flare.data.benchmarks.hub import hub_failure, hub_library
from flare.data.dataset import sha256
from flare.utils.errors import DataError
from flare.utils.files import write_json
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


def download(archive: Archive, to: str | Path, *, quiet: bool = False) -> Path:
    """The folder with the files of a benchmark, fetched and unpacked under `to`. What is there already stays.

    A packed file may hold several benchmarks; it is fetched once for all of them.
    """
    to = Path(to)
    if "*" in archive.file:
        return _fetch_loose(archive, to, quiet=quiet)
    folder = to / archive.folder
    done = to / f".{archive.file}.unpacked"
    if done.exists() and folder.is_dir() and any(folder.iterdir()):
        return folder
    path = _fetch(archive, to, quiet=quiet)
    unpack(path, to, quiet=quiet)
    if not folder.is_dir():
        raise DataError(f"{path} has no folder {archive.folder}; it is another archive than expected")
    done.touch()
    return folder


def _fetch(archive: Archive, to: Path, *, quiet: bool) -> Path:
    """The packed file."""
    hub = hub_library()
    if not quiet:
        logger.info(f"fetching {archive.file} of {archive.repository} into {to} ...")
    where: dict[str, Any] = {"repo_id": archive.repository, "filename": archive.file, "repo_type": "dataset"}
    try:
        facts = hub.get_hf_file_metadata(hub.hf_hub_url(**where))
        path = Path(hub.hf_hub_download(local_dir=to, **where))
    except Exception as error:
        reason, path = hub_failure(error), to / archive.file
        if path.exists():
            logger.info(f"the hub does not answer ({reason}); {path} is taken as it is, its checksum unverified")
            return path
        raise DataError(
            f"cannot fetch {hub.hf_hub_url(**where)}: {reason}. What has arrived is kept; run the same command to go "
            f"on, or bring the file by other means to {path}. `flare data make` needs no network"
        ) from None
    if facts.etag is None or _checksum(path, facts.etag) != facts.etag:
        path.unlink()
        raise DataError(f"{path} does not have the checksum that the hub gives for it, and was removed; fetch it again")
    return path


def _fetch_loose(archive: Archive, to: Path, *, quiet: bool) -> Path:
    """Files of the repository that match, in the folders they have there: all, or some."""
    folder = to / archive.folder
    done = to / f".{archive.repository.replace('/', '--')}{'.some' if archive.only else ''}.fetched"
    before: dict[str, int] = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {}
    wanted = archive.only or before
    if before and before.keys() >= set(wanted) and _whole(folder, {file: before[file] for file in wanted}):
        return folder
    hub = hub_library()
    if not quiet:
        logger.info(f"fetching {archive.file} of {archive.repository} into {folder} ...")
    try:
        api, where = hub.HfApi(), {"repo_id": archive.repository, "repo_type": "dataset"}
        where["revision"] = api.repo_info(**where).sha  # all of one state, even if the repository changes meanwhile
        tree = api.list_repo_tree(recursive=True, **where)
        found = [
            entry
            for entry in tree
            if isinstance(entry, hub.hf_api.RepoFile)
            and fnmatch(entry.path, archive.file)
            and (not archive.only or entry.path in archive.only)
        ]
        lacking = set(archive.only) - {entry.path for entry in found}
        if lacking or not found:
            raise DataError(
                f"{archive.repository} has no files {min(lacking, default=archive.file)}; it is not what it was"
            )
        for entry in found:
            if not (folder / entry.path).resolve().is_relative_to(folder.resolve()):
                raise DataError(f"{archive.repository} is not to be trusted: it has a file {entry.path}")
        hub.snapshot_download(local_dir=folder, allow_patterns=list(archive.only) or archive.file, **where)
    except Exception as error:
        raise DataError(
            f"cannot fetch {archive.file} of {archive.repository}: {hub_failure(error)}. What has arrived is kept; run "
            f"the same command to go on"
        ) from None
    promised = {entry.path: entry.lfs.sha256 if entry.lfs else entry.blob_id for entry in found}
    _verify(folder, promised, quiet=quiet)
    write_json(done, before | {entry.path: entry.size for entry in found})
    return folder


def _whole(folder: Path, sizes: dict[str, int]) -> bool:
    return all((folder / file).is_file() and (folder / file).stat().st_size == size for file, size in sizes.items())


def _verify(folder: Path, promised: dict[str, str], *, quiet: bool) -> None:
    """Remove what does not have its checksum, so that the next call fetches it anew."""
    bad = []
    with progress("checksums", len(promised), unit="files", quiet=quiet) as update:
        for file, digest in promised.items():
            path = folder / file
            if not path.is_file() or _checksum(path, digest) != digest:
                path.unlink(missing_ok=True)
                bad.append(file)
            update()
    if bad:
        raise DataError(
            f"{folder}: {len(bad):,} of {len(promised):,} files do not have the checksum that the hub gives for them "
            f"(first: {bad[0]}), and were removed; run the same command to fetch them again"
        )


def _checksum(path: Path, expected: str) -> str:
    """SHA-256 of a large file, as the hub keeps it; a small one has git's own SHA-1."""
    if len(expected) == 64:
        return sha256(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    digest.update(path.read_bytes())
    return digest.hexdigest()


def unpack(path: Path, to: Path, *, quiet: bool) -> None:
    """A tar archive. Members that would leave the folder, links out of it and devices are refused."""
    try:
        with (
            path.open("rb") as packed,
            tarfile.open(fileobj=packed) as archive,
            progress(f"unpacking {path.name}", path.stat().st_size >> 20, unit="MB", quiet=quiet) as update,
        ):
            read = 0
            for member in archive:
                archive.extract(member, to, filter="data")
                update((packed.tell() >> 20) - read)
                read = packed.tell() >> 20
            # A tar ends before what it is packed in: only there is the checksum of all that was unpacked.
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    except tarfile.FilterError as error:
        raise DataError(f"{path} is not to be trusted: {error}") from None
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise DataError(f"cannot unpack {path}: {error}. Remove it and fetch it again, or make room") from None
