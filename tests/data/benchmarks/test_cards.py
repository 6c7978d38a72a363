"""Dataset cards: each one loads, agrees with its preset, and the page in docs/ is made of them."""

import subprocess
import sys
from pathlib import Path

import pytest

from flare.data.benchmarks.cards import KINDS, as_markdown, card, card_names, papers_number
from flare.data.benchmarks.landmarks import MEASURES
from flare.train.presets import preset_path, read_yaml
from flare.utils.errors import DataError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", card_names())
def test_a_card_agrees_with_its_preset_and_its_landmarks(name):
    about = card(name)
    wishes = read_yaml(preset_path(name))["data"]["normalise"]
    assert set(wishes) == {key for key, field in about.fields.items() if field.role != "extra"}
    assert name in MEASURES
    assert about.title in as_markdown(about)
    if about.grid:
        assert about.grid[0] * about.grid[1] == about.points


def test_the_page_in_docs_is_made_of_the_cards():
    made = subprocess.run(
        [sys.executable, "-m", "flare.data.benchmarks.cards"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "datasets.md").read_text(encoding="utf-8") == made.stdout


def test_an_unknown_card_is_refused():
    with pytest.raises(DataError, match="no dataset card 'darcey'; did you mean 'darcy'"):
        card("darcey")


def test_no_number_of_the_paper_stands_beside_a_stand_in():
    numbers = {kind: papers_number("darcy", {"kind": kind}) for kind in KINDS}
    assert numbers["published"][0] == numbers["recreated"][0] == 5.10e-3
    assert "recreated" in numbers["recreated"][1]
    assert numbers["stand-in"][0] is None
    assert "stand-in" in numbers["stand-in"][1]
    assert numbers["user"] == (None, "")
    assert papers_number("brackets", {"kind": "recreated"}) == (None, "")
