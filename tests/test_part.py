"""What is said of a part while it is read, predicted and encoded."""

import numpy as np
import pytest

from flare.cli import main
from flare.trust.calibration import FILE, calibrate
from tests.factory import ragged_dataset, saved_run
from tests.serve.uploads import POINTS, npz
from tests.test_export import surrogate


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A calibrated model."""
    data = ragged_dataset(tmp_path_factory.mktemp("data") / "ragged", sizes=[12] * 40, test=20)
    model = surrogate()
    folder = saved_run(model, tmp_path_factory.mktemp("runs") / "run")
    calibrate(model, data, range(20), range(20, 30), range(30, 40), quiet=True).save(folder / FILE)
    return str(folder)


def test_encode_warns_of_a_strange_part(run, tmp_path, capsys):
    for name, points, strange in (("a", POINTS, False), ("b", 50 * POINTS, True)):
        (tmp_path / f"{name}.npz").write_bytes(npz(position=np.asarray(points, np.float32)))
        assert main(["encode", run, str(tmp_path / f"{name}.npz"), "--out", str(tmp_path / f"{name}.code")]) == 0
        assert ("WARNING: unlike the training set" in capsys.readouterr().err) is strange
