"""The Hugging Face hub: access, errors, and upload of exported datasets.

`huggingface_hub` defines the address and token of the hub (`HF_ENDPOINT`, `HF_TOKEN`).
"""

from __future__ import annotations

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

    known = isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | OSError | DataError)
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
    files = {path.relative_to(folder).as_posix() for pattern in SHARED for path in folder.glob(pattern)}
    if not {"README.md", "provenance.json"} <= files:
        raise DataError(f"{folder} is not an exported dataset; make one with  flare data export DATASET --out {folder}")
    hub = hub_library()
    if not hub.get_token():
        raise DataError("the hub needs a token with write access: run `hf auth login` or set HF_TOKEN")
    if not quiet:
        logger.info(f"uploading {len(files):,} files of {folder} to {to} ...")
    try:
        api = hub.HfApi()
        address = api.create_repo(to, repo_type="dataset", private=private, exist_ok=True)
        there = api.repo_info(to, repo_type="dataset")
        others = {file.rfilename for file in there.siblings or ()} - files - {".gitattributes"}
        if others or (private and not there.private):
            problem = f"holds {len(others):,} other files (first: {min(others)})" if others else "is public"
            raise DataError(f"{to} exists and {problem}; choose another name")
        api.upload_folder(
            repo_id=to,
            repo_type="dataset",
            folder_path=folder,
            allow_patterns=list(SHARED),
            commit_message=f"Parts exported by flare-engine {__version__}",
        )
    except Exception as error:
        # A ValueError is a name or a card that the hub refuses, for example an unknown license.
        reason = one_line(error) if isinstance(error, ValueError) else hub_failure(error)
        raise DataError(f"cannot upload {folder} to {to}: {reason}. Run the same command to resume") from None
    return str(address)
