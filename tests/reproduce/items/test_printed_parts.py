"""The experiment of printed parts at a tiny size: its records and tables."""

import json
from functools import partial

import numpy as np
import pytest

from flare.data.benchmarks.cards import card
from flare.data.benchmarks.landmarks import landmarks
from flare.data.dataset import Dataset
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.physics.lpbf.dataset import LPBF
from flare.reproduce.items import printed_parts
from flare.reproduce.items.printed_parts import eight_images_error, mean_by_place_errors


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("parts")
    small = {"model.blocks": 1, "model.latents": 4, "data.subsample": 64, "evaluate_every": 1}
    sizes = {"parts": 3, "test": 1, "drafts": 2, "workers": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed_parts, "LPBF", partial(LPBF, layers=60))
        patch.setattr(printed_parts, "SETTINGS", list({**dict(printed_parts.SETTINGS), **small}.items()))
        patch.setattr(printed_parts, "DRAFT_LAYERS", 75)
        patch.setattr(printed_parts, "EPOCHS", dict.fromkeys(printed_parts.EPOCHS, 1))
        first = printed_parts.run(out, **sizes)
        again = printed_parts.run(out, **sizes)
    assert first == again, "a finished experiment is read, not repeated"
    return out, first


@pytest.mark.slow
def test_the_table_has_what_was_measured(ran):
    out, table = ran
    record = json.loads((out / "table.json").read_text())
    networks = record["networks"]
    best = networks["drafts"]["eight_images"]
    mean = networks["coordinates"]["result"]["rel_l2_mean_field"]
    assert f"| training mean: one number, since meshes differ | {mean:.3f} | {mean / best:.2f} |" in table
    assert f"| {record['mean_by_place']:.3f} |" in table
    assert f"| {record['linear_fit']:.3f} | {record['linear_fit'] / best:.2f} |" in table
    for network in networks.values():
        rise = network["result"]["fields"]["displacement"]["rel_l2"]
        assert f"one prediction per part | {rise:.3f} |" in table
        assert f"seven mirror images | {network['eight_images']:.3f} |" in table
    parameters = [network["result"]["parameters"] for network in networks.values()]
    assert parameters == sorted(set(parameters)), "each is told more than the one before"


@pytest.mark.slow
def test_no_network_trains_with_a_part_of_the_test(ran):
    out, _ = ran
    data, drafts, joined = (Dataset(out / name) for name in ("data", "draft-data", "joined"))
    assert len(joined.split("train")) == len(data.split("train")) + len(drafts)
    tested = [joined[int(i)].values["points"].tobytes() for i in joined.split("test")]
    assert tested == [data[int(i)].values["points"].tobytes() for i in data.split("test")]
    trained = {joined[int(i)].values["points"].tobytes() for i in joined.split("train")}
    assert trained.isdisjoint(tested)


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


@pytest.mark.slow
def test_statistics_stand_beside_the_published_ones(ran):
    out, table = ran
    found = landmarks(Dataset(out / "data"))
    assert f"{found['median of largest rise']:.3g} (0.271)" in table
    assert f"{found['median of nodes']:,.0f} (19,743)" in table
    assert "\n| nodes | " in table
    assert all(f"\n| {label} | " in table for label in ("height, mm", "largest rise, mm"))
