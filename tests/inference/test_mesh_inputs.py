"""Messages and points for surfaces on the command line."""

from dataclasses import replace

import numpy as np
import pytest
import pyvista as pv

from flare.cli import main
from flare.data.sample import Field, Schema
from flare.inference.calibration.calibrate import FILE, Assessment, Calibration
from flare.inference.encoding import fingerprint
from flare.inference.mesh_inputs import sample_surface
from flare.inference.prediction import describe, predict
from flare.mesh import read_mesh
from flare.mesh.sampling import median_edge
from flare.utils.errors import ConfigError
from tests.factory import saved_run
from tests.inference.test_prediction import made
from tests.serve.uploads import POINTS, npz


@pytest.mark.parametrize("verb", [["encode"], ["sensitivity", "--of", "mean", "--field", "heat"]], ids="-".join)
def test_commands_warn_if_a_sample_is_out_of_distribution(verb, calibrated_run, tmp_path, capsys):
    for name, points, is_ood in (("a", POINTS, False), ("b", 50 * POINTS, True)):
        (tmp_path / f"{name}.npz").write_bytes(npz(position=np.asarray(points, np.float32)))
        words = [verb[0], str(calibrated_run), str(tmp_path / f"{name}.npz"), *verb[1:]]
        assert main([*words, "--out", str(tmp_path / f"{name}-out.npz")]) == 0
        assert ("WARNING: unlike the training set" in capsys.readouterr().err) is is_ood


def blocks(tmp_path, **where):
    """Return a run of a model of solids with a known training spacing, and a cube of edge 1."""
    tmp_path.mkdir(exist_ok=True)
    model = made(3, **where)
    folder = saved_run(model, tmp_path / "solids")
    Calibration(fingerprint(model), 0.25, None, None, {}).save(folder / FILE)
    pv.Cube().triangulate().save(tmp_path / "cube.stl")
    return str(folder), str(tmp_path / "cube.stl")


def test_a_solid_is_filled_at_the_spacing_of_the_calibration_or_another(tmp_path, capsys):
    for points, count in (("points", 5**3), ("cell_centres", 4**3)):
        solids, cube = blocks(tmp_path / points, points=points)
        words = ["predict", solids, cube, "--set", "speed=3", "--out"]
        assert main([*words, str(tmp_path / "a.vtp")]) == 2
        assert "a.vtp" in capsys.readouterr().err
        assert main([*words, str(tmp_path / f"{points}.vtu")]) == 0
        printed = capsys.readouterr()
        assert f"voxels of 0.25: {count} points\n" in printed.err
        assert f"heat, {count} {'cells' if points == 'cell_centres' else 'points'}, " in printed.out
    assert main([*words, str(tmp_path / "b.vtu"), "--spacing", "0.5"]) == 0
    assert "voxels of 0.5: " in capsys.readouterr().err


def test_the_coverage_is_not_reported_where_error_bars_do_not_hold(tmp_path):
    np.savez(tmp_path / "a.npz", points=np.random.default_rng(0).random((9, 2)), speed=3.0)
    prediction = predict(made(components=("x", "y")), tmp_path / "a.npz")
    calibration = Calibration("", None, None, None, {"level": 0.9, "coverage": {"heat": 1.0, "cold": 0.9999}})
    for rank, holds in ((1, True), (0, False)):
        assessed = replace(prediction, assessment=Assessment({"heat": np.ones(9)}, 0.5, rank))
        assert any("covered" in line for line in describe(assessed, calibration)) is holds


def schema(cell_type):
    fields = {
        "points": Field(role="points", components=("x", "y", "z")),
        "p": Field(role="target", components=("p",)),
    }
    return Schema(name="parts", fields=fields, cell_type=cell_type)


def test_a_model_of_solids_gets_a_solid_and_one_of_surfaces_a_surface(tmp_path):
    pv.Sphere(radius=10.0, theta_resolution=40, phi_resolution=40).triangulate().save(tmp_path / "ball.stl")
    mesh = read_mesh(tmp_path / "ball.stl")
    assert list(sample_surface(schema("tetra"), mesh, "auto", 1.5).cells) == ["hexahedron"]
    edge = median_edge(mesh.surface())
    assert sample_surface(schema("triangle"), mesh, "auto", edge) is mesh
    dense = sample_surface(schema("triangle"), mesh, "auto", edge / 4)
    assert len(dense.points) > 4 * len(mesh.points)
    with pytest.raises(ConfigError, match="spacing="):
        sample_surface(schema("tetra"), mesh, "auto", None)
