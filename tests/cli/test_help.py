"""Help is fast and complete, and flags have a negative form."""

import subprocess
import sys

import pytest

import flare
from flare.cli import VERBS, main, make_parser, parse


def code_of(words):
    """Run a command; return its exit code."""
    try:
        return main(words)
    except SystemExit as stop:
        return stop.code


COMMANDS = ["", "--help", "help", "help train", "data make darcy -h", "help data make darcy", "data read", "lpbf"]


@pytest.mark.parametrize("words", [line.split() for line in (*COMMANDS, *(f"{verb} --help" for verb in VERBS))])
def test_every_verb_has_help(words, capsys):
    assert code_of(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: flare")
    assert "null)" not in text
    assert "<function" not in text


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"data", "lpbf", "models", "info"}))
def test_a_verb_without_the_arguments_it_needs_shows_its_help(verb, capsys):
    assert code_of([verb]) == 2
    assert capsys.readouterr().out.startswith(f"usage: flare {verb} ")


def test_short_help_has_the_common_options_and_the_long_one_all(capsys):
    assert code_of(["train", "--help"]) == 0
    short = capsys.readouterr().out
    assert code_of(["train", "--help-all"]) == 0
    every = capsys.readouterr().out
    for option in ("--out", "--lr", "--epochs", "--batch-size", "--help-all", "--model.channels"):
        assert option in short
    for option in ("--optim.weight_decay", "--data.batch_size", "--loss.offset", "--ranks-share"):
        assert option not in short
        assert option in every
    for group in ("data", "optim", "loss"):
        assert f"--{group} " not in every


def test_flags_have_a_negative_form_and_may_have_a_value():
    parser = make_parser("verb", "A verb.")
    parser.add_argument("--plot_all", type=bool, default=True)
    parser.add_argument("--up")
    for words, expected in ((["--plot-all"], True), (["--no-plot-all"], False), (["--plot-all", "false"], False)):
        assert parse(parser, words).plot_all is expected
    assert parse(parser, ["--plot_all", "--up", "-z"]).up == "-z"


def test_help_and_import_do_not_load_torch():
    code = (
        "import contextlib, sys, flare; from flare.cli import main\n"
        "for words in (['--help'], ['train', '--help'], ['data', '--help']):\n"
        "    with contextlib.suppress(SystemExit): main(words)\n"
        "heavy = {'torch', 'lightning_fabric', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == flare.__version__
