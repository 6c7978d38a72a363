import sys
from pathlib import Path

import pytest

from flare.view.runs import RunSource
from tests.view.sources import block_dataset, plate_dataset, trained

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))  # for the module `browser`


@pytest.fixture(scope="session")
def plate(tmp_path_factory):
    """A run on a curved 2-D grid."""
    folder = tmp_path_factory.mktemp("plate")
    return RunSource(trained(plate_dataset(folder / "data"), folder / "run"), device="cpu", modes=3)


@pytest.fixture(scope="session")
def block(tmp_path_factory):
    """A run on hexahedra."""
    folder = tmp_path_factory.mktemp("block")
    return RunSource(trained(block_dataset(folder / "data"), folder / "run"), device="cpu", modes=3)
