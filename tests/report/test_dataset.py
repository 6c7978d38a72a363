"""The page of a dataset: its numbers are the dataset's, and the published ones stand beside them."""

import json

import numpy as np
import pytest

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.landmarks import landmarks
from flare.data.generation.generate import generate
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.physics.darcy import Darcy
from flare.physics.lpbf.dataset import MAX_DISPLACEMENT, MAX_STRESS, MIN_DISPLACEMENT
from flare.report import dataset as dataset_page
from flare.report.dataset import (
    PERCENTILES,
    _histogram,
    gallery,
    histograms,
    landmark_grid,
    number,
    number_histograms,
    sample_grid,
    sample_numbers,
    write_dataset_page,
)
from flare.report.fields import robust_range
from flare.report.style import new_figure
from flare.utils.errors import NotConverged
from tests.factory import elasticity_dataset, ragged_dataset, ragged_sample, ragged_schema


class Fickle(Darcy):
    """Fails for the first draw of sample 1."""

    def sample(self, rng):
        sample = super().sample(rng)
        if rng.bit_generator.seed_seq.entropy == [0, 1]:
            raise NotConverged("it would not")
        return sample


@pytest.fixture(scope="module")
def elasticity(tmp_path_factory):
    return elasticity_dataset(tmp_path_factory.mktemp("e") / "data")


def test_statistics_are_shown_beside_the_published_ones(elasticity):
    page = write_dataset_page(elasticity).read_text()
    mean = landmarks(elasticity)["mean"]
    assert f"{mean:.4g} (published {card('elasticity').published['mean'].value:.4g}" in page
    assert mean == pytest.approx(np.mean([elasticity[i].values["stress"].mean() for i in range(len(elasticity))]))
    assert "residual" in page
    assert "time per sample" in page
    assert elasticity.fingerprint in page
    assert (elasticity.path / "gallery.png").read_bytes().startswith(b"\x89PNG")


def test_a_redrawn_sample_is_counted_with_its_reason(tmp_path):
    dataset = generate(Fickle(resolution=8, stride=1, grid="node"), tmp_path / "d", samples=3, quiet=True)
    page = write_dataset_page(dataset).read_text()
    assert "<dd>1 sample, 1 draw</dd>" in page
    assert "it would not" in page
    assert "differs from the published form" in page
    assert "(published" not in page, "published numbers do not apply to another form"


