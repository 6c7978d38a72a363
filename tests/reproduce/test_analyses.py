"""Analyses keep the fingerprint of their data, and experiments the time of all their calls."""

import json

import pytest

from flare.reproduce.analyses import Experiment, MedianSample, TrainedSpectra
from flare.reproduce.items import scaling
from flare.reproduce.jobs import Data, Training, Workspace
from flare.reproduce.ledger import Ledger
from flare.reproduce.sweep import sweep
from flare.train.signals import Interrupted

TINY = (
    *(("model.channels", 8), ("model.blocks", 1), ("model.heads", 2), ("model.latents", 4)),
    *(("model.kv_depth", 0), ("model.ffn_depth", 0), ("epochs", 1), ("device", "cpu")),
)
STUDY = Experiment("scaling", {}, 1.0)


def test_a_look_at_a_trained_model_keeps_the_fingerprint_of_its_data(tmp_path):
    training, ledger = Training(Data("elasticity", 6, 2), overrides=TINY), Ledger(tmp_path / "records")
    looks = [TrainedSpectra(training, 1), MedianSample(training)]
    sweep([training, *looks], ledger, Workspace(tmp_path / "work"))
    trained_on = ledger.find(training).result["data_fingerprint"]
    assert [ledger.find(job).result["data_fingerprint"] for job in looks] == [trained_on] * 2


def study(folder, monkeypatch, *, stop=False):
    """One call of a study that measures nothing; the seconds of its record, None where it is stopped."""

    def run(out, **_):
        (out / "scaling.json").write_text(json.dumps({"rows": []}))
        if stop:
            raise Interrupted(2)

    monkeypatch.setattr(scaling, "run", run)
    ledger = Ledger(folder / "records")
    sweep([STUDY], ledger, Workspace(folder))
    return ledger.find(STUDY).made["seconds"]


def test_an_experiment_keeps_the_time_of_all_its_calls(tmp_path, monkeypatch):
    with pytest.raises(Interrupted):
        study(tmp_path, monkeypatch, stop=True)
    calls = Workspace(tmp_path).run(STUDY) / "calls.json"
    assert len(json.loads(calls.read_text())["seconds"]) == 1
    calls.write_text('{"seconds": [100.0]}')
    assert 100 <= study(tmp_path, monkeypatch) < 110


@pytest.mark.parametrize("calls", [None, '{"seconds": [100.0, null]}'])
def test_a_call_that_was_killed_or_came_before_leaves_the_time_unknown(calls, tmp_path, monkeypatch):
    folder = Workspace(tmp_path).run(STUDY)
    folder.mkdir(parents=True)
    (folder / "scaling.json").write_text(json.dumps({"rows": []}))
    if calls is not None:
        (folder / "calls.json").write_text(calls)
    assert study(tmp_path, monkeypatch) is None
