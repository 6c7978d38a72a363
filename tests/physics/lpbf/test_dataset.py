"""The LPBF dataset: samples are the simulation at the nodes of the merged mesh; filtered ones are counted."""

import json
import shutil

import numpy as np
import pytest

from flare.data.generation.generate import generate
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.mesh.voxels import skin
from flare.physics.lpbf import dataset as module
from flare.physics.lpbf import process_preset, simulate
from flare.physics.lpbf.dataset import BENCHMARK_STRAIN, LPBF, STEPS
from flare.physics.lpbf.parts import draw_part
from flare.reproduce.items.printed_parts import linear_fit_error
from flare.utils.errors import ConfigError, DataError, Exhausted
from tests.factory import content

COARSE = {"layers": 60}
"""Voxels of 2.4 mm, for a part in a second."""
SMALL = 15
"""Seed of small parts."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lpbf") / "d"
    return generate(LPBF(**COARSE), folder, samples=2, test_samples=1, seed=SMALL, quiet=True)


def test_the_provenance_has_every_number_of_the_process(made):
    process = made.about["provenance"]["process"]
    assert process["material"]["inherent_strain"] == [BENCHMARK_STRAIN, BENCHMARK_STRAIN, 0.0]
    assert process["machine"]["power"] == 200.0
    assert process["layers_per_voxel"] == 60
    assert made.about["provenance"]["options"]["inherent_strain"] is None


def test_an_old_dataset_without_the_process_is_recognized(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "d")
    about = json.loads((tmp_path / "d" / "dataset.json").read_text())
    del about["provenance"]["process"]
    (tmp_path / "d" / "dataset.json").write_text(json.dumps(about))
    found = generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, seed=SMALL, quiet=True)
    assert found.fingerprint == made.fingerprint
    with pytest.raises(DataError, match="layers is 60 there, 30 here"):
        generate(LPBF(layers=30), tmp_path / "d", samples=2, test_samples=1, seed=SMALL, quiet=True)


@pytest.mark.slow
def test_an_unfinished_old_dataset_without_the_process_is_resumed(made, tmp_path):
    before = {key: value for key, value in made.about["provenance"].items() if key not in ("process", "redrawn")}
    writer = DatasetWriter(tmp_path / "d", made.schema, before)
    writer.append(Sample(made[0].values, made[0].cells, made.notes()[0]))
    writer.close()
    generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, seed=SMALL, quiet=True)
    assert content(tmp_path / "d") == content(made.path)


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(made, tmp_path):
    generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, seed=SMALL, workers=2, quiet=True)
    assert content(tmp_path / "d") == content(made.path)


@pytest.mark.slow
def test_parts_beyond_the_limits_are_redrawn_and_counted(monkeypatch, made, tmp_path):
    rise = [made[i].values["displacement"].max() for i in range(len(made))]
    monkeypatch.setattr(module, "MAX_DISPLACEMENT", float(np.median(rise)))
    dataset = generate(LPBF(**COARSE), tmp_path / "d", samples=3, quiet=True)
    assert all(dataset[i].values["displacement"].max() <= np.median(rise) * (1 + 1e-6) for i in range(3))
    notes = [json.loads(line)["notes"] for line in (dataset.path / "samples.jsonl").read_text().splitlines()]
    assert any("filtered: the part rises" in reason for note in notes for reason in note.get("redrawn", []))
    assert dataset.about["provenance"]["redrawn"] >= 1


@pytest.mark.parametrize(
    ("process", "layers", "high"), [("ti64-am250", 15, 0.6), ("ti64-am250", 16, 0.6), ("in625", 15, 0.64)]
)
def test_voxels_fill_the_layer_groups_of_any_process(process, layers, high):
    chosen = LPBF(process=process, layers=layers)._process
    assert chosen.voxel_height == pytest.approx(high)
    assert chosen.group_height == pytest.approx(process_preset(process).group_height)


def test_a_part_of_a_folder_is_in_one_sample_at_most(tmp_path):
    for name in range(7):
        (tmp_path / f"{name}.stl").write_bytes(b"solid")
    folder, samples = LPBF(parts=str(tmp_path)), 3
    chosen = [folder.choose(seed=0, index=i, draw=k, samples=samples).part for i in range(samples) for k in (0, 1)]
    assert len(set(chosen)) == 6
    assert chosen != [folder.choose(seed=1, index=i, draw=k, samples=samples).part for i in range(3) for k in (0, 1)]
    with pytest.raises(Exhausted):
        folder.choose(seed=0, index=1, draw=2, samples=samples)


def test_a_linear_field_is_fitted_exactly_and_a_printed_part_is_not(made, tmp_path):
    writer = DatasetWriter(tmp_path / "d", made.schema, {"kind": "user"})
    for straight in (False, True):
        values = dict(made[0].values)
        if straight:
            values["displacement"] = values["points"] @ np.array([[1.0], [2.0], [-3.0]]) + 4.0
        writer.append(Sample(values, made[0].cells))
    both = writer.finish({"train": [(0, 2)]})
    assert linear_fit_error(both, 0) > 0.05
    assert linear_fit_error(both, 1) < 1e-6


@pytest.mark.parametrize("bad", [{"process": "steel"}, {"layers": 0}, {"inherent_strain": 5.0}, {"tolerance": 0.0}])
def test_invalid_options_raise(bad):
    with pytest.raises(ConfigError, match=str(next(iter(bad)))):
        LPBF(**bad)


def test_a_sample_is_the_simulation_at_its_nodes_and_its_history_ends_with_the_released_part():
    drawn = draw_part(np.random.default_rng(SMALL), layers=60)
    process = process_preset("ti64-am250").with_inherent_strain(BENCHMARK_STRAIN)
    result = simulate(drawn.voxels, process, keep_frames=False)
    sample = LPBF(**COARSE, history=True).sample(np.random.default_rng(SMALL))
    values, groups = sample.values, sample.notes["groups"]
    where = {tuple(p): i for i, p in enumerate(np.round(result.positions, 6))}
    rows = [where[tuple(p)] for p in np.round(drawn.mesh.points, 6)]
    released = result.released.displacement[rows]
    np.testing.assert_array_equal(values["points"], drawn.mesh.points)
    np.testing.assert_array_equal(values["displacement"], released[:, 2:])
    np.testing.assert_array_equal(values["lateral_displacement"], released[:, :2])
    np.testing.assert_array_equal(values["displacement_history"][:, -3:], released)
    np.testing.assert_array_equal(values["von_mises"][:, 0], result.released.von_mises[rows])
    np.testing.assert_array_equal(values["von_mises_history"][:, -1], result.released.von_mises[rows])
    np.testing.assert_array_equal(sample.cells, drawn.mesh.hexahedra)
    assert groups == len(result.interference)
    born, height = values["first_group"][:, 0], values["points"][:, 2]
    assert set(born) == set(range(1, groups + 1))
    assert all(height[born == g].min() >= height[born == g - 1].max() - 1e-9 for g in range(2, int(born.max()) + 1))
    assert values["temperature_history"].shape == (len(values["points"]), STEPS)
    assert (values["temperature_history"][born > 1, 0] == 0).all(), "not there yet"
    assert (values["temperature_history"][born == 1, 0] > 25).all()
    np.testing.assert_allclose(values["temperature_history"][:, -2:], 25)


def test_parts_of_a_folder(tmp_path):
    (tmp_path / "parts").mkdir()
    skin(draw_part(np.random.default_rng(SMALL), layers=60).voxels).to_mesh().save(tmp_path / "parts" / "one.stl")
    (tmp_path / "parts" / "bad.stl").write_bytes(b"solid nothing")
    generator = LPBF(parts=str(tmp_path / "parts"), **COARSE)
    (note,) = generate(generator, tmp_path / "d", samples=1, quiet=True).notes()
    assert note["name"] == "one"
    with pytest.raises(DataError, match="nowhere"):
        LPBF(parts=str(tmp_path / "d" / "nowhere"))
