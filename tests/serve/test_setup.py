"""Everything before the first request: names, token, limits, private folder, deployment files."""

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from flare.cli import main
from flare.cli.serve import read_token
from flare.serve.security import check_token
from flare.serve.server import FOLDER_PREFIX, name_runs, private_folder
from flare.utils.errors import ConfigError


def test_models_are_named_after_their_folders_or_as_given():
    assert name_runs(["runs/demo", "other=runs/demo/"]) == {"demo": "runs/demo", "other": "runs/demo/"}


@pytest.mark.parametrize(
    ("runs", "fact"),
    [(["a/demo", "b/demo"], "'demo'"), (["a b=runs/demo"], "'a b'"), (["../x=runs/demo"], "'../x'")],
)
def test_ambiguous_and_unusable_names_are_rejected(runs, fact):
    with pytest.raises(ConfigError, match=fact):
        name_runs(runs)


def test_a_token_is_read_from_a_file_or_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("FLARE_TOKEN", raising=False)
    assert read_token(None) is None
    (tmp_path / "token").write_text("0123456789abcdef\n")
    assert read_token(str(tmp_path / "token")) == "0123456789abcdef"
    with pytest.raises(ConfigError, match="none"):
        read_token(str(tmp_path / "none"))
    monkeypatch.setenv("FLARE_TOKEN", " secret ")
    assert read_token(None) == "secret"


@pytest.mark.parametrize("token", [None, "", "short", "é" * 16])
def test_a_public_address_needs_a_long_token(token):
    with pytest.raises(ConfigError):
        check_token(token, "0.0.0.0")
    check_token("0123456789abcdef", "0.0.0.0")
    for host in ("127.0.0.1", "::1", "localhost"):
        check_token(None, host)


def test_the_folder_is_private_locked_and_removed_at_the_end(tmp_path):
    with private_folder(str(tmp_path)) as folder:
        assert folder.stat().st_mode & 0o077 == 0
        (folder / "result.vtu").write_text("half")
        with private_folder(str(tmp_path)):  # as another server would when it starts
            assert folder.exists()
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_killed_server_is_removed_by_the_next(tmp_path):
    orphan = tmp_path / f"{FOLDER_PREFIX}dead"
    orphan.mkdir()
    (orphan / "result.vtu").write_text("half")
    other = tmp_path / "flare-notes"
    other.mkdir()
    with private_folder(str(tmp_path)):
        assert not orphan.exists()
    assert other.exists()


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (["runs/none"], "runs/none"),
        (["runs/none", "--host", "0.0.0.0"], "host 0.0.0.0"),
        (["runs/none", "--limits.queue", "0"], "limits.queue"),
        (["runs/none", "--port", "99999"], "99999"),
        (["runs/none", "--prot", "1"], "'--port'"),
    ],
)
def test_a_server_that_cannot_start_reports_why(words, fact, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("FLARE_TOKEN", raising=False)
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, *port, "--scratch", str(tmp_path)]) == 2
    assert fact in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named_with_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "flare.serve.server")
    assert main(["serve", "runs/none"]) == 2
    message = capsys.readouterr().err
    assert "uvicorn" in message
    assert "'flare-engine[serve]'" in message


@pytest.mark.parametrize("file", ["Containerfile", "flare.service"])
def test_deployment_files_use_existing_options(file, capsys):
    text = (Path(__file__).parents[2] / "deploy" / file).read_text()
    (line,) = [line for line in text.splitlines() if line.startswith(("ENTRYPOINT", "ExecStart"))]
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    known = capsys.readouterr().out
    options = re.findall(r"--[a-z][a-z.-]*", line)
    assert len(options) == 2
    assert all(option in known or option.replace("-", "_").replace("__", "--", 1) in known for option in options)


def test_the_systemd_unit_keeps_uploads_and_results_on_disk():
    lines = (Path(__file__).parents[2] / "deploy" / "flare.service").read_text().splitlines()
    assert "CacheDirectory=flare" in lines
    assert next(line for line in lines if line.startswith("ExecStart")).endswith("--scratch %C/flare")


def test_the_container_image_gets_only_what_is_installed():
    root = Path(__file__).parents[2]
    lines = (root / "deploy" / "Containerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    ignored = (root / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
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


def test_a_signal_ends_the_server_and_removes_its_folder(part_run, tmp_path):
    command = [sys.executable, "-m", "flare", "serve", str(part_run), "--port", "0", "--scratch", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=100)
        assert (process.returncode, out, err) == (0, "", "")
    assert not list(tmp_path.iterdir())
