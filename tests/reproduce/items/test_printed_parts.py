"""Printed parts: datasets of the networks, and trivial baselines."""

from dataclasses import replace

import numpy as np
import pytest

from flare.data.benchmarks.cards import card
from flare.data.dataset import Dataset
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.reproduce.items import printed_parts
from flare.reproduce.items.printed_parts import EnrichedParts, eight_images_error, mean_by_place_errors
from flare.reproduce.jobs import Data


@pytest.mark.slow
def test_no_network_trains_with_a_part_of_the_test(tmp_path, monkeypatch):
    """The drafts are other parts, and the test has the same parts for all networks."""
    monkeypatch.setattr(printed_parts, "COARSER", 1.25)
    plain = EnrichedParts("lpbf", 2, 1, {"layers": 60})
    parts, fine, joined = (tmp_path / name for name in (Data("lpbf", 2, 1, {"layers": 60}).folder, "fine", "joined"))
    plain.make(fine, tmp_path)
    replace(plain, drafts=1).make(joined, tmp_path)
    both, few = Dataset(joined), Dataset(parts)
    assert len(both.split("train")) == len(few.split("train")) + 1
    shapes = {name: {both[int(i)].values["points"].tobytes() for i in both.split(name)} for name in ("train", "test")}
    assert shapes["test"] == {few[int(i)].values["points"].tobytes() for i in few.split("test")}
    assert shapes["train"].isdisjoint(shapes["test"])
    inputs = [len(Dataset(folder).schema.named("feature")) for folder in (parts, fine)]
    assert inputs[0] < inputs[1]


def test_errors_that_mirror_images_do_not_share_vanish_in_their_mean(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform((-30, -30, 0), (30, 30, 60), (50, 3)).astype(np.float32)
    rise = (points[:, :2] ** 2).sum(1, keepdims=True)
    writer = DatasetWriter(tmp_path / "d", card("lpbf").schema(), {"kind": "user"})
    values = {"points": points, "displacement": rise, "lateral_displacement": points[:, :2], "von_mises": rise}
    writer.append(Sample(values, cells=np.arange(8)[None]))

    class Crooked:
        """The truth, tilted: more in x than in y."""

        def predict_sample(self, sample):
            x, y, _ = sample.values["points"].T
            return {"displacement": 1.5 * x**2 + 0.5 * y**2 + 3 * x}

    assert eight_images_error(Crooked(), writer.finish({"test": [(0, 1)]}), 0) < 1e-6


def test_the_mean_by_place_is_exact_for_a_field_of_the_place_alone(tmp_path):
    rng, schema = np.random.default_rng(0), card("lpbf").schema()
    writer = DatasetWriter(tmp_path / "d", schema, {"kind": "user"})
    for count in (400, 300, 200):
        points = rng.uniform((-30, -30, 0), (30, 30, 60), (count, 3)).round(3)
        rise = 1.0 + (points[:, :1] > 0)  # constant within every box
        values = {"points": points, "displacement": rise, "lateral_displacement": points[:, :2], "von_mises": rise}
        writer.append(Sample(values, cells=np.arange(8)[None]))
    dataset = writer.finish({"train": [(0, 2)], "test": [(2, 3)]})
    (exact,) = mean_by_place_errors(dataset, [0, 1], [2], boxes=2)
    (rough,) = mean_by_place_errors(dataset, [0, 1], [2], boxes=1)
    assert exact == pytest.approx(0, abs=1e-7)
    assert 0.2 < rough < 0.5
