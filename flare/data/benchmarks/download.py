"""Download of published files from the Hugging Face hub: resumable, verified by checksum, unpacked safely."""

from __future__ import annotations

import hashlib
import json
import logging
import lzma
import tarfile
import zlib
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from flare.data.benchmarks.cards import Archive
from flare.data.benchmarks.hub import hub_failure, hub_library
from flare.data.dataset import sha256
from flare.utils.errors import DataError
from flare.utils.files import write_json
from flare.utils.progress import progress

logger = logging.getLogger(__name__)


def download(archive: Archive, to: str | Path, *, quiet: bool = False) -> Path:
    """Download and unpack the files of a benchmark. Files that are there already are kept.

    An archive may hold several benchmarks; it is downloaded once for all of them.

    Args:
        archive: Location of the files.
        to: Folder for archives and unpacked files.
        quiet: Report no progress.

    Returns:
        The folder with the files of the benchmark.

    Raises:
        DataError: The hub cannot be reached, or a file is damaged, unsafe or not as expected.
    """
    to = Path(to)
    if "*" in archive.file:
        return _fetch_files(archive, to, quiet=quiet)
    folder, path = to / archive.folder, to / archive.file
    done = to / f".{archive.file}.unpacked"
    if done.exists() and folder.is_dir() and any(folder.iterdir()):
        return folder
    try:
        _fetch_files(replace(archive, folder="", only=(archive.file,)), to, quiet=quiet)
    except DataError as error:
        if not path.exists():
            raise DataError(f"{error}, or copy the file to {path} yourself") from None
        logger.info(f"{error}; using {path} without verifying its checksum")
    unpack(path, to, quiet=quiet)
    if not folder.is_dir():
        raise DataError(f"{path} has no folder {archive.folder}, so it is not the expected archive")
    done.touch()
    return folder


def _fetch_files(archive: Archive, to: Path, *, quiet: bool) -> Path:
    """Download the files of a repository that match a pattern, into the folders they have there."""
    folder = to / archive.folder
    done = to / f".{archive.repository.replace('/', '--')}{'.some' if archive.only else ''}.fetched"
    sizes: dict[str, int] = json.loads(done.read_text(encoding="utf-8")) if done.exists() else {}
    paths = {file: folder / file for file in archive.only or sizes}
    if sizes and all(path.is_file() and path.stat().st_size == sizes.get(file) for file, path in paths.items()):
        return folder
    hub = hub_library()
    if not quiet:
        logger.info(f"downloading {archive.file} of {archive.repository} into {folder} ...")
    try:
        api, where = hub.HfApi(), {"repo_id": archive.repository, "repo_type": "dataset"}
        where["revision"] = api.repo_info(**where).sha  # one revision, even if the repository changes meanwhile
        entries = [e for e in api.list_repo_tree(recursive=True, **where) if isinstance(e, hub.hf_api.RepoFile)]
        found = {e.path: e for e in entries if fnmatch(e.path, archive.file)}
        found = {path: found.get(path) for path in archive.only or found}
        if not found or None in found.values():
            missing = next((path for path, entry in found.items() if entry is None), archive.file)
            raise DataError(f"{archive.repository} has no file {missing}; the repository has changed")
        for path in found:
            if not (folder / path).resolve().is_relative_to(folder.resolve()):
                raise DataError(f"{archive.repository} is unsafe: its file {path} would leave the folder")
        hub.snapshot_download(local_dir=folder, allow_patterns=list(archive.only) or archive.file, **where)
    except Exception as error:
        what = f"{archive.file} of {archive.repository}"
        raise DataError(f"cannot download {what}: {hub_failure(error)}. Run the same command to resume") from None
    bad = []
    with progress("checksums", len(found), unit="files", quiet=quiet) as update:
        for file, entry in found.items():
            path, digest = folder / file, entry.lfs.sha256 if entry.lfs else entry.blob_id
            if not path.is_file() or _checksum(path, digest) != digest:
                path.unlink(missing_ok=True)  # so that the next call downloads it again
                bad.append(file)
            update()
    if bad:
        some = f"{len(bad):,} of {len(found):,} files had another checksum than the hub's (first: {bad[0]})"
        raise DataError(f"{folder}: {some} and were removed; run the same command to download them again")
    write_json(done, sizes | {file: entry.size for file, entry in found.items()})
    return folder


def _checksum(path: Path, expected: str) -> str:
    """Return the SHA-256 of a large file, or the git SHA-1 of a small one, whichever the hub states."""
    if len(expected) == 64:
        return sha256(path)
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    digest.update(path.read_bytes())
    return digest.hexdigest()


def unpack(path: Path, to: Path, *, quiet: bool) -> None:
    """Unpack a tar archive.

    Raises:
        DataError: The archive is damaged, or unsafe: a member or link leaves the folder, or is a device.
    """
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
            # The tar ends before the compressed stream, whose checksum is verified only at its end.
            while archive.fileobj and archive.fileobj.read(1 << 20):
                pass
    except tarfile.FilterError as error:
        raise DataError(f"{path} is unsafe: {error}") from None
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise DataError(f"cannot unpack {path}: {error}. Remove it and download it again, or free some space") from None