def test_draws_that_were_not_taken_are_counted_by_their_reasons(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", (5, 7, 6))
    lines = [json.loads(line) for line in (dataset.path / "samples.jsonl").read_text().splitlines()]
    lines[0]["notes"] = {"redrawn": ["filtered: rises 1.2 mm", "filtered: rises 3e+04 mm"], "rejected": {"too thin": 2}}
    lines[2]["notes"] = {"redrawn": ["filtered: rises .5 mm"], "rejected": {"too thin": 1}, "height": 2.5}
    (dataset.path / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_dataset_page(dataset).read_text()
    assert '<th scope="row">filtered: rises</th><td>3</td>' in page
    assert "<dd>2 samples, 3 draws</dd>" in page
    assert '<th scope="row">rejected: too thin</th><td>3</td>' in page


def test_samples_that_differ_are_listed_one_by_one(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", (5, 7, 6))
    grid = sample_grid(dataset, [{"name": "bracket", "groups": 4}, {"family": "tube"}, {}], [0, 1, 2])
    assert list(grid.columns) == ["sample", "what", "points", "groups", "force, N", "heat, W"]
    force = dataset[0].values["force"]
    assert list(grid.rows[0][:4]) == ["0", "bracket", "5", "4"]
    assert grid.rows[0][4] == f"{number(force.min())} … {number(force.max())}"
    assert [row[1] for row in grid.rows] == ["bracket", "tube", ""]
    page = write_dataset_page(dataset).read_text()
    assert "<h2>Samples one by one</h2>" in page
    assert "<details>" not in page
    assert "<details><summary>30 rows" in write_dataset_page(ragged_dataset(tmp_path / "e", range(3, 33))).read_text()


def test_landmarks_of_samples_are_a_table_of_statistics_without_exponents():
    published = card("lpbf").published
    grid = landmark_grid({key: 2 * item.value for key, item in published.items()}, published)
    assert list(grid.columns[2:]) == [
        "mean",
        "spread",
        "smallest",
        "lower quartile",
        "median",
        "upper quartile",
        "largest",
    ]
    rows = {row[0]: (row[2:], below[2:]) for row, below in zip(grid.rows[::2], grid.rows[1::2], strict=True)}
    assert rows["nodes"][0][0] == "41,944"
    assert rows["nodes"][1][0] == "20,972"
    assert rows["largest rise, mm"][1][2] == "0.000485"
    assert rows["largest von Mises stress, MPa"][1][0] == "853"
    assert len(rows) == 7
    assert landmark_grid({"mean": 1.0, "median of the samples' means": 1.0}, {}) is None


def test_filtered_draws_are_explained_by_the_limits_of_the_generator():
    kept = card("lpbf").kept
    limits = f"kept: {MIN_DISPLACEMENT:g} to {MAX_DISPLACEMENT:g} mm"
    assert kept["filtered: the part rises"].startswith(limits)
    assert kept["filtered: the largest von Mises stress is"] == f"kept: up to {MAX_STRESS:g} MPa"


def test_samples_that_differ_in_size_have_histograms_of_their_own(tmp_path):
    dataset = ragged_dataset(tmp_path / "d", (5, 7, 6))
    panels = number_histograms(sample_numbers(dataset, [{"height": 1.0}, {"height": 2.0}, {}], [0, 1, 2])).axes
    titles = [axes.get_title() for axes in panels]
    assert titles[0] == "points"
    assert titles[-1] == "height"
    assert all(sum(bar.get_height() for bar in axes.patches) == pytest.approx(100) for axes in panels)


def test_histograms_of_numbers_have_words_for_titles_and_the_units_of_the_card(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_page, "is_benchmark", lambda schema: True)
    monkeypatch.setattr(dataset_page, "card", lambda name: card("lpbf"))
    dataset = ragged_dataset(tmp_path / "d", (5, 7))
    found = sample_numbers(dataset, [{"peak_temperature": 200.0, "edges": 3}, {"peak_temperature": 210.0}], [0, 1])
    assert {title: unit for title, (unit, _) in found.items() if title in ("peak temperature", "edges")} == {
        "peak temperature": "°C",
        "edges": "",
    }
    (axes,) = number_histograms({"largest von_mises": ("MPa", [1.0, 2.0])}).axes
    assert (axes.get_title(), axes.get_xlabel()) == ("largest von mises", "MPa")


def test_the_gallery_has_a_panel_per_sample_with_one_color_range(elasticity):
    panels = [axes for axes in gallery(elasticity, count=3).axes if axes.get_title().startswith("sample")]
    assert [axes.get_title() for axes in panels] == ["sample 0", "sample 12", "sample 23"]
    assert len({axes.collections[0].get_clim() for axes in panels}) == 1


def test_a_single_corner_does_not_set_the_colors_of_a_gallery(elasticity):
    values = np.linspace(0, 1, 1001, dtype=np.float32)
    assert robust_range(np.append(values, [1e4, np.nan]), PERCENTILES) == pytest.approx((0.02, 0.98), abs=0.01)
    assert robust_range([0.0] * 99 + [5.0], PERCENTILES) == (0.0, 5.0), "of hardly any other value the whole range"
    panel = gallery(elasticity, count=2).axes[0]
    seen = np.concatenate([elasticity[i].values["stress"][:, 0] for i in (0, len(elasticity) - 1)])
    assert panel.collections[0].get_clim() == pytest.approx(np.percentile(seen, PERCENTILES))
    assert "2nd to the 98th percentile" in write_dataset_page(elasticity).read_text()


def test_the_gallery_shows_inputs_above_targets(tmp_path):
    dataset = generate(Darcy(resolution=8, stride=1, grid="node"), tmp_path / "d", samples=3, quiet=True)
    figure = gallery(dataset)
    panels = [axes for axes in figure.axes if axes.get_title().startswith("sample")]
    assert [axes.get_title() for axes in panels] == ["sample 0", "sample 1", "sample 2"] * 2
    assert panels[0].collections[0].get_clim() != panels[3].collections[0].get_clim()


def test_histograms_are_per_cent_of_points(elasticity):
    (axes,) = histograms(elasticity, [0, 1]).axes
    assert sum(bar.get_height() for bar in axes.patches) == pytest.approx(100)


def test_a_users_dataset_has_a_page_without_landmarks(tmp_path):
    page = write_dataset_page(ragged_dataset(tmp_path / "d")).read_text()
    assert "user data" in page
    assert "published" not in page


def alike(path, *, heat, thickness):
    """Two samples with two channels given; the dataset keeps them in single precision."""
    writer = DatasetWriter(path, ragged_schema(), {"kind": "user"})
    for index in range(2):
        sample = ragged_sample(index, 40)
        rng = np.random.default_rng(index)
        given = {"heat": heat * (1 + 1e-7 * rng.random((40, 1))), "thickness": np.full((40, 1), thickness)}
        writer.append(Sample({**sample.values, **given}, sample.cells))
    return writer.finish({"train": [(0, 1)], "test": [(1, 2)]})


@pytest.mark.parametrize(("heat", "thickness"), [(0.1, 0.0), (3e9, 1e-9), (-7.0, 1e30)])
def test_a_channel_that_is_constant_but_for_rounding_is_one_bar(tmp_path, heat, thickness):
    dataset = alike(tmp_path / "d", heat=heat, thickness=thickness)
    assert np.ptp(dataset[0].values["heat"]) > 0, "not quite constant"
    panels = {axes.get_title(): axes for axes in histograms(dataset, [0, 1]).axes}
    for name, value in (("heat", heat), ("thickness", thickness)):
        (bar,) = panels[name].patches
        assert bar.get_height() == pytest.approx(100)
        assert bar.get_x() < value < bar.get_x() + bar.get_width()
    assert len(panels["force.x"].patches) == 60
    assert write_dataset_page(dataset).exists()


def test_a_narrow_range_in_single_precision_has_a_histogram():
    values = np.float32(1) + np.arange(20, dtype=np.float32) * np.float32(2**-23)
    axes = new_figure(2, 2).subplots()
    _histogram(axes, values, 60, "", "", "")
    assert sum(bar.get_height() > 0 for bar in axes.patches) == 20
