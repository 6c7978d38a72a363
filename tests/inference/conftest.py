"""A calibrated model in a run folder, and its dataset."""

import pytest

from flare.inference.calibration.calibrate import FILE, calibrate
from tests.factory import ragged_dataset, saved_run
from tests.inference.test_export import surrogate


@pytest.fixture(scope="session")
def calibrated_data(tmp_path_factory):
    return ragged_dataset(tmp_path_factory.mktemp("data") / "ragged", sizes=[12] * 40, test=20)


@pytest.fixture(scope="session")
def calibrated_run(calibrated_data, tmp_path_factory):
    model = surrogate()
    folder = saved_run(model, tmp_path_factory.mktemp("runs") / "run")
    calibrate(model, calibrated_data, range(20), range(20, 30), range(30, 40)).save(folder / FILE)
    return folder
