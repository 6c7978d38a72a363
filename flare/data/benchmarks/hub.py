"""The Hugging Face hub: access, errors, and upload of exported datasets.

`huggingface_hub` defines the address and token of the hub (`HF_ENDPOINT`, `HF_TOKEN`).
"""

from __future__ import annotations

import csv
import logging
import re
from pathlib import Path
from types import ModuleType

from flare.utils import __version__
from flare.utils.errors import ConfigError, DataError, one_line

logger = logging.getLogger(__name__)

CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
"""HTTP libraries of the versions of huggingface_hub; a network failure is an error of one of them."""
SHARED = ("README.md", "provenance.json", "data/*", "train/*.npz", "test/*.npz")
"""Files of a folder that are uploaded."""


def hub_library() -> ModuleType:
    """Import huggingface_hub. Raises DataError if it is not installed."""
    try:
        import huggingface_hub
    except ImportError:
        raise DataError("the hub needs an extra; install it with:  pip install 'flare-engine[hub]'") from None
    return huggingface_hub


def hub_failure(error: Exception) -> str:
    """Return one line about a failure of the hub, the network or the disk; raise any other error again."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    known = isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | OSError)
    if not known and type(error).__module__.split(".")[0] not in CLIENTS:
        raise error
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def upload(folder: str | Path, to: str, *, private: bool = False, quiet: bool = False) -> str:
    """Upload an exported dataset to the hub. Calling it again resumes an interrupted upload.

    Args:
        folder: Folder that `export_lpbf` has written.
        to: Dataset repository, `user/name` or `organization/name`. It is created if it does not exist.
        private: Whether only you, or your organization, can see the repository.
        quiet: Report no progress.

    Returns:
        The address of the repository.

    Raises:
        ConfigError: `to` is not the name of a repository.
        DataError: The folder is not a complete export, the repository holds other files or is public although
            `private` is set, or the hub refuses the upload.
    """
    folder = Path(folder)
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", to):
        raise ConfigError(f"`to={to}` is not a repository; give user/name")
    files = _shared_files(folder)
    hub = hub_library()
    if not hub.get_token():
        raise DataError(
            "the hub needs a token with write access: create one at https://huggingface.co/settings/tokens, then run "
            "`hf auth login` or set HF_TOKEN"
        )
    if not quiet:
        kind = "private" if private else "public"
        logger.info(f"uploading {len(files):,} files of {folder} to the {kind} repository {to} ...")
    try:
        api = hub.HfApi()
        address = api.create_repo(to, repo_type="dataset", private=private, exist_ok=True)
        there = api.repo_info(to, repo_type="dataset")
        if private and not there.private:
            raise DataError(f"{to} exists and is public; choose another name, or make it private first")
        others = {file.rfilename for file in there.siblings or ()} - files - {".gitattributes"}
        if others:
            raise DataError(f"{to} holds {len(others):,} other files (first: {min(others)}); choose another name")
        api.upload_folder(
            repo_id=to,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=list(SHARED),
            commit_message=f"Parts exported by flare-engine {__version__}",
        )
    except DataError:
        raise
    except ValueError as error:  # the hub refuses the name or the card, for example an unknown license
        raise DataError(f"the hub refuses {folder} as {to}: {one_line(error)}") from None
    except Exception as error:
        raise DataError(
            f"cannot upload {folder} to {to}: {hub_failure(error)}. Check that your token has write access, and run "
            f"the same command to resume"
        ) from None
    return str(address)


def _shared_files(folder: Path) -> set[str]:
    """Return the files of a complete export, relative to its folder."""
    indices = sorted(folder.glob("data/*.csv"))
    if not (folder / "README.md").is_file() or not indices:
        raise DataError(
            f"{folder} is not an exported dataset. Make one with:  flare data export DATASET --out {folder}"
        )
    for index in indices:
        with index.open(encoding="utf-8", newline="") as file:
            missing = [row["file"] for row in csv.DictReader(file) if not (folder / row["file"]).is_file()]
        if missing:
            raise DataError(
                f"{folder} lacks {len(missing):,} files of {index.name} (first: {missing[0]}); export it again"
            )
    return {path.relative_to(folder).as_posix() for pattern in SHARED for path in folder.glob(pattern)}
