"""The Hugging Face hub: the library that talks to it, and what its failures mean in one line.

Address and token of the hub are those of `huggingface_hub` (`HF_ENDPOINT`, `HF_TOKEN`).
"""

from __future__ import annotations

from types import ModuleType

from flare.utils.errors import DataError

CLIENTS = ("httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3")
"""What versions of huggingface_hub talk through; a network that is down shows as an error of theirs."""


def hub_library() -> ModuleType:
    try:
        import huggingface_hub
    except ImportError:
        raise DataError("the hub needs the extra:  pip install 'flare-engine[hub]'") from None
    return huggingface_hub


def hub_failure(error: Exception) -> str:
    """What the hub, the network or the disk failed at, in one line; an error of another kind is raised anew."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    known = isinstance(error, HfHubHTTPError | LocalEntryNotFoundError | OSError)
    if not known and type(error).__module__.split(".")[0] not in CLIENTS:
        raise error
    return (str(error).strip() or type(error).__name__).splitlines()[0]
