"""Shipped models: a packed run predicts like the run, and is found by its name."""

import importlib.util

import numpy as np
import pytest

import flare
from flare.inference.surrogate import pretrained_folder, pretrained_names
from flare.train.config import DataConfig, TrainConfig
from flare.train.run import start
from flare.utils.errors import CheckpointError
from tests.factory import darcy_dataset
from tests.pages import ROOT


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return a dataset, a run on it, and a folder with the packed run as its only model, `tiny`."""
    folder = tmp_path_factory.mktemp("packed")
    dataset = darcy_dataset(folder / "darcy")
    sizes = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 4}
    start(TrainConfig(data=DataConfig(path=str(dataset.path)), model=sizes, epochs=1, device="cpu"), folder / "run")
    spec = importlib.util.spec_from_file_location("pack", ROOT / "pretrained" / "pack.py")
    pack = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pack)
    pack.pack(folder / "run", folder / "models" / "tiny")
    return dataset, folder / "run", folder / "models"


def test_a_packed_run_is_loaded_by_name_and_predicts_as_the_run(packed, monkeypatch):
    dataset, run, models = packed
    monkeypatch.setattr("flare.inference.surrogate.pretrained_folder", lambda: models)
    values = dataset[0].values
    inputs = {"points": values["points"], "features": {"coefficient": values["coefficient"]}}
    here, there = (flare.load(name).predict(**inputs)["pressure"] for name in ("tiny", run))
    assert np.array_equal(here, there)
    assert str(run.parent) not in (models / "tiny" / "config.yaml").read_text(), "no path of this machine"


def test_a_name_that_is_not_shipped_is_refused(packed, monkeypatch):
    monkeypatch.setattr("flare.inference.surrogate.pretrained_folder", lambda: packed[2])
    assert pretrained_names() == ["tiny"]
    with pytest.raises(CheckpointError, match="small"):
        flare.load("small")


@pytest.mark.parametrize("name", pretrained_names())
def test_every_shipped_model_has_a_card_and_loads(name):
    assert (pretrained_folder() / name / "README.md").is_file()
    assert flare.load(name).units
