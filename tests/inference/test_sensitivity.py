"""Gradients of scalars equal finite differences, through the network and through the geometry."""

import re

import numpy as np
import pytest
import torch

from flare.cli import main
from flare.inference.sensitivity import (
    differentiable_area_vectors,
    force,
    integral,
    mean,
    peak,
    point_weights,
    sensitivity,
)
from flare.mesh import Mesh, read_mesh
from flare.models import use_backend
from flare.utils.errors import ConfigError, DataError
from tests.factory import saved_run
from tests.inference.test_export import surrogate

RNG = np.random.default_rng(5)
POINTS = np.stack(np.meshgrid(np.linspace(0, 2, 4), np.linspace(0, 1, 3)), -1).reshape(-1, 2)
POINTS = (POINTS + 0.1 * RNG.uniform(-1, 1, POINTS.shape)).astype(np.float32)
THICKNESS = RNG.uniform(0.5, 1.5, (12, 1)).astype(np.float32)


def given(thickness=None, speed=2.0):
    thickness = THICKNESS if thickness is None else thickness
    return {"features": {"thickness": thickness}, "parameters": {"speed": speed}}


QUADS = np.array([[r * 4 + c, r * 4 + c + 1, r * 4 + c + 5, r * 4 + c + 4] for r in range(2) for c in range(3)])
RIM = np.array([0, 1, 2, 3, 7, 11, 10, 9, 8, 4])
LINES = np.stack([RIM, np.roll(RIM, -1)], 1)
SCALARS = {
    "peak": peak("heat"),
    "soft peak": peak("heat", softness=0.3),
    "mean": mean("force", component=1),
    "mean over the area": mean("force", cells={"quad": QUADS}),
    "integral": integral("heat", {"quad": QUADS}),
    "force": force("heat", {"line": LINES}, [1.0, 2.0]),
    "any function": lambda fields, points: fields["heat"].square().sum() * fields["force"][:, 1].mean() + points.sum(),
}


@pytest.fixture(scope="module")
def model():
    return use_backend(surrogate().double(), "sdpa")


def check_slopes(gradient, base, step, places, value):
    for place in places:
        move = np.zeros_like(base)
        move[place] = step
        slope = (value(base + move) - value(base - move)) / (2 * step)
        np.testing.assert_allclose(gradient[place], slope, rtol=2e-3, atol=1e-5 * abs(gradient).max())


@pytest.mark.parametrize("name", SCALARS)
def test_the_gradient_is_that_of_finite_differences(name, model):
    scalar, step = SCALARS[name], 2.0**-12  # exact in float32, which inputs are rounded to
    found = sensitivity(model, POINTS, scalar, **given())

    def value(points=POINTS, thickness=THICKNESS, speed=2.0):
        return sensitivity(model, points, scalar, **given(thickness, speed)).value

    base = (np.round(POINTS * 4096) / 4096).astype(np.float32)
    found_at = sensitivity(model, base, scalar, **given())
    assert np.isfinite(found.points).all()
    check_slopes(found_at.points, base, step, ((0, 0), (5, 1), (11, 0)), value)
    slope = (value(speed=2 + step) - value(speed=2 - step)) / (2 * step)
    np.testing.assert_allclose(found.parameters["speed"], [slope], rtol=2e-3)
    nodes = (np.round(THICKNESS * 4096) / 4096).astype(np.float32)
    found_at = sensitivity(model, POINTS, scalar, **given(nodes)).features["thickness"]
    assert found_at.shape == (12, 1)
    check_slopes(found_at, nodes, step, ((0, 0), (5, 0), (11, 0)), lambda moved: value(thickness=moved))


def test_the_native_kernels_give_the_same_gradient(model):
    plain = sensitivity(model, POINTS, SCALARS["soft peak"], **given())
    fast = sensitivity(surrogate(), POINTS, SCALARS["soft peak"], **given())
    np.testing.assert_allclose(fast.points, plain.points, rtol=1e-3, atol=1e-4 * abs(plain.points).max())


BOX = torch.tensor([[x, y, z] for z in (0, 5) for x, y in ((0, 0), (2, 0), (2, 3), (0, 3))], dtype=torch.float64)


