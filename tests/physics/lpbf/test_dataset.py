"""The LPBF dataset: samples are the simulation at the nodes of the merged mesh; filtered ones are counted."""

import html
import json
import shutil

import numpy as np
import pytest

from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.generation.generate import generate
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.mesh.voxels import skin
from flare.physics.lpbf import dataset as module
from flare.physics.lpbf import process_preset, simulate
from flare.physics.lpbf.dataset import BENCHMARK_STRAIN, LPBF, STEPS
from flare.physics.lpbf.parts import draw_part
from flare.report.dataset import gallery, write_dataset_page
from flare.reproduce.items.printed_parts import linear_fit_error
from flare.utils.errors import ConfigError, DataError, Exhausted, NotConverged
from tests.factory import content

COARSE = {"layers": 60}
"""Voxels of 2.4 mm, for a part in a second."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return generate(LPBF(**COARSE), tmp_path_factory.mktemp("lpbf") / "d", samples=2, test_samples=1, quiet=True)


def test_a_sample_is_the_simulation_at_its_nodes():
    seed = 0
    while True:
        try:
            sample = LPBF(**COARSE).sample(np.random.default_rng(seed))
            break
        except NotConverged:
            seed += 1
    drawn = draw_part(np.random.default_rng(seed), layers=60)
    process = process_preset("ti64-am250").with_inherent_strain(BENCHMARK_STRAIN)
    result = simulate(drawn.voxels, process, keep_frames=False)
    where = {tuple(p): i for i, p in enumerate(np.round(result.positions, 6))}
    rows = [where[tuple(p)] for p in np.round(drawn.mesh.points, 6)]
    np.testing.assert_array_equal(sample.values["points"], drawn.mesh.points)
    np.testing.assert_array_equal(sample.values["displacement"][:, 0], result.released.displacement[rows, 2])
    np.testing.assert_array_equal(sample.values["lateral_displacement"], result.released.displacement[rows, :2])
    np.testing.assert_array_equal(sample.values["von_mises"][:, 0], result.released.von_mises[rows])
    np.testing.assert_array_equal(sample.cells, drawn.mesh.hexahedra)
    assert sample.notes["groups"] == len(result.interference)


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
    found = generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, quiet=True)
    assert found.fingerprint == made.fingerprint
    with pytest.raises(DataError, match="layers is 60 there, 30 here"):
        generate(LPBF(layers=30), tmp_path / "d", samples=2, test_samples=1, quiet=True)


@pytest.mark.slow
def test_an_unfinished_old_dataset_without_the_process_is_resumed(made, tmp_path):
    before = {key: value for key, value in made.about["provenance"].items() if key not in ("process", "redrawn")}
    writer = DatasetWriter(tmp_path / "d", made.schema, before)
    writer.append(Sample(made[0].values, made[0].cells, made.notes()[0]))
    writer.close()
    generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, quiet=True)
    assert content(tmp_path / "d") == content(made.path)


def test_the_gallery_shows_surfaces_with_a_color_bar(made):
    figure = gallery(made)
    panels = [axes for axes in figure.axes if axes.get_title().startswith("sample")]
    assert len(panels) == len(made)
    assert all(axes.name != "3d" and len(axes.collections[0].get_paths()) > 50 for axes in panels)
    assert panels[-1].child_axes[0].get_ylabel() == "displacement, mm"


def test_the_page_of_parts_has_their_landmarks_and_every_part(made, tmp_path):
    shutil.copytree(made.path, tmp_path / "d")
    page = write_dataset_page(Dataset(tmp_path / "d")).read_text()
    assert "<h2>Samples one by one</h2>" in page
    assert "inherent_strain:" in page
    assert "largest von Mises stress, MPa" in page
    for note in made.notes():
        assert html.escape(note["description"]) in page


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(made, tmp_path):
    generate(LPBF(**COARSE), tmp_path / "d", samples=2, test_samples=1, workers=2, quiet=True)
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


def test_the_history_ends_with_the_released_part():
    rng = [np.random.default_rng(1) for _ in range(2)]
    plain, whole = LPBF(**COARSE).sample(rng[0]), LPBF(**COARSE, history=True).sample(rng[1])
    released = np.hstack([plain.values["lateral_displacement"], plain.values["displacement"]])
    np.testing.assert_array_equal(whole.values["displacement_history"][:, -3:], released)
    born = whole.values["first_group"][:, 0]
    assert set(born) == set(range(1, plain.notes["groups"] + 1))
    height = plain.values["points"][:, 2]
    assert all(height[born == g].min() >= height[born == g - 1].max() - 1e-9 for g in range(2, int(born.max()) + 1))
    np.testing.assert_array_equal(whole.values["von_mises_history"][:, -1], plain.values["von_mises"][:, 0])
    assert whole.values["temperature_history"].shape == (len(plain.values["points"]), STEPS)
    groups, top = plain.notes["groups"], plain.values["points"][:, 2] > 2.4 + 1e-6
    if groups > 1:
        assert (whole.values["temperature_history"][top, 0] == 0).all(), "not there yet"
        assert (whole.values["temperature_history"][~top, 0] > 25).all()
    np.testing.assert_allclose(whole.values["temperature_history"][:, -2:], 25)


@pytest.mark.parametrize(
    ("process", "layers", "high"), [("ti64-am250", 15, 0.6), ("ti64-am250", 16, 0.6), ("in625", 15, 0.64)]
)
def test_voxels_fill_the_layer_groups_of_any_process(process, layers, high):
    chosen = LPBF(process=process, layers=layers)._process
    assert chosen.voxel_height == pytest.approx(high)
    assert chosen.group_height == pytest.approx(process_preset(process).group_height)


def test_parts_of_a_folder(tmp_path):
    (tmp_path / "parts").mkdir()
    surface = skin(draw_part(np.random.default_rng(5), layers=60).voxels)
    surface.to_mesh().save(tmp_path / "parts" / "one.stl")
    (tmp_path / "parts" / "bad.stl").write_bytes(b"solid nothing")
    generator = LPBF(parts=str(tmp_path / "parts"), **COARSE)
    (note,) = generate(generator, tmp_path / "d", samples=1, quiet=True).notes()
    assert note["name"] == "one"
    with pytest.raises(DataError, match=str(tmp_path / "parts")):
        generate(generator, tmp_path / "more", samples=2, quiet=True)
    with pytest.raises(DataError, match="nowhere"):
        LPBF(parts=str(tmp_path / "d" / "nowhere"))


def test_a_part_of_a_folder_is_in_one_sample_at_most(tmp_path):
    for name in range(7):
        (tmp_path / f"{name}.stl").write_bytes(b"solid")
    folder, samples = LPBF(parts=str(tmp_path)), 3
    chosen = [folder.choose(seed=0, index=i, draw=k, samples=samples).part for i in range(samples) for k in (0, 1)]
    assert len(set(chosen)) == 6
    assert chosen != [folder.choose(seed=1, index=i, draw=k, samples=samples).part for i in range(3) for k in (0, 1)]
    with pytest.raises(Exhausted):
        folder.choose(seed=0, index=1, draw=2, samples=samples)


def test_landmarks_are_those_of_the_parts(made):
    found = landmarks(made)
    assert found["median of nodes"] == np.median(made.sizes)
    assert found["mean of largest rise"] == pytest.approx(
        np.mean([made[i].values["displacement"].max() for i in range(len(made))])
    )
    notes = [json.loads(line)["notes"] for line in (made.path / "samples.jsonl").read_text().splitlines()]
    assert found["mean of edges"] == np.mean([note["edges"] for note in notes])
    assert found["mean of aspect ratio"] == pytest.approx(np.mean([note["aspect_ratio"] for note in notes]), rel=1e-5)
    assert found["mean of height"] == pytest.approx(np.mean([note["height"] for note in notes]), rel=1e-5)


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


@pytest.mark.parametrize(
    "bad", [{"process": "steel"}, {"layers": 0}, {"inherent_strain": 5.0}, {"mode": "magic"}, {"tolerance": 0.0}]
)
def test_invalid_options_raise(bad):
    with pytest.raises(ConfigError, match=str(next(iter(bad)))):
        LPBF(**bad)
