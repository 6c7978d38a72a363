"""The compiled kernels: built once on this machine, kept in a cache, loaded by ctypes.

The library is plain C with pointers and sizes, so it knows nothing of torch's version; it only shares torch's OpenMP
runtime, so that both work with one pool of threads. `cache` knows where it lies, `build` compiles it.
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
from flare.mixer.native.cache import Unavailable, first_that_loads, folders
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
"""Tokens of a tile: `src/tile.h` has the same, or the library is not ours."""
_CTYPES = {"p": ctypes.c_void_p, "i": ctypes.c_int64, "f": ctypes.c_float}

_loaded: ctypes.CDLL | Unavailable | None = None
_loading = threading.Lock()


def kernels() -> ctypes.CDLL:
    """The loaded library; built first where need be. Raises Unavailable with the reason."""
    outcome = _outcome()
    if isinstance(outcome, Unavailable):
        raise Unavailable(str(outcome))  # a new one: the same, raised again and again, would gather tracebacks
    return outcome


def why_not() -> str | None:
    """The reason why there are no kernels here; None where there are."""
    outcome = _outcome()
    return str(outcome) if isinstance(outcome, Unavailable) else None


# torch.compile calls it once and does not look inside. torch.compiler.assume_constant_result does the same, and takes a
# second to import.
why_not._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _outcome() -> ctypes.CDLL | Unavailable:
    global _loaded
    if _loaded is None:
        with _loading:  # one thread builds, the others wait
            _loaded = _loaded or _load()
    return _loaded


def _load() -> ctypes.CDLL | Unavailable:
    if _is_switched_off():
        return Unavailable(f"switched off by FLARE_NATIVE={os.environ['FLARE_NATIVE']}")
    try:
        return obtain()
    except Unavailable as error:
        return error
    except OSError as error:  # a full disk, no memory to start a compiler: no reason to stop a program
        return Unavailable(f"the kernels could not be built: {error}")


def _is_switched_off() -> bool:
    value = os.environ.get("FLARE_NATIVE") or "1"
    if value.lower() in ("0", "off", "no", "false"):
        return True
    if value.lower() in ("1", "on", "yes", "true"):
        return False
    raise ConfigError(f"FLARE_NATIVE={value} is neither 1 (use the native kernels, the default) nor 0 (do without)")


def obtain(folder: Path | None = None, *, again: bool = False) -> ctypes.CDLL:
    """The library of `folder`, or else the first that loads; built where there is none, `again` where it failed."""
    if platform.system() == "Windows":
        raise Unavailable("the kernels are for Linux and macOS")
    if folder:
        return open_library(build(open_library, folder, again=again))
    return first_that_loads(folders(), open_library) or open_library(build(open_library, again=again))


def open_library(path: Path) -> ctypes.CDLL:
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
        raise Unavailable(f"the library does not load: {error}") from None
    if library.flare_tile() != T:
        raise Unavailable(f"the library has tiles of {library.flare_tile()} tokens, not {T}")
    return library


def describe(library: ctypes.CDLL) -> str:
    """Where it lies, and the instructions it uses."""
    return f"{library._name} ({library.flare_compiled_for().decode()})"


def call(name: str, *arguments: object) -> None:
    """Run a kernel; tensors go by address."""
    plain = [_address(a) if isinstance(a, Tensor) else a for a in arguments]
    if getattr(kernels(), name)(*plain):
        raise MemoryError(f"{name} could not allocate its buffers; use fewer points, latents or threads")


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_int64]:
    """Of float32 tensors, for a kernel that takes a list of them. They must outlive the call."""
    float32 = torch.float32
    for t in tensors:  # spelled out: a block has 34 weights, and a small mesh is done in a millisecond
        if t.dtype is not float32 or not t.is_cpu:
            raise _not_ours(t)
    return sizes(*[t.data_ptr() for t in tensors])


def _address(tensor: Tensor) -> int:
    if tensor.dtype not in (torch.float32, torch.bool) or not tensor.is_cpu:
        raise _not_ours(tensor)
    return tensor.data_ptr()


def _not_ours(tensor: Tensor) -> TypeError:
    return TypeError(f"the kernels take float32 on the CPU, not {tensor.dtype} on {tensor.device}")


def sizes(*values: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)
