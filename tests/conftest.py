"""Set-up for every test. Environment first: it must be set before torch is imported anywhere."""

import os

# AMX instructions fault on some virtual machines; this keeps oneDNN's bfloat16 to AVX-512. Not part of the product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
