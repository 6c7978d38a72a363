"""Dataset cards agree with presets, landmarks and docs/benchmarks/datasets.md."""

from pathlib import Path

import pytest

from flare.cli import main
from flare.data.benchmarks.cards import KINDS, as_markdown, card, card_names, paper_error
from flare.data.benchmarks.landmarks import MEASURES
from flare.train.presets import preset_path, read_yaml
from flare.utils.errors import DataError

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", card_names())
def test_a_card_agrees_with_its_preset_and_its_landmarks(name):
    about = card(name)
    normalizers = read_yaml(preset_path(name))["data"]["normalize"]
    assert set(normalizers) == {key for key, field in about.fields.items() if field.role != "extra"}
    assert name in MEASURES
    assert about.title in as_markdown(about)
    if about.grid:
        assert about.grid[0] * about.grid[1] == about.points


def test_the_page_in_docs_is_generated_from_the_cards(capsys):
    assert main(["data", "card", "--all"]) == 0
    assert (ROOT / "docs" / "benchmarks" / "datasets.md").read_text(encoding="utf-8") == capsys.readouterr().out


def test_an_unknown_card_is_refused():
    with pytest.raises(DataError, match=r"'darcey'.*'darcy'"):
        card("darcey")


def test_the_error_in_the_paper_is_for_published_and_recreated_data():
    errors = {kind: paper_error("darcy", {"kind": kind}) for kind in KINDS}
    assert errors["published"][0] == errors["recreated"][0] == 5.10e-3
    assert errors["stand-in"][0] is None
    assert errors["user"] == (None, "")
    assert paper_error("brackets", {"kind": "recreated"}) == (None, "")
