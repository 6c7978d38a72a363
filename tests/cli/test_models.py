"""`flare models`."""

import pytest

from flare.cli import main
from flare.train.recipes import recipe_names


def test_every_model_is_listed(capsys):
    assert main(["models", "--points", "400"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in recipe_names())
    assert main(["models", "--preset", "darcy"]) == 0
    printed = capsys.readouterr().out
    assert "2,826,945" in printed
    assert "691,009" in printed
    assert "for 7,225 points" in printed
    assert main(["models", "--preset", "elasticity"]) == 0
    assert "transolver-conv" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--points", "-5"], ["--points", "0"], ["--in-dim", "0"], ["--out-dim", "0"]])
def test_invalid_sizes_are_refused(words, capsys):
    assert main(["models", *words]) == 2
    assert words[0] in capsys.readouterr().err
