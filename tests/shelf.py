"""What the pages take for granted, small: datasets, runs and files, made once a session and copied to each page."""

import contextlib
import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flare.cli import main
from flare.data.dataset import Dataset
from flare.mesh.voxels import skin
from flare.sequence.listops import ListOps
from flare.sequence.store import generate_sequences
from flare.train.config import DataConfig, TrainConfig
from flare.train.run import start
from tests.data.benchmarks.test_car_files import points_of, surfaces_of
from tests.data.benchmarks.test_lpbf_files import dataset_of
from tests.factory import darcy_dataset, elasticity_dataset
from tests.pages import ROOT, steps
from tests.physics.lpbf.shapes import bar, shelf
from tests.sequence.test_text import write_pairs

TINY = {"name": "flare", "channels": 8, "blocks": 1, "heads": 2, "latents": 4, "kv_depth": 0, "ffn_depth": 0}


class Shelf:
    """A folder in which a thing is made when it is first asked for, under its own name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, thing: str) -> Path:
        path = self.folder / thing
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(self.folder)  # so that a run names its dataset as the pages do
                MAKERS[thing](self, Path(thing))
        return path

    def put(self, wish: str, place: Path) -> None:
        """Copy a thing into a folder, `name`, or `name=thing` where the page has another name for it."""
        name, _, thing = wish.partition("=")
        source, target = self.get(thing or name), place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def run(*words: object) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(list(map(str, words))) == 0, words


def trained(data: str) -> Callable[[Shelf, Path], None]:
    """A run on a dataset of the shelf, trained for a moment, and calibrated."""

    def make(shelf: Shelf, path: Path) -> None:
        shelf.get(data)
        start(TrainConfig(data=DataConfig(path=data, batch_size=8), model=TINY, epochs=1, device="cpu"), path)
        run("calibrate", path, "--device", "cpu")

    return make


def short_expressions(shelf: Shelf, path: Path) -> None:
    short = ListOps(min_length=3, max_length=30)
    generate_sequences(short, path, samples=60, val_samples=10, test_samples=10, quiet=True)


def trained_on_expressions(shelf: Shelf, path: Path) -> None:
    shelf.get("data/listops")
    model = TINY | {"name": "sequence", "ffn_depth": 1}
    start(TrainConfig(data=DataConfig(path="data/listops", batch_size=8), model=model, epochs=1, device="cpu"), path)


def imported(count: int, *more: str) -> Callable[[Shelf, Path], None]:
    def make(shelf: Shelf, path: Path) -> None:
        from tests.meshes import folder_of_plates

        files = folder_of_plates(shelf.folder / "files" / path.name, count)
        run("data", "import", files, "--target", "pressure", *more, "--out", path)

    return make


def plate_file(shelf: Shelf, path: Path) -> None:
    """A part to predict: what is to be predicted is not in it, nor the parameter that a page gives by hand."""
    from tests.meshes import plate

    mesh = plate(77)
    mesh.point_data.remove("pressure")
    mesh.field_data.remove("speed")
    (mesh.extract_surface(algorithm="dataset_surface") if path.suffix == ".vtp" else mesh).save(path)


def surface_file(shelf: Shelf, path: Path) -> None:
    from tests.meshes import pv

    pv.Plane(i_size=1.5, j_size=1.0).triangulate().save(path)


def printed_files(shelf: Shelf, path: Path) -> None:
    run("data", "export", shelf.get("data/lpbf"), "--out", path)


def folder_of_files(shelf: Shelf, path: Path) -> None:
    from tests.meshes import folder_of_plates

    folder_of_plates(path, 24)


def sheet_file(shelf: Shelf, path: Path) -> None:
    """A flat mesh with a hole, as the demo's model knows it."""
    from tests.meshes import pv

    points = Dataset(shelf.get("data/elasticity-demo"))[0].values["points"]
    pv.PolyData(np.pad(points, ((0, 0), (0, 1)))).delaunay_2d().cast_to_unstructured_grid().save(path)


def table(header: str, rows: Callable[[Shelf], np.ndarray]) -> Callable[[Shelf, Path], None]:
    def make(shelf: Shelf, path: Path) -> None:
        np.savetxt(path, rows(shelf), delimiter=",", header=header, comments="", fmt="%.7g")

    return make


def random_rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape)


def flow_arrays(shelf: Shelf, path: Path) -> None:
    np.savez(path, points=random_rows(30, 2), coefficient=random_rows(30) + 3)


