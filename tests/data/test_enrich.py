"""Derived datasets: same samples and splits, recorded departures, resuming."""

from __future__ import annotations

import numpy as np
import pytest

from flare.cli import main
from flare.data.benchmarks.cards import card
from flare.data.dataset import Dataset
from flare.data.enrich import add_surroundings, join_datasets
from flare.data.sample import Sample
from flare.data.surroundings import FIELDS
from flare.data.writer import DatasetWriter
from flare.mesh.octree import merged
from flare.mesh.voxels import Voxels
from flare.utils.errors import DataError


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


def test_features_are_added_and_everything_else_is_kept(tmp_path):
    data = parts(tmp_path / "d")
    made = add_surroundings(data, tmp_path / "e", quiet=True)
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


def test_extra_fields_become_targets(tmp_path):
    made = add_surroundings(parts(tmp_path / "d"), tmp_path / "e", targets=["von_mises"], quiet=True)
    assert made.schema.named("target") == ["displacement", "von_mises"]
    assert made.schema.named("extra") == ["lateral_displacement"]
    assert "von_mises" in made.about["provenance"]["departures"]["targets"]
    with pytest.raises(DataError, match=r"'von_mise'.*'von_mises'"):
        add_surroundings(parts(tmp_path / "f"), tmp_path / "g", targets=["von_mise"], quiet=True)


def test_joined_datasets_have_all_samples_and_a_source(tmp_path):
    a, b = parts(tmp_path / "a", count=3), parts(tmp_path / "b", count=2)
    both = join_datasets([a, b], tmp_path / "both", quiet=True)
    assert both.split("train").tolist() == [0, 1, 3]
    assert both.split("test").tolist() == [2, 4]
    assert [both[n].values["source"].item() for n in range(5)] == [0, 0, 0, 1, 1]
    assert both.schema.named("parameter") == ["source"]
    for n, (of, index) in enumerate([(a, 0), (a, 1), (a, 2), (b, 0), (b, 1)]):
        np.testing.assert_array_equal(both[n].values["displacement"], of[index].values["displacement"])
        np.testing.assert_array_equal(both[n].cells, of[index].cells)
    assert join_datasets([a, b], tmp_path / "both", quiet=True).fingerprint == both.fingerprint, "made once"
    with pytest.raises(DataError, match="both"):
        join_datasets([b, a], tmp_path / "both", quiet=True)
    with pytest.raises(DataError, match=str(tmp_path / "c")):
        join_datasets([a, add_surroundings(b, tmp_path / "c", quiet=True)], tmp_path / "no", quiet=True)


def test_a_stopped_job_resumes_and_ends_with_the_same_bytes(tmp_path, monkeypatch):
    from flare.data import enrich

    data = parts(tmp_path / "d")
    whole = add_surroundings(data, tmp_path / "e", quiet=True)
    calls = []

    def stops(points, hexahedra):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return honest(points, hexahedra)

    honest = enrich.surroundings
    monkeypatch.setattr(enrich, "surroundings", stops)
    with pytest.raises(KeyboardInterrupt):
        add_surroundings(data, tmp_path / "f", quiet=True)
    assert not (tmp_path / "f").exists()
    assert add_surroundings(data, tmp_path / "f", quiet=True).fingerprint == whole.fingerprint
    assert len(calls) == 4, "the first sample is not done again"


def test_enriched_datasets_and_datasets_without_hexahedra_are_refused(tmp_path, capsys):
    made = add_surroundings(parts(tmp_path / "d"), tmp_path / "e", quiet=True)
    with pytest.raises(DataError, match=str(made.path)):
        add_surroundings(made, tmp_path / "f")
    plain = DatasetWriter(tmp_path / "p", card("darcy").schema(), {"kind": "user"})
    count = np.prod(card("darcy").schema().grid)
    plain.append(Sample({n: np.ones((count, len(f.components))) for n, f in plain.schema.fields.items()}))
    plain.finish({"train": [(0, 1)]})
    assert main(["data", "enrich", str(tmp_path / "p"), "--out", str(tmp_path / "g")]) == 2
    assert str(tmp_path / "p") in capsys.readouterr().err


def test_the_commands(tmp_path, capsys):
    data = parts(tmp_path / "d")
    assert main(["data", "enrich", str(data.path), "--out", str(tmp_path / "e")]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in FIELDS)
    assert len(Dataset(tmp_path / "e")) == 3
    assert main(["data", "join", str(data.path), str(data.path), "--out", str(tmp_path / "j")]) == 0
    assert "train  4 samples" in capsys.readouterr().out
