"""Options and output that several verbs share."""

import numpy as np
import pytest

from flare.cli import main, make_parser, with_options
from flare.cli.predict import add_set, settings
from flare.inference.surrogate import Surrogate
from flare.train.field_task import compare_errors
from flare.utils.errors import ConfigError
from tests.factory import ragged_dataset, saved_run
from tests.inference.test_prediction import POINTS, TRIANGLES, made, table


def given(*words):
    parser = make_parser("verb", "A verb.")
    parser.add_argument("--out")
    add_set(parser, "inputs")
    return settings(parser.parse_args(list(words)).set)


def test_repeated_settings_are_joined():
    apart = given("--set", "speed=31", "--out", "a", "--set", "angle=12", "force=0,0,-9.81")
    assert apart == {"speed": [31.0], "angle": [12.0], "force": [0.0, 0.0, -9.81]}
    assert given() == {}
    with pytest.raises(ConfigError, match="--set speed"):
        given("--set", "speed=31", "--set", "speed=32")


def test_arguments_in_messages_become_options():
    options = {"--test-samples", "--on_nan"}
    message = with_options("`test_samples=3`, `on_nan=drop`, `on_nan`, `seed=1` and `flare data make`", options)
    assert message == "--test-samples 3, --on_nan drop, --on_nan, `seed=1` and `flare data make`"


@pytest.mark.parametrize(
    ("error", "baseline", "number"),
    [(0.1, 0.35, "3.5"), (0.98, 1.0, "2.0%"), (1.02, 1.0, "2.0%"), (1.0, 1.0, "0.0%"), (1.5, 1.0, "1.5"), (0, 1, "")],
)
def test_a_ratio_near_one_is_a_percentage(error, baseline, number):
    assert number in compare_errors(error, baseline)


def test_one_sample_is_singular(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "data", sizes=[9, 9], test=1)
    page = str(tmp_path / "page.html")
    assert main(["view", str(dataset.path), "--only", "1", "--out", page]) == 0
    model = {"name": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4}
    run = str(saved_run(Surrogate(model, dataset.schema), tmp_path / "run"))
    assert main(["predict", run, str(dataset.path), "--split", "test", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("1 sample") == 2
    assert "1 samples" not in printed


def test_a_table_for_a_model_at_cell_centers_has_points(tmp_path, capsys):
    run = str(saved_run(made(2, points="cell_centres", components=("x", "y")), tmp_path / "run"))
    np.savez(tmp_path / "mesh.npz", points=POINTS, cells=TRIANGLES)
    for path, places in ((table(tmp_path / "a.csv", "x,y"), "9 points"), (tmp_path / "mesh.npz", "5 cells")):
        out = str(tmp_path / f"{path.stem}-out.npz")
        assert main(["predict", run, str(path), "--set", "speed=3", "--out", out]) == 0
        assert places in capsys.readouterr().out
