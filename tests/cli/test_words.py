"""Numbers in words that say something."""

import numpy as np
import pytest

from flare.cli import main
from flare.cli.words import verdict
from flare.surrogate import Surrogate
from tests.factory import ragged_dataset, saved_run
from tests.test_prediction import POINTS, TRIANGLES, made, table


@pytest.mark.parametrize(
    ("error", "baseline", "said"),
    [
        (0.1, 0.35, "ours is 3.5 times better"),
        (0.98, 1.0, "ours is 2.0% better"),
        (1.02, 1.0, "ours is WORSE by 2.0%"),
        (1.0, 1.0, "ours is WORSE by 0.0%"),
        (1.5, 1.0, "ours is WORSE, 1.5 times its error"),
        (0.0, 1.0, "ours is exact"),
    ],
)
def test_a_ratio_near_one_is_a_percentage(error, baseline, said):
    assert verdict(error, baseline) == said


def test_one_sample_is_one(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "data", sizes=[9, 9], test=1)
    page = str(tmp_path / "page.html")
    assert main(["view", str(dataset.path), "--only", "1", "--out", page]) == 0
    model = {"name": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4}
    run = str(saved_run(Surrogate(model, dataset.schema), tmp_path / "run"))
    assert main(["predict", run, str(dataset.path), "--split", "test", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert f"{page}: 1 sample, " in said
    assert "out: 1 sample predicted" in said


def test_a_table_for_a_model_at_cell_centres_has_points(tmp_path, capsys):
    run = str(saved_run(made(2, points="cell_centres", components=("x", "y")), tmp_path / "run"))
    np.savez(tmp_path / "mesh.npz", points=POINTS, cells=TRIANGLES)
    for path, places in ((table(tmp_path / "a.csv", "x,y"), "9 points"), (tmp_path / "mesh.npz", "5 cells")):
        out = str(tmp_path / f"{path.stem}-out.npz")
        assert main(["predict", run, str(path), "--set", "speed=3", "--out", out]) == 0
        assert f"heat, {places}, " in capsys.readouterr().out
