"""Records are found by the definition of a job, complete, and never mistaken for those of others."""

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from flare.reproduce.jobs import Data, Training
from flare.reproduce.ledger import Ledger, Record, address
from flare.utils.errors import DataError

ON = Data("elasticity", 6, 2)


@dataclass(frozen=True)
class Thing:
    facts: dict[str, Any] = field(default_factory=dict)
    label: str = "thing"
    numbers: tuple[str, ...] = ()

    def definition(self):
        return self.facts


def test_equal_jobs_have_one_address_whatever_the_order_of_their_facts():
    assert address(Thing({"a": 1, "b": [2, 3]})) == address(Thing({"b": [2, 3], "a": 1}))
    assert address(Thing({"a": 1})) != address(Thing({"a": 2}))


def test_records_and_arrays_round_trip(tmp_path):
    ledger, job = Ledger(tmp_path), Thing({"a": 1})
    assert ledger.find(job) is None
    arrays = {"values": np.arange(6.0).reshape(2, 3)}
    ledger.write(job, Record("done", {"rel_l2": 0.5}, made={"seconds": 1.0}), arrays)
    found = ledger.find(job)
    assert (found.outcome, found.result["rel_l2"], found.made) == ("done", 0.5, {"seconds": 1.0})
    np.testing.assert_array_equal(ledger.arrays(job)["values"], arrays["values"])
    assert ledger.find(Thing({"a": 2})) is None


def test_the_same_arrays_make_the_same_bytes(tmp_path):
    job, arrays = Thing({"a": 1}), {"values": np.linspace(0, 1, 50)}
    for name in ("one", "two"):
        Ledger(tmp_path / name).write(job, Record("done"), arrays)
    one, two = (Ledger(tmp_path / name).path(job).with_suffix(".npz").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_record_of_another_job_is_refused(tmp_path):
    ledger, job = Ledger(tmp_path), Thing({"a": {"b": 1}})
    ledger.write(job, Record("done"))
    path = ledger.path(job)
    path.write_text(path.read_text().replace('"b": 1', '"b": 7'))
    with pytest.raises(DataError, match=r"a\.b is 7, not 1"):
        ledger.find(job)


@pytest.mark.parametrize("text", ["", "[]", '{"outcome": "done"}'])
def test_a_damaged_record_is_refused(text, tmp_path):
    ledger, job = Ledger(tmp_path), Thing({"a": 1})
    ledger.write(job, Record("done"))
    ledger.path(job).write_text(text)
    with pytest.raises(DataError, match=str(ledger.path(job))):
        ledger.find(job)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outcome": "dnoe"}, "outcome is 'dnoe'"),
        ({"made": None}, "made is None"),
        ({"result": [1]}, r"result is \[1\]"),
        ({"result": {}}, r"result\.rel_l2 is None"),
        ({"result": {"rel_l2": math.nan}}, r"result\.rel_l2 is nan"),
        ({"result": {"rel_l2": "0.1"}}, r"result\.rel_l2 is '0\.1'"),
        ({"result": {"rel_l2": True}}, r"result\.rel_l2 is True"),
        ({"outcome": "unfinished", "result": {}}, "unfinished"),
    ],
)
def test_a_damaged_json_record_is_named_with_a_remedy(change, words, tmp_path):
    ledger, job = Ledger(tmp_path), Training(ON)
    ledger.write(job, Record("done", {"rel_l2": 0.1, "curve": [(1, 0.2)]}, made={"seconds": None}))
    assert ledger.find(job).outcome == "done"
    path = ledger.path(job)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=words) as printed:
        ledger.find(job)
    assert str(path) in str(printed.value)


def test_arrays_that_are_not_those_of_the_record_are_refused(tmp_path):
    ledger, job = Ledger(tmp_path), Thing({"a": 1})
    ledger.write(job, Record("done"), {"values": np.zeros(3)})
    with ledger.path(job).with_suffix(".npz").open("wb") as file:
        np.savez_compressed(file, values=np.ones(3))
    with pytest.raises(DataError, match="checksum"):
        ledger.arrays(job)


def test_settings_that_change_no_result_are_not_part_of_a_run():
    usual = Training(ON)
    for inert in (("device", "cpu"), ("log_every", 3), ("evaluate_every", 1), ("data.workers", 2)):
        assert address(usual.with_settings(inert)) == address(usual), inert


@pytest.mark.parametrize(
    "other",
    [
        Training(ON, "lno"),
        Training(ON, seed=1),
        Training(ON).with_settings(("optim.lr", 2e-3)),
        Training(ON).with_settings(("epochs", 3)),
        Training(ON).with_settings(("data.normalize.points", "gaussian")),
        Training(Data("elasticity", 7, 2)),
        Training(Data("elasticity", 6, 2, {"material": "rubber"})),
        Training(Data("elasticity", 6, 2, published=True)),
        Training(Data("pipe", 6, 2)),
    ],
)
def test_settings_that_change_a_result_are_part_of_a_run(other):
    assert address(other) != address(Training(ON))


def test_a_definition_does_not_depend_on_the_machine():
    assert "path" not in json.dumps(Training(ON).definition())
