"""The experiment of printed parts at a tiny size: what it keeps and what its tables say."""

import json
from functools import partial

import pytest

from flare.data.landmarks import landmarks
from flare.data.store import Dataset
from flare.experiments import printed_parts
from flare.physics.lpbf.dataset import LPBF


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    out = tmp_path_factory.mktemp("parts")
    small = {"model.blocks": 1, "model.latents": 4, "data.subsample": 64, "epochs": 1, "evaluate_every": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(printed_parts, "LPBF", partial(LPBF, layers=60))
        patch.setattr(printed_parts, "SETTINGS", list({**dict(printed_parts.SETTINGS), **small}.items()))
        first = printed_parts.run(out, parts=3, test=1, workers=1, tell=lambda text: None)
        again = printed_parts.run(out, parts=3, test=1, workers=1, tell=lambda text: None)
    assert first == again, "a finished experiment is read, not repeated"
    return out, first


def test_the_table_has_what_was_measured(ran):
    out, table = ran
    record = json.loads((out / "table.json").read_text())
    ours, mean = record["result"]["rel_l2"], record["result"]["rel_l2_mean_field"]
    assert f"| training-mean field | {mean:.3f} | {mean / ours:.1f}× |" in table
    assert f"| {record['linear_fit']:.3f} | {record['linear_fit'] / ours:.1f}× |" in table


def test_statistics_stand_beside_the_published_ones(ran):
    out, table = ran
    found = landmarks(Dataset(out / "data"))
    assert f"{found['median of largest rise']:.3g} (0.271)" in table
    assert f"{found['median of nodes']:,.0f} (19,743)" in table
