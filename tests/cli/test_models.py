"""`flare models`."""

import pytest

from flare.cli import main, models
from flare.train.recipes import recipe_names


def test_every_model_is_listed(capsys):
    assert main(["models", "--points", "400"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in recipe_names())


def test_a_preset_has_the_sizes_of_the_paper_and_models_on_grids_need_one(capsys, monkeypatch):
    monkeypatch.setattr(models, "recipe_names", lambda: ["flare", "transolver-conv"])
    monkeypatch.setattr(models, "MODELS", {})
    assert main(["models", "--preset", "darcy"]) == 0
    printed = capsys.readouterr().out
    assert "2,826,945" in printed
    assert "691,009" in printed
    assert "for 7,225 points" in printed
    assert main(["models", "--preset", "elasticity"]) == 0
    printed = capsys.readouterr().out
    assert "\nflare " in printed
    assert "transolver-conv" not in printed


@pytest.mark.parametrize("words", [["--points", "-5"], ["--in-dim", "0"], ["--out-dim", "0"]])
def test_invalid_sizes_are_refused(words, capsys):
    assert main(["models", *words]) == 2
    assert words[0] in capsys.readouterr().err
