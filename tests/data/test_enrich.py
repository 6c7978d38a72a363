"""A dataset with more inputs: the same samples, the same splits, and it says so."""

from __future__ import annotations

import numpy as np
import pytest

from flare.cli import main
from flare.data.cards import card
from flare.data.enrich import with_surroundings
from flare.data.sample import Sample
from flare.data.store import Dataset
from flare.data.writer import DatasetWriter
from flare.errors import DataError
from flare.mesh.octree import merged
from flare.mesh.surroundings import FIELDS
from flare.mesh.voxels import Voxels


def parts(path, count=3):
    writer = DatasetWriter(path, card("lpbf").schema(), {"kind": "recreated", "departures": {"layers": 30}})
    rng = np.random.default_rng(0)
    for n in range(count):
        mesh = merged(Voxels(np.ones((4 + n, 3, 3), dtype=bool), (0.6, 0.6, 0.6), (0.0, 0.0, 0.0)), levels=0)
        nodes = len(mesh.points)
        values = {
            "points": mesh.points,
            "displacement": rng.random((nodes, 1)),
            "lateral_displacement": rng.random((nodes, 2)),
            "von_mises": rng.random((nodes, 1)),
        }
        writer.append(Sample(values, mesh.hexahedra, {"name": f"part {n}"}))
    return writer.finish({"train": [(0, count - 1)], "test": [(count - 1, count)]})


def test_everything_of_before_is_there_and_what_is_around_each_node(tmp_path):
    data = parts(tmp_path / "d")
    made = with_surroundings(data, tmp_path / "e", quiet=True)
    assert made.about["splits"] == data.about["splits"]
    assert made.notes() == data.notes()
    assert set(made.schema.named("feature")) == set(FIELDS)
    assert made.schema.in_dim == data.schema.in_dim + len(FIELDS)
    assert made.about["provenance"]["departures"].keys() == {"layers", "inputs"}
    for index in range(len(data)):
        for name in data.schema.fields:
            np.testing.assert_array_equal(made[index].values[name], data[index].values[name])
        np.testing.assert_array_equal(made[index].cells, data[index].cells)
    points = made[0].values["points"]
    np.testing.assert_allclose(made[0].values["below"][points[:, 2] == points[:, 2].max()], 1.8, rtol=1e-5)


def test_a_stopped_one_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    from flare.data import enrich

    data = parts(tmp_path / "d")
    whole = with_surroundings(data, tmp_path / "e", quiet=True)
    calls = []

    def stops(points, hexahedra):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(points, hexahedra)

    honest = enrich.surroundings
    monkeypatch.setattr(enrich, "surroundings", stops)
    with pytest.raises(KeyboardInterrupt):
        with_surroundings(data, tmp_path / "f", quiet=True)
    assert not (tmp_path / "f").exists()
    assert with_surroundings(data, tmp_path / "f", quiet=True).fingerprint == whole.fingerprint
    assert len(calls) == 4, "the first sample is not done again"


def test_twice_is_refused_and_so_are_datasets_without_hexahedra(tmp_path, capsys):
    made = with_surroundings(parts(tmp_path / "d"), tmp_path / "e", quiet=True)
    with pytest.raises(DataError, match="already"):
        with_surroundings(made, tmp_path / "f")
    plain = DatasetWriter(tmp_path / "p", card("darcy").schema(), {"kind": "user"})
    count = np.prod(card("darcy").schema().grid)
    plain.append(Sample({n: np.ones((count, len(f.components))) for n, f in plain.schema.fields.items()}))
    plain.finish({"train": [(0, 1)]})
    assert main(["data", "enrich", str(tmp_path / "p"), "--out", str(tmp_path / "g")]) == 2
    assert "has no hexahedra" in capsys.readouterr().err


def test_the_command_tells_what_was_added(tmp_path, capsys):
    data = parts(tmp_path / "d")
    assert main(["data", "enrich", str(data.path), "--out", str(tmp_path / "e")]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in FIELDS)
    assert len(Dataset(tmp_path / "e")) == 3