def test_weights_add_up_to_the_size_of_the_cells():
    square = BOX[:4, :2]
    assert float(point_weights(square, {"quad": [[0, 1, 2, 3]]}).sum()) == pytest.approx(6)
    for cells, size in (
        ({"hexahedron": [list(range(8))]}, 30),
        ({"wedge": [[0, 1, 2, 4, 5, 6]]}, 15),
        ({"pyramid": [[0, 1, 2, 3, 6]]}, 10),
        ({"quad": [[0, 3, 2, 1], [4, 5, 6, 7]], "triangle": [[0, 1, 5]]}, 6 + 6 + 5),
    ):
        assert float(point_weights(BOX, cells).sum()) == pytest.approx(size)


def test_a_closed_surface_has_no_net_area_and_a_constant_pressure_no_force():
    quads = [[0, 3, 2, 1], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]
    areas = differentiable_area_vectors(BOX, {"quad": quads})
    assert areas.sum(0).abs().max() < 1e-12
    linear = {"p": BOX[:, :1]}  # p = x pushes a body towards -x by its volume
    assert float(force("p", {"quad": quads}, [1, 0, 0])(linear, BOX)) == pytest.approx(-30)


def test_a_force_in_the_plane_is_that_of_the_outline():
    square, outline = BOX[:4, :2], {"line": [[0, 1], [1, 2], [2, 3], [3, 0]]}
    assert float(force("p", outline, [0, 7])({"p": square[:, 1:]}, square)) == pytest.approx(-6)


@pytest.mark.parametrize(
    ("scalar", "error", "message"),
    [
        (lambda: peak("hate"), ConfigError, "'hate'"),
        (lambda: peak("heat", softness=-1.0), ConfigError, "softness=-1"),
        (lambda: integral("heat", {"cube": QUADS}), DataError, "'cube'"),
        (lambda: integral("heat", {"quad": QUADS + 9}), DataError, "12"),
        (lambda: integral("heat", {}), DataError, "no cells"),
        (lambda: force("heat", {"line": LINES}, [0, 0]), ConfigError, "not all zero"),
        (lambda: force("heat", {"line": LINES}, [0, 0, 1]), ConfigError, "direction"),
        (lambda: force("heat", {"quad": QUADS}, [0, 1]), ConfigError, "lines in the plane"),
        (lambda: lambda fields, points: fields["heat"], ConfigError, "scalar"),
        (lambda: lambda fields, points: torch.zeros(()), ConfigError, "scalar"),
    ],
)
def test_an_invalid_scalar_is_refused(scalar, error, message, model):
    with pytest.raises(error, match=message):
        sensitivity(model, POINTS, scalar(), **given())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return saved_run(surrogate(), tmp_path_factory.mktemp("run") / "part")


def test_the_verb_writes_a_vector_field_onto_the_mesh(run, tmp_path, capsys):
    data = {"point_data": {"thickness": THICKNESS[:, 0]}, "field_data": {"speed": np.array([2.0])}}
    Mesh.from_cells(POINTS, {"quad": QUADS}, **data).save(tmp_path / "part.vtu")
    words = ["sensitivity", str(run), str(tmp_path / "part.vtu"), "--of", "mean", "--field", "force.x"]
    assert main([*words, "--out", str(tmp_path / "slopes.vtu")]) == 0
    assert re.search(r"mean of force.x: \S+ N\n  by speed: \S+ N / \(m/s\)\n", capsys.readouterr().out)
    summed = ["integral" if word == "mean" else word for word in words]
    assert main([*summed, "--out", str(tmp_path / "summed.vtu")]) == 0
    assert re.search(r"integral of force\.x: \S+ N m\^2\n", capsys.readouterr().out)
    found = read_mesh(tmp_path / "slopes.vtu")
    expected = sensitivity(surrogate(), POINTS, SCALARS["mean over the area"], **given())
    np.testing.assert_allclose(found.point_data["d_mean_d_position"][:, :2], expected.points, rtol=1e-5)
    np.testing.assert_allclose(found.field_data["d_mean_d_speed"], expected.parameters["speed"], rtol=1e-5)
    assert found.field_data["mean_of_force.x"] == pytest.approx(expected.value, rel=1e-5)
    assert read_mesh(tmp_path / "slopes.vtu").units == {
        "mean_of_force.x": "N",
        "d_mean_d_position": "N / (m)",
        "d_mean_d_speed": "N / (m/s)",
        "d_mean_d_thickness": "N / (mm)",
        "points": "m",
        "speed": "m/s",
        "thickness": "mm",
    }
    assert main([*words, "--out", str(tmp_path / "slopes.npz")]) == 0
    with np.load(tmp_path / "slopes.npz") as arrays:
        assert arrays["mean_of_force.x"] == found.field_data["mean_of_force.x"]
        assert arrays["d_mean_d_position"].shape == (12, 2)


