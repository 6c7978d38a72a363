"""What is settled before a server answers: names, token, limits, its folder; and what it refuses to begin with."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from flare.cli import main
from flare.serve.folder import private_folder, remove_orphans
from flare.serve.guard import is_loopback, read_token
from flare.serve.limits import Limits
from flare.serve.start import named_runs
from flare.utils.errors import ConfigError


def test_runs_are_served_under_their_names():
    assert named_runs(["runs/demo", "other=runs/demo/"]) == {"demo": "runs/demo", "other": "runs/demo/"}


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["a/demo", "b/demo"], "two runs are named 'demo'"),
        (["a b=runs/demo"], "cannot stand in an address"),
        (["../x=runs/demo"], "cannot stand in an address"),
        ([], "at least one"),
    ],
)
def test_names_that_cannot_be_told_apart_or_written_are_refused(runs, message):
    with pytest.raises(ConfigError, match=message):
        named_runs(runs)


def test_without_a_token_only_this_machine_is_served(monkeypatch, tmp_path):
    monkeypatch.delenv("FLARE_TOKEN", raising=False)
    assert read_token(None, "127.0.0.1") is None
    with pytest.raises(ConfigError, match="can be reached from other machines"):
        read_token(None, "0.0.0.0")
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(str(tmp_path / "token"), "0.0.0.0") == "0123456789abcdef"
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ConfigError, match="the token has 0 letters"):
        read_token(str(tmp_path / "token"), "127.0.0.1")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_token(str(tmp_path / "none"), "127.0.0.1")
    monkeypatch.setenv("FLARE_TOKEN", "short")
    with pytest.raises(ConfigError, match="the token has 5 letters"):
        read_token(None, "127.0.0.1")


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_loopback_is_known(host, local):
    assert is_loopback(host) is local


def test_limits_of_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"limits\.queue=0"):
        Limits(queue=0)


def test_the_folder_is_private_and_gone_afterwards(tmp_path):
    with private_folder(str(tmp_path)) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "result.vtu").write_text("half")
        remove_orphans(tmp_path)  # as another server would when it starts
        assert folder.exists()
    assert not list(tmp_path.iterdir())


def test_what_a_killed_server_left_is_removed_by_the_next(tmp_path):
    orphan = tmp_path / "flare-serve-dead"
    orphan.mkdir()
    (orphan / "lock").write_text("")
    (orphan / "result.vtu").write_text("half")
    other = tmp_path / "flare-notes"
    other.mkdir()
    with private_folder(str(tmp_path)):
        assert not orphan.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs/none"], "runs/none does not exist"),
        (["runs/none", "--host", "0.0.0.0"], "can be reached from other machines"),
        (["runs/none", "--limits.queue", "0"], "limits.queue=0"),
        (["runs/none", "--port", "99999"], "cannot listen"),
        (["runs/none", "--prot", "1"], "unknown option --prot; did you mean '--port'"),
    ],
)
def test_a_server_that_cannot_begin_says_why(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FLARE_TOKEN", raising=False)
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, *port, "--scratch", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", "runs/none"]) == 2
    assert "needs the package uvicorn; install it with:  pip install 'flare-engine[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("file", ["Containerfile", "flare.service"])
def test_the_files_of_deployment_use_options_that_exist(file, capsys):
    text = (Path(__file__).parents[2] / "deploy" / file).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(("ENTRYPOINT", "ExecStart"))]
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = capsys.readouterr().out
    options = re.findall(r"--[a-z][a-z.-]*", line)
    assert len(options) == 2
    assert all(option in known or option.replace("-", "_").replace("__", "--", 1) in known for option in options)


def test_a_service_keeps_uploads_and_results_on_the_disk():
    lines = (Path(__file__).parents[2] / "deploy" / "flare.service").read_text().splitlines()
    assert "CacheDirectory=flare" in lines
    assert next(line for line in lines if line.startswith("ExecStart")).endswith("--scratch %C/flare")


def test_the_image_gets_what_is_installed_and_nothing_else():
    root = Path(__file__).parents[2]
    lines = (root / "deploy" / "Containerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    ignored = (root / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"  # all is left out but for these
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((root / name).exists() for name in copied)
    project = tomllib.loads((root / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    wanted = {
        *wheel["packages"],
        *wheel["force-include"],
        wheel["hooks"]["custom"]["path"],
        project["project"]["readme"],
    }
    assert copied == wanted | {*project["project"]["license-files"], "pyproject.toml", "constraints.txt"}
