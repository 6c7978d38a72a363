"""Options that several verbs share."""

import pytest

from flare.cli.options import add_set, make_parser, settings
from flare.utils.errors import ConfigError


def given(*words):
    parser = make_parser("verb", "A verb.")
    parser.add_argument("--out")
    add_set(parser, "inputs")
    return settings(parser.parse_args(list(words)).set)


def test_repeated_settings_are_joined():
    apart = given("--set", "speed=31", "--out", "a", "--set", "angle=12", "force=0,0,-9.81")
    assert apart == given("--set", "speed=31", "angle=12", "force=0,0,-9.81")
    assert apart == {"speed": [31.0], "angle": [12.0], "force": [0.0, 0.0, -9.81]}
    assert given() == {}


def test_a_name_given_twice_is_refused():
    with pytest.raises(ConfigError, match="--set speed is given twice"):
        given("--set", "speed=31", "--set", "speed=32")
