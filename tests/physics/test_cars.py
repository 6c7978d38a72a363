"""Car-like bodies and the stand-in dataset: closed surfaces, convergence, sampling, provenance."""

import tracemalloc

import numpy as np
import pytest
from scipy.spatial import cKDTree

from flare.cli import main
from flare.data.benchmarks.cards import card, paper_error
from flare.data.generation.generate import generate
from flare.data.sample import Sample
from flare.data.writer import DatasetWriter
from flare.mesh.repair import solid_surface
from flare.physics import generator_class
from flare.physics.cars import Car, CarPotential, car_flow, random_car
from flare.physics.cars.shape import RANGES, ROAD, mirror
from flare.reproduce.items.cars import nearby_mean_error
from flare.utils.errors import ConfigError

SMALL = {"points": 200, "refinement": 0.25}


@pytest.fixture(scope="module")
def flow():
    return car_flow(Car(), refinement=0.5)


def whole(car, refinement=0.5):
    return mirror(car.half(refinement))[0]


def assert_watertight(surface):
    """Check that the surface bounds one solid above the road, with outward faces and every edge used once per
    direction."""
    edges = np.stack([surface.faces, np.roll(surface.faces, -1, axis=1)], axis=2).reshape(-1, 2)
    forwards, counts = np.unique(edges, axis=0, return_counts=True)
    assert (counts == 1).all()
    assert np.array_equal(forwards, np.unique(edges[:, ::-1], axis=0))
    assert len(surface.vertices) - len(edges) // 2 + len(surface.faces) == 2, "topology of a sphere"
    assert np.linalg.norm(surface.normals, axis=1).min() > 1e-6
    assert surface.volume > 3
    assert surface.bounds[0, 2] > ROAD + 0.02


# Shapes


@pytest.mark.parametrize(
    ("seeds", "refinement", "step"), [(8, 0.5, 4), pytest.param(1000, 1.0, 1, marks=pytest.mark.slow)]
)
def test_random_cars_are_watertight_without_self_intersection(seeds, refinement, step):
    for seed in range(seeds):
        surface = whole(random_car(np.random.default_rng([1, seed])), refinement)
        assert_watertight(surface)
        if seed % step == 0:  # the winding number is 0 or 1 everywhere
            assert solid_surface(surface).volume == pytest.approx(surface.volume)


def test_every_parameter_moves_the_surface_and_extremes_are_watertight():
    base = whole(Car()).vertices
    for name, (low, high) in RANGES.items():
        ends = [whole(Car(**{name: value})) for value in (low, high)]
        assert np.abs(ends[0].vertices - ends[1].vertices).max() > 0.01, name
        for surface in ends:
            assert_watertight(surface)
            assert surface.vertices.shape == base.shape
    for corner in (0, 1):
        assert_watertight(whole(Car(**{name: ends[corner] for name, ends in RANGES.items()})))
    assert len(RANGES) >= 10


# The flow


def test_a_car_has_no_drag_a_stagnation_point_and_suction_over_the_roof(flow):
    drag, side, lift = flow.forces
    assert abs(drag) < 0.02
    assert abs(side) < 1e-9
    assert lift < -0.1, "the gap over the road sucks it down"
    x = flow.surface.vertices[:, 0]
    assert flow.cp.max() < 1.01
    assert flow.cp[x < x.min() + 0.2].max() > 0.97
    assert flow.cp[x > x.max() - 0.2].max() > 0.9, "without friction the tail recovers the pressure"
    assert flow.surface.vertices[np.argmin(flow.cp)][2] > 0.5
    assert abs(flow.flow.sources @ flow.flow.panels.areas) < 1e-10


@pytest.mark.slow
def test_drag_and_pressure_converge_with_finer_panels():
    flows = [car_flow(Car(), refinement=refinement) for refinement in (0.5, 1.0, 1.5)]
    assert abs(flows[2].forces[0]) < 0.003
    assert abs(flows[0].forces[0]) > 2 * abs(flows[2].forces[0])
    samples = [flow.sample(5000, np.random.default_rng(0)) for flow in flows]
    finest = flows[2]
    near = cKDTree(finest.surface.vertices)
    errors = [np.sqrt(np.mean((cp[:, 0] - finest.cp[near.query(x)[1]]) ** 2)) for x, cp, _ in samples]
    assert errors[0] > errors[1]
    assert errors[1] < 0.06


