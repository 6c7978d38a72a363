"""The compiled kernels: built once per machine, cached, loaded with ctypes.

The library has a plain C interface with pointers and sizes, so it does not depend on the version of torch. It shares
torch's OpenMP runtime, so that both use one pool of threads. `cache` finds the library, `build` compiles it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from flare.mixer.native.build import build
from flare.mixer.native.cache import KernelsUnavailable, first_that_loads, folders
from flare.utils.errors import ConfigError

SIGNATURES = {  # p pointer, i integer, f float
    "flare_encode": "pfppppppppp",
    "flare_decode": "pfpppppppp",
    "flare_mixer_backward": "pfppppppppppppppppppp",
    "flare_resmlp": "iippippp",
    "flare_resmlp_backward": "iippipppipp",
    "flare_block": "pffpppppp",
    "flare_block_backward": "pffppppppppp",
    "flare_orthogonalize": "iiiiippp",
}
T = 64
"""Tokens per tile, as in `src/tile.h`. A library with another value is rejected."""
_CTYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}

_loaded: ctypes.CDLL | KernelsUnavailable | None = None
_loading = threading.Lock()


def kernels() -> ctypes.CDLL:
    """Return the loaded library, after building it if necessary.

    Raises:
        KernelsUnavailable: There are no kernels on this machine; the message has the reason.
    """
    outcome = _load_once()
    if isinstance(outcome, KernelsUnavailable):
        raise KernelsUnavailable(str(outcome))  # one exception raised repeatedly would accumulate tracebacks
    return outcome


def why_not() -> str | None:
    """Return the reason why there are no kernels on this machine, or None if there are."""
    outcome = _load_once()
    return str(outcome) if isinstance(outcome, KernelsUnavailable) else None


# torch.compile calls why_not once and does not trace into it. torch.compiler.assume_constant_result does the same, but
# takes a second to import.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _load_once() -> ctypes.CDLL | KernelsUnavailable:
    global _loaded
    if _loaded is None:
        with _loading:  # one thread builds, the others wait
            _loaded = _loaded or _load()
    return _loaded


def _load() -> ctypes.CDLL | KernelsUnavailable:
    if _is_disabled():
        return KernelsUnavailable(f"switched off by FLARE_NATIVE={os.environ['FLARE_NATIVE']}")
    try:
        return obtain()
    except KernelsUnavailable as error:
        return error
    except OSError as error:  # such as a full disk, which must not stop the program
        return KernelsUnavailable(f"the kernels could not be built: {error}")


def _is_disabled() -> bool:
    value = os.environ.get("FLARE_NATIVE") or "1"
    if value not in ("0", "1"):
        raise ConfigError(f"FLARE_NATIVE={value} must be 1 (use the native kernels, the default) or 0 (disable them)")
    return value == "0"


def obtain(folder: Path | None = None) -> ctypes.CDLL:
    """Load the library, after building it if necessary.

    Args:
        folder: Folder of the library. None means the first one that loads from the package or a cache.

    Raises:
        KernelsUnavailable: The library cannot be built or loaded.
    """
    if platform.system() == "Windows":
        raise KernelsUnavailable("the kernels support Linux and macOS only")
    if folder:
        return open_library(build(open_library, folder))
    return first_that_loads(folders(), open_library) or open_library(build(open_library))


def open_library(path: Path) -> ctypes.CDLL:
    """Load a library file and declare its functions; raise KernelsUnavailable if it is not a kernel library."""
    try:
        library = ctypes.CDLL(str(path))
        for name, letters in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes = [_CTYPES[letter] for letter in letters]
            function.restype = ctypes.c_int
        library.flare_compiled_for.restype = ctypes.c_char_p
        library.flare_tile.restype = ctypes.c_int64
        library.flare_bound.restype = ctypes.c_float
    except (OSError, AttributeError) as error:
        raise KernelsUnavailable(f"the library does not load: {error}") from None
    if library.flare_tile() != T:
        raise KernelsUnavailable(f"the library has tiles of {library.flare_tile()} tokens, not {T}")
    return library


def describe_build(library: ctypes.CDLL) -> str:
    """Return the path of a library and the instruction set it uses."""
    return f"{library._name} ({library.flare_compiled_for().decode()})"


def call(name: str, *arguments: object) -> None:
    """Run a kernel; tensors are passed by address.

    Raises:
        MemoryError: The kernel could not allocate its buffers.
        TypeError: A tensor is not float32 or bool on the CPU.
    """
    plain = [_address(a) if isinstance(a, Tensor) else a for a in arguments]
    if getattr(kernels(), name)(*plain):
        raise MemoryError(f"{name} could not allocate its buffers; use fewer points, latents or threads")


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    """Return the addresses of float32 tensors, for kernels that take a list; the tensors must outlive the call."""
    float32 = torch.float32
    for t in tensors:  # a loop instead of `_address`: a block has 34 weights, and a small mesh takes a millisecond
        if t.dtype is not float32 or not t.is_cpu:
            raise _unsupported(t)
    return sizes(*[t.data_ptr() for t in tensors])


def _address(tensor: Tensor) -> int:
    if tensor.dtype not in (torch.float32, torch.bool) or not tensor.is_cpu:
        raise _unsupported(tensor)
    return tensor.data_ptr()


def _unsupported(tensor: Tensor) -> TypeError:
    return TypeError(f"the kernels take float32 on the CPU, not {tensor.dtype} on {tensor.device}")


def sizes(*values: int) -> ctypes.Array[ctypes.c_int64]:
    """Return integers as a C array."""
    return (ctypes.c_int64 * len(values))(*values)