def test_the_verb_reads_other_formats_and_missing_inputs_from_options(run, tmp_path, capsys):
    pyvista = pytest.importorskip("pyvista")
    part = pyvista.PolyData(np.pad(POINTS, [(0, 0), (0, 1)]), np.insert(QUADS, 0, 4, axis=1).ravel())
    part.save(tmp_path / "part.vtp")
    words = ["sensitivity", str(run), str(tmp_path / "part.vtp"), "--of", "mean", "--field", "force.x"]
    words += ["--set", "speed=2", "thickness=1"]
    assert main([*words, "--out", str(tmp_path / "slopes.vtp")]) == 0
    found = pyvista.read(tmp_path / "slopes.vtp")
    expected = sensitivity(surrogate(), POINTS, SCALARS["mean over the area"], **given(np.ones(12)))
    np.testing.assert_allclose(found.point_data["d_mean_d_position"][:, :2], expected.points, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.point_data["d_mean_d_thickness"], expected.features["thickness"][:, 0], rtol=1e-5)
    np.testing.assert_allclose(found.field_data["d_mean_d_speed"], expected.parameters["speed"], rtol=1e-5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--of", "integral", "--out", "a.npz"], "--of integral"),
        (["--of", "mean", "--out", "a.vtu"], "p.csv"),
        (["--of", "mean", "--direction", "1,0", "--out", "a.npz"], "--direction"),
        (["--of", "mean", "--place-points", "surface", "--out", "a.npz"], "--place-points surface"),
    ],
)
def test_the_verb_refuses_options_that_do_not_fit(words, message, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("position.x,position.y,thickness,speed\n0,0,1,2\n1,1,1,2\n")
    assert main(["sensitivity", str(run), "p.csv", "--field", "heat", *words]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_a_force_asks_for_its_direction_and_polygons_for_triangles(run, tmp_path, capsys):
    pyvista = pytest.importorskip("pyvista")
    flat, given = np.pad(POINTS, [(0, 0), (0, 1)]), ["--set", "speed=2", "thickness=1", "--field", "heat"]
    pyvista.PolyData(flat, np.insert(QUADS, 0, 4, axis=1).ravel()).save(tmp_path / "a.vtp")
    words = ["sensitivity", str(run), str(tmp_path / "a.vtp"), *given, "--out", str(tmp_path / "b.vtp")]
    assert main([*words, "--of", "force"]) == 2
    printed = capsys.readouterr().err
    assert "--direction" in printed
    assert "None" not in printed
    pyvista.PolyData(flat, [5, 0, 1, 2, 3, 4]).save(tmp_path / "a.vtp")
    assert main([*words, "--of", "integral"]) == 2
    assert "cells of other types than line, triangle, quad" in capsys.readouterr().err


@pytest.mark.parametrize("field", ["force", "force.z", "fore.y"])
def test_a_field_of_several_components_needs_one_of_them(field, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.csv").write_text("position.x,position.y,thickness,speed\n0,0,1,2\n1,1,1,2\n")
    words = ["sensitivity", str(run), "p.csv", "--of", "mean", "--out", "a.npz", "--field"]
    assert main([*words, field]) == 2
    assert "force.x" in capsys.readouterr().err or field == "fore.y"
    assert main([*words, "force.y"]) == 0
    printed = capsys.readouterr()
    assert "flare calibrate" in printed.err
    assert printed.out.startswith("mean of force.y: ")
