"""Set-up for every test. Environment first: it must be set before torch is imported anywhere."""

import os
from collections.abc import Iterator

# AMX instructions fault on some virtual machines; this keeps oneDNN's bfloat16 to AVX-512. Not part of the product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch
from hypothesis import settings

from flare.mixer.native import block_ops
from flare.mixer.native.build import find_compiler
from flare.mixer.native.cache import KernelsUnavailable
from flare.mixer.native.library import why_not
from flare.utils.terminal import attached

# The same examples in every run: bad luck is looked for on purpose, by HYPOTHESIS_PROFILE=explore, not met on the way.
# No deadlines: a busy machine is no bug.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=500, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _terminal() -> Iterator[None]:
    """Log messages are printed, as by the command line, so that tests can read them from standard error."""
    with attached():
        yield


@pytest.fixture(autouse=True)
def _kernels(request: pytest.FixtureRequest) -> None:
    """Tests of the C++ kernels are for machines that can build them; where one can, a failed build fails the test."""
    reason = why_not() if request.node.get_closest_marker("kernels") else None
    if reason is None:
        return
    try:
        find_compiler()
    except KernelsUnavailable as missing:
        pytest.skip(str(missing))
    (pytest.skip if "switched off" in reason else pytest.fail)(reason)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels of MLPs and blocks that ran."""
    names: list[str] = []
    call = block_ops.call
    monkeypatch.setattr(block_ops, "call", lambda name, *rest: (names.append(name), call(name, *rest))[1])
    return names
