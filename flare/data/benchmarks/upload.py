"""Sharing exported parts: `flare data upload`."""

from __future__ import annotations

import csv
import logging
import re
from pathlib import Path

import flare
from flare.data.benchmarks.hub import hub_failure, hub_library
from flare.utils.errors import ConfigError, DataError, one_line

logger = logging.getLogger(__name__)


SHARED = ("README.md", "provenance.json", "data/*", "train/*.npz", "test/*.npz")
"""What is sent of a folder; whatever else lies there stays."""


def upload(folder: str | Path, to: str, *, private: bool = False, quiet: bool = False) -> str:
    """Send an exported folder to the dataset repository `to` of the hub, made if need be, and return its address.

    A broken transfer goes on when called again: what is there already is not sent twice. A repository that holds other
    files, or is public where a private one is asked for, is left as it is.

    Args:
        to: `user/name`, or `organisation/name`.
        private: only you, or your organisation, can see it.
    """
    folder = Path(folder)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", to):
        raise ConfigError(f"to={to!r} is no repository; give user/name")
    files = _shared_files(folder)
    hub = hub_library()
    if not hub.get_token():
        raise DataError(
            "the hub must know who you are: make a token that may write at https://huggingface.co/settings/tokens, "
            "then `hf auth login`, or set HF_TOKEN"
        )
    if not quiet:
        logger.info(
            f"sending {len(files):,} files of {folder} to {to}, which is {'private' if private else 'public'} ..."
        )
    try:
        api = hub.HfApi()
        address = api.create_repo(to, repo_type="dataset", private=private, exist_ok=True)
        there = api.repo_info(to, repo_type="dataset")
        if private and not there.private:
            raise DataError(f"{to} exists already and is public; choose another name, or make it private first")
        others = {file.rfilename for file in there.siblings or ()} - files - {".gitattributes"}
        if others:
            raise DataError(
                f"{to} holds {len(others):,} other files already (first: {min(others)}); choose another name"
            )
        api.upload_folder(
            repo_id=to,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=list(SHARED),
            commit_message=f"Parts exported by flare-engine {flare.__version__}",
        )
    except DataError:
        raise
    except ValueError as error:  # a name or a card that the hub does not like, such as an unknown licence
        raise DataError(f"the hub does not take {folder} as {to}: {one_line(error)}") from None
    except Exception as error:
        raise DataError(
            f"cannot upload {folder} to {to}: {hub_failure(error)}. May your token write there? Run the same "
            f"command to go on"
        ) from None
    return str(address)


def _shared_files(folder: Path) -> set[str]:
    """Those of a finished export, relative to it; nothing less is sent."""
    indices = sorted(folder.glob("data/*.csv"))
    if not (folder / "README.md").is_file() or not indices:
        raise DataError(f"{folder} is no exported dataset. Make one with:  flare data export DATASET --out {folder}")
    for index in indices:
        with index.open(encoding="utf-8", newline="") as file:
            missing = [row["file"] for row in csv.DictReader(file) if not (folder / row["file"]).is_file()]
        if missing:
            raise DataError(
                f"{folder} lacks {len(missing):,} files of {index.name} (first: {missing[0]}); export it anew"
            )
    return {path.relative_to(folder).as_posix() for pattern in SHARED for path in folder.glob(pattern)}
