"""Fetching the published files from the hub: resumed where broken off, checked by checksum, unpacked with care."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path
from typing import Any

from flare.data.cards import Archive
from flare.data.store import sha256
from flare.errors import DataError
from flare.terminal import progress, say


def download(archive: Archive, to: str | Path, *, quiet: bool = False) -> Path:
    """The folder with the files of a benchmark, fetched and unpacked under `to`. What is there already stays.

    An archive holds several benchmarks; it is fetched once for all of them. Address and token of the hub are those of
    `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`).
    """
    to = Path(to)
    folder = to / archive.folder
    done = to / f".{archive.file}.unpacked"
    if done.exists() and folder.is_dir():
        return folder
    path = _fetch(archive, to, quiet=quiet)
    unpack(path, to, quiet=quiet)
    if not folder.is_dir():
        raise DataError(f"{path} has no folder {archive.folder}; it is another archive than expected")
    done.touch()
    return folder


def _fetch(archive: Archive, to: Path, *, quiet: bool) -> Path:
    try:
        import huggingface_hub as hub
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise DataError("downloading needs the extra:  pip install 'flare-engine[hub]'") from None
    if not quiet:
        say(f"fetching {archive.file} of {archive.repository} into {to} ...")
    where: dict[str, Any] = {"repo_id": archive.repository, "filename": archive.file, "repo_type": "dataset"}
    try:
        facts = hub.get_hf_file_metadata(hub.hf_hub_url(**where))
        path = Path(hub.hf_hub_download(local_dir=to, **where))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"cannot fetch {archive.file} of {archive.repository}: {reason}. What has arrived is kept; run the same "
            f"command to go on, or fetch the file by other means into {to}"
        ) from None
    if facts.etag is None or _checksum(path, facts.etag) != facts.etag:
        path.unlink()
        raise DataError(f"{path} does not have the checksum that the hub gives for it, and was removed; fetch it again")
    return path


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
    except tarfile.FilterError as error:
        raise DataError(f"{path} is not to be trusted: {error}") from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise DataError(f"cannot unpack {path}: {error}. Remove it and fetch it again, or make room") from None
