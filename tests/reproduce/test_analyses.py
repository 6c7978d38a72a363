"""Analyses keep the fingerprint of their data, and studies resume from their finished rows."""

import pytest

from flare.reproduce.analyses import Experiment, MedianSample, TrainedSpectra
from flare.reproduce.items import scaling
from flare.reproduce.jobs import Data, Training, Workspace
from flare.reproduce.ledger import Ledger
from flare.reproduce.sweep import sweep
from flare.train.signals import Interrupted
from tests.reproduce.items.test_layer_costs import lawful

TINY = (
    *(("model.channels", 8), ("model.blocks", 1), ("model.heads", 2), ("model.latents", 4)),
    *(("model.kv_depth", 0), ("model.ffn_depth", 0), ("epochs", 1), ("device", "cpu")),
)


def test_an_analysis_of_a_model_keeps_the_fingerprint_of_its_data(tmp_path):
    training, ledger = Training(Data("elasticity", 6, 2), overrides=TINY), Ledger(tmp_path / "records")
    looks = [TrainedSpectra(training, 1), MedianSample(training)]
    sweep([training, *looks], ledger, Workspace(tmp_path / "work"))
    trained_on = ledger.find(training).result["data_fingerprint"]
    assert [ledger.find(job).result["data_fingerprint"] for job in looks] == [trained_on] * 2


def test_a_stopped_study_measures_the_missing_rows_and_has_no_time(tmp_path, monkeypatch):
    seen = []

    def measure(function, name, points, *how):
        if len(seen) == 3:
            seen.append("stopped")
            raise Interrupted(2)
        seen.append((name, points))
        return lawful(name, points)

    monkeypatch.setattr(scaling, "run_isolated", measure)
    job = Experiment("scaling", {"points": (1000, 2000), "latents": (4,)}, 1.0)
    ledger, workspace = Ledger(tmp_path / "records"), Workspace(tmp_path)
    with pytest.raises(Interrupted):
        sweep([job], ledger, workspace)
    assert ledger.find(job) is None
    sweep([job], ledger, workspace)
    record = ledger.find(job)
    assert [(row["layer"], row["points"]) for row in record.result["rows"]] == [s for s in seen if s != "stopped"]
    assert record.made["seconds"] is None
    assert record.made["peak_memory_mb"] == 2
