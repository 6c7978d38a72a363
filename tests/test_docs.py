"""Every command of the pages is one that flare knows, and the site is whole.

What is checked of a command without running it: its verb, its options, their types, and, of a training, its preset and
every setting. tests/test_pages.py runs the commands, but for a few that this is all to be done for.
"""

import re
import shlex
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location

import pytest

import flare.cli
from flare.cli import VERBS, data
from flare.cli.train import with_model_name
from flare.models import check_options
from flare.train.recipes import resolve_config
from flare.utils.errors import FlareError
from tests.pages import LAUNCHED, PAGES, ROOT, steps


class Parsed(Exception):
    """The command was understood; there is no need to do it."""


def words_of(step):
    """The words of a command of ours, without what launches it; None for one of another program."""
    found = LAUNCHED.match(step.text)
    return shlex.split(step.text[found.end() :]) if found else None


def commands(*kinds):
    found = [step for page in PAGES for step in steps(page) if step.kind in kinds]
    return [pytest.param(words_of(step), id=step.where) for step in found if words_of(step)]


SHOWN, MENTIONED = commands("shell"), commands("sentence")


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

    def check_and_stop(dataset, options, settings):
        if "resume" not in options:
            found = {name: options.get(name) for name in ("preset", "recipe")}
            check_model(resolve_config(**found, settings=settings).model)
        raise Parsed

    for verb in [*(VERBS.keys() - {"data"}), *(f"data.{module}" for module in set(data.MODULES.values()))]:
        monkeypatch.setattr(import_module(f"flare.cli.{verb}"), "parse", parse_and_stop)
    monkeypatch.setattr("flare.cli.train._train", check_and_stop)
    monkeypatch.setattr("flare.train.recipes.with_grid", dict)  # which reads the dataset
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


def test_the_other_way_of_a_discrepancy_is_a_cell_or_a_training_that_is_there():
    from flare.reproduce.budgets import BUDGETS
    from flare.reproduce.registry import find_item
    from flare.reproduce.study import select_cells

    page = ROOT / "docs" / "paper" / "discrepancies.md"
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    trainings = [words_of(step) for step in steps(page) if step.text.startswith("flare train")]
    named = {number for words in trainings for number in re.findall(r"runs/number-(\d+)", " ".join(words))}
    assert len(rows) == 30
    for number, other in rows:
        assert "`--" not in other, f"{number}: options without a command"
        assert ("training, below" in other or "trainings " in other) == (number in named), number
        for item, budget, cells in re.findall(r"`(table\d)(?: --budget (\w+))? --only (\S+)`", other):
            for each in [budget] if budget else ["cpu", "paper"]:
                assert select_cells(find_item(item).cells(BUDGETS[each]), [cells]), number


def test_there_are_commands_to_check():
    assert len(SHOWN) > 90
    assert len(PAGES) > 30


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_of_the_pages_is_understood(words, parsing_only, tmp_path, monkeypatch):
    if any(word.endswith(".yaml") for word in words):  # the reader's own settings
        monkeypatch.chdir(tmp_path)
        for word in (word for word in words if word.endswith(".yaml")):
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).write_text("data: {path: data/mine}\nmodel: {name: flare}\n")
    assert refusal(words) is None


def test_commands_of_the_pages_are_such_for_the_shell():
    for step in (step for page in PAGES for step in steps(page) if step.kind == "shell"):
        assert subprocess.run(["bash", "-n", "-c", step.text]).returncode == 0, step.where


def test_the_cpp_of_the_pages_compiles_where_onnx_runtime_is_installed():
    compiler = shutil.which("g++")
    check = [compiler, "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-x", "c++", "-"]
    header = "#include <onnxruntime_cxx_api.h>\n"
    if compiler is None or subprocess.run(check, input=header, text=True, capture_output=True).returncode:
        pytest.skip("ONNX Runtime's C++ headers are not installed")
    blocks = [block for page in PAGES for block in re.findall(r"```cpp\n(.*?)```", page.read_text(), re.DOTALL)]
    assert blocks
    for block in blocks:
        done = subprocess.run(check, input=block, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", MENTIONED)
def test_a_command_in_a_sentence_has_a_verb_and_options_that_exist(words, parsing_only):
    error = refusal(words)
    if error is None:
        return
    assert parsing_only, error  # there is such a verb
    options = [word.partition("=")[0] for word in with_model_name(words) if word.startswith("--")]
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


def test_a_page_of_results_needs_no_line_in_the_list_of_pages():
    pathspec = pytest.importorskip("pathspec")
    yaml = pytest.importorskip("yaml")
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    unlisted = pathspec.PathSpec.from_lines("gitwildmatch", site["not_in_nav"].splitlines())
    assert unlisted.match_file("results/a-table-of-tomorrow.md")
    assert not unlisted.match_file("training.md")
    assert "results/README.md" in str(site["nav"]), "which links to all of them"


def test_every_table_that_a_page_announces_is_there():
    """What stands between two marks is written by a benchmark or a study, which must have been run."""
    between = [found for page in PAGES for found in re.findall(r"<!-- .+? -->\n(.*?)<!-- end", page.read_text(), re.S)]
    assert len(between) > 10
    assert all(re.search(r"^\|[ :|-]+\|$", text, re.M) for text in between)


def hook_of_the_site(name):
    spec = spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formulas_become_mathml_and_code_stays():
    pytest.importorskip("latex2mathml")
    markdown = pytest.importorskip("markdown")
    hook = hook_of_the_site("formulas")
    page = "The error is $\\frac{a_1}{b_2}$, `$HOME` costs $5.\n\n$$\nY = \\mathrm{softmax}(K Q^\\top) V\n$$\n"
    html = markdown.markdown(
        page, extensions=["pymdownx.arithmatex"], extension_configs={"pymdownx.arithmatex": {"generic": True}}
    )
    html = hook.on_page_content(html)
    assert html.count("<math ") == 2
    assert "<mfrac>" in html
    assert "<mi>softmax</mi>" in html
    assert 'display="block"' in html
    assert "<code>$HOME</code> costs $5." in html


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
    built_from = {page.relative_to(ROOT / "docs").with_suffix(".html") for page in PAGES if page.parent != ROOT}
    names = {path.with_name("index.html") if path.stem == "README" else path for path in built_from}
    assert names <= {page.relative_to(tmp_path) for page in pages}
    for page in pages:
        assert not LOADS.search(page.read_text(encoding="utf-8")), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", style.read_text(encoding="utf-8")), style
    assert 'id="flare.models.flare.FLARE"' in (tmp_path / "reference" / "api" / "model.html").read_text(
        encoding="utf-8"
    )
