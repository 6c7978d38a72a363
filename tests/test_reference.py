"""The reference pages that are generated are those of the code."""

import subprocess
import sys

import pytest

from tests.pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Pages from a process of its own, in which no test has registered models or datasets."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, REFERENCE / "generate.py", folder], check=True, cwd=ROOT)
    return folder


@pytest.mark.parametrize("name", ["cli.md", "settings.md"])
def test_a_generated_page_is_current(written, name):
    hint = "run: python docs/reference/generate.py"
    assert (REFERENCE / name).read_text(encoding="utf-8") == (written / name).read_text(encoding="utf-8"), hint