def test_nothing_flows_through_the_road(flow):
    road = np.array([[x, y, ROAD] for x in np.linspace(-3, 6, 10) for y in (0.0, 0.5, 2.0)])
    assert np.abs(flow.flow.velocity(road)[:, 2]).max() < 1e-12


# Points


def test_points_are_uniform_by_area_and_carry_the_pressure(flow):
    points, cp, normals = flow.sample(60_000, np.random.default_rng(0))
    a, b, c = flow.surface.corners
    areas = np.linalg.norm(flow.surface.normals, axis=1) / 2
    # Integrals over the surface are means over points: those of x, of the normal (zero), of Cp.
    exact = (areas[:, None] * (a + b + c) / 3).sum(axis=0) / areas.sum()
    assert points.mean(axis=0) == pytest.approx(exact, abs=0.02)
    assert normals.mean(axis=0) == pytest.approx([0, 0, 0], abs=0.01)
    assert np.linalg.norm(normals, axis=1) == pytest.approx(1, abs=1e-5)
    assert cp.mean() == pytest.approx(areas @ flow.cp[flow.surface.faces].mean(axis=1) / areas.sum(), abs=0.01)
    assert flow.cp.min() <= cp.min() <= cp.max() <= flow.cp.max()
    assert points.dtype == np.float32


@pytest.mark.slow
def test_ten_million_points_take_little_memory(flow):
    tracemalloc.start()
    points, cp, normals = flow.sample(10_000_000, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(points) == len(cp) == len(normals) == 10_000_000
    assert peak < 28 * 10_000_000 + 4e8, "what is returned, and one chunk"


# The dataset


def test_the_dataset_is_a_stand_in_and_depends_on_the_seed_alone(tmp_path):
    made = [generate(CarPotential(**SMALL), tmp_path / n, samples=3, test_samples=1, seed=5, quiet=True) for n in "ab"]
    assert made[0].fingerprint == made[1].fingerprint
    about = made[0].about["provenance"]
    assert (about["kind"], about["stands_in_for"]) == ("stand-in", "drivaerml")
    assert made[0].sizes.tolist() == [200, 200, 200]
    notes = made[0].notes()[0]
    assert set(notes["parameters"]) == set(RANGES)
    assert abs(notes["drag"]) < 0.03
    assert np.abs(made[0][0].values["pressure"]).max() < 38.889**2 * 1.5
    assert made[0].schema == card("car-potential").schema()


def test_no_number_of_the_paper_stands_beside_it():
    assert card("car-potential").paper is None
    assert paper_error("drivaerml", {"kind": "stand-in"})[0] is None


def test_invalid_options_of_the_generator_exit_with_code_2(tmp_path, capsys):
    assert generator_class("car-potential") is CarPotential
    with pytest.raises(ConfigError, match="length=46"):
        Car(length=46)
    for option, value in (("points", "0"), ("refinement", "5"), ("pints", "5")):
        assert main(["data", "make", "car-potential", "--out", str(tmp_path / "d"), f"--{option}", value]) == 2
        assert option in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_nearby_mean_is_exact_for_a_field_of_the_place_in_the_box(tmp_path):
    rng = np.random.default_rng(0)
    writer = DatasetWriter(tmp_path / "d", card("car-potential").schema(), {"kind": "user"})
    for size in (1.0, 2.0, 3.0):
        place = rng.uniform(size=(3000, 3))
        pressure = 1 + place[:, :1]
        writer.append(Sample({"points": size * place, "normal": place, "pressure": pressure}))
    dataset = writer.finish({"train": [(0, 2)], "test": [(2, 3)]})
    assert nearby_mean_error(dataset) < 0.02
