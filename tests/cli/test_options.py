"""Options and output that several verbs share."""

import pytest

from flare.cli import main, make_parser, with_options
from flare.cli.surrogates import add_set, settings
from flare.inference.surrogate import Surrogate
from flare.utils.errors import ConfigError
from tests.factory import ragged_dataset, saved_run


def given(*words):
    parser = make_parser("verb", "A verb.")
    parser.add_argument("--out")
    add_set(parser)
    return settings(parser.parse_args(list(words)).set)


def test_repeated_settings_are_joined():
    apart = given("--set", "speed=31", "--out", "a", "--set", "angle=12", "force=0,0,-9.81")
    assert apart == {"speed": [31.0], "angle": [12.0], "force": [0.0, 0.0, -9.81]}
    assert given() == {}
    with pytest.raises(ConfigError, match="--set speed"):
        given("--set", "speed=31", "--set", "speed=32")


@pytest.mark.parametrize(
    ("message", "translated"),
    [
        ("`test_samples=a/b c`", "--test-samples a/b c"),
        ("`test_samples=3`, `on_nan=drop` and `on_nan`", "--test-samples 3, --on-nan drop and --on-nan"),
        ("optim.lr=-1.5; on_nan='drop', on_nan=\"x\"", "--optim.lr -1.5; --on-nan drop, --on-nan x"),
        ("`seed=1` of `flare data make --test-samples=3`", "`seed=1` of `flare data make --test-samples=3`"),
        ("use shard=true or memory_check=false", "use --shard or --no-memory-check"),
        ('give it with parameters={"speed": ...}', "give it with --set speed=VALUE"),
    ],
)
def test_arguments_in_messages_become_options(message, translated):
    names = ("test_samples", "on_nan", "set", "optim.lr", "shard", "memory_check")
    assert with_options(message, {name: f"--{name.replace('_', '-')}" for name in names}) == translated


def test_one_sample_is_singular(tmp_path, capsys):
    dataset = ragged_dataset(tmp_path / "data", sizes=[9, 9], test=1)
    page = str(tmp_path / "page.html")
    assert main(["view", str(dataset.path), "--ids", "1", "--out", page]) == 0
    model = {"name": "flare", "channels": 16, "blocks": 1, "heads": 2, "latents": 4}
    run = str(saved_run(Surrogate(model, dataset.schema), tmp_path / "run"))
    assert main(["predict", run, str(dataset.path), "--split", "test", "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert printed.count("1 sample") == 2
    assert "1 samples" not in printed