def folder_of_points(shelf: Shelf, path: Path) -> None:
    path.mkdir()
    np.save(path / "points.npy", random_rows(500, 3).astype(np.float32))


def code(run_: str, file: str) -> Callable[[Shelf, Path], None]:
    return lambda shelf, path: run("encode", shelf.get(run_), shelf.get(file), "--out", path)


def brackets(shelf: Shelf, path: Path) -> None:
    """As docs/reference/dataset-format.md writes them."""
    blocks = [
        step.text for step in steps(ROOT / "docs" / "reference" / "dataset-format.md") if "DatasetWriter" in step.text
    ]
    exec(compile(blocks[0], "docs/reference/dataset-format.md", "exec"), {})


def published_sheets(shelf: Shelf, path: Path) -> None:
    """Elasticity as it is published, of fewer points and samples."""
    path.mkdir()
    np.save(path / "Random_UnitCell_XY_10.npy", random_rows(30, 2, 12).astype(np.float32))
    np.save(path / "Random_UnitCell_sigma_10.npy", 1 + random_rows(30, 12).astype(np.float32))


def settings(shelf: Shelf, path: Path) -> None:
    path.write_text("data: {path: data/darcy, batch_size: 4}\nmodel: {name: flare}\n")


def pairs_of_papers(shelf: Shelf, path: Path) -> None:
    path.mkdir()
    write_pairs(path)


def step_file(shelf: Shelf, path: Path) -> None:
    gmsh = pytest.importorskip("gmsh", reason="the extra 'cad' is not installed")
    gmsh.initialize(interruptible=False)
    gmsh.option.setNumber("General.Terminal", 0)
    gmsh.model.occ.addBox(0, 0, 0, 12, 6, 6)
    gmsh.model.occ.synchronize()
    gmsh.write(str(path))
    gmsh.finalize()


def copied(shelf: Shelf, path: Path) -> None:
    """A file or folder of the repository."""
    (shutil.copytree if (ROOT / path).is_dir() else shutil.copy)(ROOT / path, path)


MAKERS: dict[str, Callable[[Shelf, Path], object]] = {
    "data/elasticity-demo": lambda shelf, path: elasticity_dataset(path),
    "data/darcy": lambda shelf, path: darcy_dataset(path, samples=14),
    "data/darcy-small": lambda shelf, path: darcy_dataset(path, samples=14, resolution=13),
    "data/mine": imported(24, "--unit", "pressure=Pa", "points=m"),
    "data/many": imported(60, "--unit", "pressure=Pa", "points=m"),
    "data/wings": imported(12, "--input", "speed"),
    "data/brackets": brackets,
    "data/lpbf": lambda shelf, path: dataset_of(path),
    "runs/demo": trained("data/elasticity-demo"),
    "runs/darcy": trained("data/darcy"),
    "runs/mine": trained("data/mine"),
    "runs/many": trained("data/many"),
    "runs/wings": trained("data/wings"),
    "data/listops": short_expressions,
    "runs/listops": trained_on_expressions,
    "results": folder_of_files,
    "plate.vtu": plate_file,
    "plate.vtp": plate_file,
    "sheet.vtu": sheet_file,
    "surface.stl": surface_file,
    "printable.stl": lambda shelf_, path: skin(shelf()).to_mesh().save(path),
    "block.stl": lambda shelf_, path: skin(bar((0.6, 0.3, 0.3), (0.1, 0.1, 0.1))).to_mesh().save(path),
    "block.step": step_file,
    "in-the-plane.csv": table("x,y", lambda shelf: random_rows(40, 2)),
    "in-space.csv": table("x,y,z", lambda shelf: random_rows(40, 3)),
    "loaded.csv": table("x,y,z,fx,fz", lambda shelf: np.hstack([random_rows(5, 3), np.full((5, 2), 10.0)])),
    "flow.csv": table("x,y,coefficient", lambda shelf: random_rows(5, 3) * [1, 1, 12]),
    "flow.npz": flow_arrays,
    "points": folder_of_points,
    "flow.code": code("runs/darcy", "flow.npz"),
    "car.code": code("runs/mine", "in-space.csv"),
    "published/elasticity": published_sheets,
    "published/parts": printed_files,
    "published/cars": lambda shelf, path: points_of(path),
    "published/surfaces": lambda shelf, path: surfaces_of(path, (10, 2, 3)),
    "published/papers": pairs_of_papers,
    "settings.yaml": settings,
    "examples": copied,
    "results/records": copied,
}
"""Name -> how it is made. What a page calls otherwise, it names in its list of needs."""
