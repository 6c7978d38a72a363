"""The pages, done from top to bottom as a reader would: every Python block and every command, in one folder a page.

A command is run as it is printed, but for options that would make it long (SMALLER). What cannot be run in a test is in
NOT_RUN with its reason, and tests/test_docs.py parses it. Of pages that take more than some seconds (SLOW) the Python
blocks run by default, and the commands with `make test-slow`.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from flare.cli import main
from tests.pages import PAGES, ROOT, Step, name_of, to_run
from tests.shelf import Shelf

pytest.importorskip("pyvista", reason="the extra 'mesh' is not installed")

NEEDS = {
    "README.md": "results part.vtu=plate.vtu runs/mine=runs/wings",
    "docs/applications/cars.md": "data/drivaerml-40k=data/mine drivaerml_surface_presampled_1m=published/cars "
    "drivaerml_surface_presampled_40k=published/cars drivaerml=published/surfaces",
    "docs/benchmarks/datasets.md": "Geo-FNO/elasticity/Meshes=published/elasticity LPBF_FLARE=published/parts",
    "docs/paper/discrepancies.md": "data/drivaerml-40k=data/mine data/darcy data/elasticity=data/elasticity-demo "
    "data/listops data/text=data/listops data/pathfinder=data/listops",
    "docs/how-to/export.md": "runs/demo",
    "docs/how-to/troubleshooting.md": "data/mine runs/mine data/drivaerml-1m=data/mine",
    "docs/applications/metal-printing.md": "bracket.step=block.step bracket.stl=block.stl",
    "docs/applications/sequences.md": "lra_release/tsv_data=published/papers runs/listops",
    "docs/how-to/large-meshes.md": "runs/demo runs/darcy runs/car=runs/mine data/drivaerml-1m=data/mine "
    "points flow.code car.code part.csv=in-the-plane.csv",
    "docs/concepts/baselines.md": "data/darcy data/darcy-small",
    "docs/how-to/predict.md": "runs/demo data/mine runs/mine part.vtu=plate.vtu part.stl=surface.stl points "
    "part.csv=in-space.csv points.csv=in-space.csv wing.vtu=plate.vtu runs/wings",
    "docs/paper/reproduce.md": "results/records",
    "docs/how-to/sensitivities.md": "runs/demo runs/car=runs/mine car.vtu=plate.vtu "
    "runs/wings part.vtp=plate.vtp examples",
    "docs/how-to/serve.md": "runs/demo points.csv=in-the-plane.csv part.vtu=sheet.vtu",
    "docs/concepts/spectra.md": "data/elasticity-demo runs/demo",
    "docs/how-to/train.md": "data/darcy data/mine my/settings.yaml=settings.yaml",
    "docs/how-to/view.md": "data/elasticity-demo runs/demo data/other=data/elasticity-demo part.vtu=plate.vtu",
    "docs/start/first-dataset.md": "",
    "docs/how-to/import.md": "results part.vtu=plate.vtu",
    "docs/how-to/check.md": "data/mine results",
    "docs/how-to/error-bars.md": "data/many runs/mine=runs/many part.vtu=plate.vtu",
    "docs/how-to/gpu.md": "data/mine data/darcy data/drivaerml-1m=data/mine",
}
"""Page -> what must lie in the folder for its commands and blocks; see tests/shelf.py."""

MODEL = "--model.channels 8 --model.blocks 1 --model.heads 2 --device cpu --no-report"
FIELDS = f"{MODEL} --model.latents 4 --epochs 1"
TOKENS = f"{MODEL} --steps 2"
SLICES = f"{MODEL} --model.slices 4 --epochs 1"
RANKS = f"--nproc-per-node 2 {FIELDS}"
CLASSES = "--samples 60 --val-samples 10 --test-samples 10 --workers 1"
PRINTED = "--layers 60 --voxel 3 --plates none --threads 1"
PLAN = "--points 20000 --blocks 1 --latents 4 --channels 8 --heads 2"
SMALLER = {
    "FLARE_TOKEN=$(cat token) flare serve": "--port 0 --host 127.0.0.1",
    "flare compare": "--models flare,lno --seeds 1 --epochs 1 --workers 1",
    "flare data make car-potential": "--samples 4 --test-samples 2 --points 300 --refinement 0.3 --workers 1",
    "flare data make darcy": "--samples 12 --resolution 8 --stride 1 --workers 1",
    "flare data make elasticity": "--samples 14 --test-samples 4 --workers 1",
    "flare data make listops": f"{CLASSES} --min_length 3 --max_length 30",
    "flare data make listops --min_length 10 --max_length 80": "--samples 300 --val_samples 11 --test_samples 11",
    "flare data make lpbf --layers": "--samples 3 --test-samples 1 --workers 1 --layers 60 --out data/coarse",
    "flare data make lpbf --samples": "--samples 3 --test-samples 1 --workers 1 --layers 60",
    "flare data make pathfinder": CLASSES,
    "flare data read elasticity": "--train 8 --test 4",
    "flare data read lpbf": "--train 3 --test 2",
    "flare data read lpbf --folder parts": "--out data/again",
    "flare lpbf simulate": PRINTED,
    "flare lpbf simulate --help": "",
    "flare lpbf simulate bracket.stl --out fitted.vtu --scale": "--layers 60 --voxel 6 --plates 150 --threads 1",
    "flare plan": PLAN,
    "flare predict runs/car points/ --out fields/ --chunk": "--chunk 100 --scratch .",
    "flare reproduce": "--budget smoke --workers 1",
    "flare reproduce list": "",
    "flare reproduce optimizers": "--budget smoke --only elasticity/lno --workers 1",
    "flare reproduce pages": "",
    "flare reproduce scaling --budget cpu --only fp32-study": "--budget smoke --only precision=32 --workers 1",
    "flare reproduce table1 --budget cpu --only elasticity/transformer": "--budget smoke --only elasticity --workers 1",
    "flare reproduce table2 --budget cpu --only image": "--budget smoke --only flare --workers 1",
    "flare reproduce table2 --budget cpu --only listops-small/flare": "--budget smoke --only flare --workers 1",
    "flare reproduce table2 --budget cpu --only listops-small/lin": "--budget smoke --only identity-kernel --workers 1",
    "flare reproduce table2 --budget paper": "--budget smoke --only listops-small/dev-split --workers 1",
    "flare serve": "--port 0",
    "flare serve --help": "",
    "flare train data/": FIELDS,
    "flare train --data.path": FIELDS,
    "flare train --preset": FIELDS,
    "flare train --preset darcy --model lno": f"{MODEL} --model.modes 4 --epochs 1",
    "flare train --preset darcy --model transolver": SLICES,
    "flare train --preset drivaer-1m --precision": f"{FIELDS} --data.subsample_from 50",
    "flare train --preset lra/listops": f"{TOKENS} --model.latents 4",
    "flare train --preset lra/pathfinder --model.attention performer": f"{TOKENS} --model.features 8",
    "flare train --preset lra/text": f"{TOKENS} --model.latents 4",
    "flare train --preset lra/listops --model.attention performer": f"{TOKENS} --model.features 8",
    "flare view": "--no-open",
    "torchrun --nproc-per-node 2": FIELDS,
    "torchrun --nproc-per-node 4": RANKS,
    "torchrun --nproc-per-node 4 -m flare train --resume": "--nproc-per-node 2",
    "torchrun --nproc-per-node 8": RANKS,
    "torchrun --nproc-per-node 8 -m flare train --preset drivaer-1m --ranks-share points --p": (
        f"{RANKS} --point_ranks 2"
    ),
}
"""Beginning of a command -> smaller values of options, put in place of those printed or added. The longest counts."""

NOT_RUN = {
    "make demo": "minutes; tests/test_documentation.py runs its commands, word for word, with `make test-slow`",
    "make native": "sets up the repository's own .venv; what it calls is run",
    "pip install": "fetches packages",
    "source .venv/bin/activate": "changes the shell",
    "FLARE_BUILD_NATIVE=1 pip wheel": "builds the repository itself; tests/mixer/native/test_library.py runs its hook",
    "docker": "wants a container engine, and fetches packages",
    "flare data download": "fetches files; tests/data and tests/sequence run it against servers that answer alike",
    "flare data upload": "sends files to the hub; tests/data/benchmarks/test_lpbf_files.py runs it against a small one",
    "flare reproduce table1 --budget paper --published": "trains on the published files for hours",
    "flare train --preset airfoil": "wants flows that take minutes to solve; tests/test_docs.py checks its settings",
    "flare train --preset pipe": "the same",
    "flare train data/mine --minutes": "takes that long; tests/train/test_loop.py has a short one",
    "flare train --preset darcy --recipe fast --minutes": "the same",
    "flare train --resume runs/mine --epochs": "tests/train/test_loop.py extends runs",
}
"""Beginning of a command -> why no test runs it as printed."""

SLOW = {
    *(f"docs/applications/{name}.md" for name in ("cars", "metal-printing", "sequences")),
    *(f"docs/how-to/{name}.md" for name in ("gpu", "large-meshes", "train", "troubleshooting", "view")),
    *("docs/concepts/baselines.md", "docs/paper/discrepancies.md", "docs/paper/reproduce.md"),
    *(name_of(page) for page in PAGES if name_of(page).startswith("docs/results/")),
}

SERVES = re.compile(r"flare serve (?!--help)|flare view (?!.*--out)")
"""Commands that go on until they are stopped."""
PRINTED_ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|host):8000")


def smaller(command):
    """A command with the values of SMALLER."""
    key = max((key for key in SMALLER if command.startswith(key)), key=len, default=None)
    for option, value in re.findall(r"(--\S+)(?: (?!--)(\S+))?", SMALLER.get(key, "")):
        printed = re.compile(rf"{option}[ =]\S+")
        if value and printed.search(command):
            command = printed.sub(f"{option} {value}", command)
        else:
            command = f"{command} {option} {value}".rstrip()
    return command


def reason_not_to_run(command):
    return next((reason for key, reason in NOT_RUN.items() if command.startswith(key)), None)


def outputs(command):
    """Return the files and folders that the options of a command name; of several grids, only the first."""
    names = re.findall(r" (?:--out|--png|--html|--fix|-o|>)[ =](\S+)", command)
    return [re.sub(r"\.\w+$", r"-0\g<0>", name) for name in names] if " --levels " in command else names


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class Reader:
    """Runs the commands of a page in a folder."""

    def __init__(self, folder, programs, stack):
        self.folder, self.stack, self.address = folder, stack, None
        self.environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        self.environment |= {"CURL_HOME": str(programs), "no_proxy": "127.0.0.1", "CUDA_VISIBLE_DEVICES": ""}
        points = np.random.default_rng(0).random((25, 2))
        self.names = {"points": points, "x": torch.randn(2, 30, 64), "mask": torch.ones(2, 30, dtype=torch.bool)}

    def follow(self, step: Step):
        if step.kind == "python":
            exec(compile("\n" * (step.line - 1) + step.text, step.page, "exec"), self.names)
            return
        command = smaller(step.text)
        written = [self.folder / name for name in outputs(command)]
        for path in written:  # two commands that write the same are alternatives; a reader would take one of them
            remove(path)
        if SERVES.search(command):
            self.serve(command)
        elif command.startswith("flare "):
            assert self.code_of(shlex.split(command)[1:]) == 0, step.where
        else:
            command = PRINTED_ADDRESS.sub(lambda printed: self.address, command)
            done = subprocess.run(["bash", "-c", command], env=self.environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{step.where}\n{done.stdout}{done.stderr}"
        for path in written:
            assert path.exists(), f"{step.where}\nhas not written {path.name}"

    def code_of(self, words):
        try:
            return main(words)
        except SystemExit as done:  # --help
            return done.code

    def serve(self, command):
        """Start it, wait for its address, ask it something; it stops when the next one starts, or with the page."""
        self.stack.close()
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored, if the tests run in background
        )
        self.stack.callback(self.stop, process, command)
        self.address = re.search(r"http://[\w.]+:\d+", process.stdout.readline())[0]
        open_to_all = "/health" if "serve" in command else "/"
        with urllib.request.urlopen(self.address + open_to_all, timeout=100) as answer:
            assert answer.status == 200, command

    @staticmethod
    def stop(process, command):
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=100)
        assert process.returncode in (0, 130), command  # Ctrl-C


@pytest.fixture(scope="session")
def shelf(tmp_path_factory):
    return Shelf(tmp_path_factory.mktemp("shelf"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """A folder with the programs of the pages, as an installation has them; curl fails where the server refuses."""
    folder = tmp_path_factory.mktemp("programs")
    for name, words in {"python": "", "flare": " -m flare", "torchrun": " -m torch.distributed.run"}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{words} "$@"\n')
        (folder / name).chmod(0o755)
    (folder / ".curlrc").write_text("fail\nsilent\nshow-error\n")
    return folder


def done_on(page, kinds):
    return [step for step in to_run(page) if step.kind in kinds and not reason_not_to_run(step.text)]


ALL = {"python", "shell", "sentence"}
PARTS = [(page, {"python"} if name_of(page) in SLOW else ALL) for page in PAGES]
QUICK = [pytest.param(page, kinds, id=name_of(page)) for page, kinds in PARTS if done_on(page, kinds)]
WHOLE = [pytest.param(page, ALL, id=name_of(page), marks=pytest.mark.slow) for page in PAGES if name_of(page) in SLOW]


@pytest.mark.parametrize(("page", "kinds"), [*QUICK, *WHOLE])
def test_a_page_can_be_followed_from_top_to_bottom(page, kinds, shelf, programs, tmp_path, monkeypatch, capsys):
    for wish in NEEDS.get(name_of(page), "data/elasticity-demo runs/demo").split():
        shelf.put(wish, tmp_path)
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        reader = Reader(tmp_path, programs, stack)
        for step in done_on(page, kinds):
            try:
                reader.follow(step)
            except Exception as error:
                error.add_note(f"{step.where}\n{capsys.readouterr().err}")
                raise


def test_every_exception_is_one_of_a_command_on_the_pages():
    commands = [step.text for page in PAGES for step in to_run(page) if step.kind != "python"]
    assert len(commands) > 150
    for key in [*SMALLER, *NOT_RUN]:
        assert any(command.startswith(key) for command in commands), f"no page has {key} any more"
    assert set(NEEDS) | SLOW <= {name_of(page) for page in PAGES}
