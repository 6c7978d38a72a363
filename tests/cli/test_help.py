"""Help is fast and complete."""

import subprocess
import sys

import pytest

import flare
from flare.cli import VERBS, main


@pytest.mark.parametrize(
    "words", [[], ["--help"], *([verb, "--help"] for verb in VERBS), ["data", "make", "darcy", "-h"]]
)
def test_every_verb_has_help(words, capsys):
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    assert code == 0
    text = capsys.readouterr().out
    assert "usage: flare" in text
    assert "--out OUT" not in text.partition("\n\n")[0]  # its short form -o stands there


def test_help_lists_settings(capsys):
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in ("--optim.weight_decay", "--model.channels", "--data.batch_size", "--loss.offset"):
        assert option in text


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
