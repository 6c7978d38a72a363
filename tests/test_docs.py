"""Every command of the pages is one that flare knows; those of the quick start and of your data run as printed.

What is checked of a command without running it: its verb, its options, their types, and, of a training, its preset and
every setting. tests/test_documentation.py runs the Python blocks and the commands of the README.
"""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

import flare.cli
from flare.cli import VERBS, main
from flare.cli.train import _model_by_name
from flare.data.store import Dataset
from flare.errors import FlareError
from flare.models import check_options

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LAUNCHED = re.compile(r"^(?:[A-Z_]+=\S+ +)*(?:torchrun [\w -]*-m )?flare (?=\S)")
"""What comes before the words of a command: variables, torchrun, the name itself."""
PLACEHOLDER = re.compile(r"…|\.\.\.|\||\b[A-Z]{3,}\b|<")
"""Marks of text that stands for a command and is none: `flare train …`, `flare data make a|b`, `flare predict RUN`."""


class Parsed(Exception):
    """The command was understood; there is no need to do it."""


def lines_of_code(page):
    """Lines of fenced blocks that are no other language's, and indented lines after an empty one."""
    language, before = None, ""
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language == "" or (language is None and line.startswith("    ") and not before.strip()):
            yield line.strip()
        before = "" if line.startswith("    ") and not before.strip() else line


def shown_commands(page):
    """Commands on lines of their own, as lists of words without `flare`."""
    for line in lines_of_code(page):
        if found := LAUNCHED.match(line):
            yield line, shlex.split(line[found.end() :], comments=True)


def mentioned_commands(page):
    """Commands within sentences and tables: whole ones, and names of verbs."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for span in re.findall(r"`([^`\n]+)`", text):
        if (found := LAUNCHED.match(span)) and not PLACEHOLDER.search(span):
            yield span, shlex.split(span[found.end() :])


SHOWN = [pytest.param(words, id=f"{page.stem}: {line}") for page in PAGES for line, words in shown_commands(page)]
MENTIONED = [
    pytest.param(words, id=f"{page.stem}: {span}") for page in PAGES for span, words in mentioned_commands(page)
]


@pytest.fixture
def parsing_only(monkeypatch):
    """Verbs stop where their arguments are read; a training where its settings are whole. Gives the parsers used."""
    used = []

    def parse_and_stop(parser, words, **how):
        used.append(parser)
        parsed = flare.cli.parse(parser, words, **how)
        if parser.prog == "flare train":
            return parsed
        raise Parsed

    def check_and_stop(folder, work):
        work(SimpleNamespace(start=lambda config, out: check_model(config.model), resume=lambda *args, **how: None))
        raise Parsed

    for verb in [*VERBS, "import_data"]:
        monkeypatch.setattr(import_module(f"flare.cli.{verb}"), "parse", parse_and_stop)
    monkeypatch.setattr("flare.cli.train._guarded", check_and_stop)
    monkeypatch.setattr("flare.cli.train.with_grid", dict)  # which would look into the dataset
    monkeypatch.setattr("flare.train.fit.refuse_too_big", lambda config: None)
    monkeypatch.setattr("flare.cli.train._refuse_too_big_to_resume", lambda options, folder: None)
    return used


def check_model(model):
    """Refuse settings that a model of fields does not have."""
    if model["name"] != "sequence":
        check_options(model["name"], {key: value for key, value in model.items() if key not in ("name", "grid")})


def refusal(words):
    """Run a command up to where it would begin to work: the complaint about it, or None."""
    try:
        flare.cli._dispatch(list(words))
    except (Parsed, SystemExit):  # the latter is --help
        return None
    except FlareError as error:
        return error
    return None


def test_there_are_commands_to_check():
    assert len(SHOWN) > 90
    assert {page.stem for page in PAGES} >= {"quick-start", "your-data", "faq", "serving", "export"}


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_of_the_pages_is_understood(words, parsing_only, tmp_path, monkeypatch):
    if any(word.endswith(".yaml") for word in words):  # the reader's own settings
        monkeypatch.chdir(tmp_path)
        for word in (word for word in words if word.endswith(".yaml")):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).write_text("data: {path: data/mine}\nmodel: {name: flare}\n")
    assert refusal(words) is None


@pytest.mark.parametrize("words", MENTIONED)
def test_a_command_in_a_sentence_has_a_verb_and_options_that_exist(words, parsing_only):
    error = refusal(words)
    if error is None:
        return
    assert parsing_only, error  # there is such a verb
    options = [word.partition("=")[0] for word in _model_by_name(words) if word.startswith("--")]
    known = parsing_only[-1]._option_string_actions
    assert {flare.cli._spelled(option, parsing_only[-1]) for option in options} <= set(known), error
    # A verb or an option alone lacks what comes after it; that is all that may be wrong.
    assert options == [] or re.search("required|expected one argument", str(error)), error


def test_what_is_not_understood_is_found(parsing_only):
    for words in (
        ["trian", "--preset", "demo"],
        ["predict", "runs/demo", "part.vtu", "--uot", "x.vtu"],
        ["train", "--preset", "demo", "--model.latent", "3"],
        ["train", "--preset", "domo"],
        ["data", "make", "darcy", "--samples", "many", "--out", "d"],
        ["export", "runs/demo", "--format", "onyx"],
    ):
        assert refusal(words) is not None, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_targets_of_make_exist(page):
    known = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z-]+)(?:`|$)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) <= known


QUICKER = {
    ("data", "make"): ["--samples=14", "--test-samples=4", "--workers=1"],
    ("train",): [
        *["--model.channels=8", "--model.blocks=1", "--model.heads=2", "--model.latents=4", "--epochs=1"],
        *["--report=false", "--device=cpu"],
    ],
}
"""First words of a command -> what makes it quick enough for a test; everything else is as printed."""


def test_the_quick_start_runs_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    section = (ROOT / "docs" / "quick-start.md").read_text().split("## The same by hand")[1].split("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("flare ")]
    assert len(commands) == 6
    for line in commands:
        words = shlex.split(line)[1:]
        more = next((options for start, options in QUICKER.items() if tuple(words[: len(start)]) == start), [])
        assert main([*words, *more]) == 0, f"{line}\n{capsys.readouterr().err}"
    assert len(Dataset(tmp_path / "data" / "predicted")) == 4
    assert (tmp_path / "demo.html").stat().st_size > 100_000


LOADS = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//|<link[^>]*\srel=["']?(?:stylesheet|icon|pre)[^>]*//"""
)
"""What makes a browser fetch something from elsewhere while it shows a page."""


@pytest.mark.slow
def test_the_site_is_whole_and_loads_nothing_from_the_network(tmp_path):
    """`make docs`: a page missing from the list, a dead link or an unknown name in the reference is an error."""
    pytest.importorskip("mkdocs")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {page.stem for page in PAGES if page.parent != ROOT} <= {page.stem for page in pages}
    for page in pages:
        assert not LOADS.search(page.read_text(encoding="utf-8")), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text(encoding="utf-8")), style
    assert 'id="flare.models.flare.FLARE"' in (tmp_path / "api" / "model.html").read_text(encoding="utf-8")
