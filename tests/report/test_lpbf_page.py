"""The page of a build: its numbers are those of the simulation."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from flare.mesh.voxels import skin
from flare.physics.lpbf import load_process
from flare.physics.lpbf.job import run
from flare.physics.lpbf.plates import compare_plate_temperatures
from flare.physics.lpbf.setup import prepare
from flare.report.lpbf import (
    distortion_rows,
    plate_rows,
    plot_profile,
    plot_recoater,
    recoater_rows,
    stress_rows,
    write_build_page,
)
from tests.physics.lpbf.shapes import bar, shelf


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    builds = []
    setup = prepare(skin(shelf()), voxel=1.5, layers=30)
    out = tmp_path_factory.mktemp("build") / "part.vtu"
    run(setup, out, series=False, post_process=lambda build, _: builds.append(build), quiet=True)
    return builds[0]


def numbers(text):
    return [float(word) for word in re.findall(r"-?\d+\.?\d*", text)]


def test_distortion_rows_have_the_largest_displacements_and_positions(build):
    u = build.released.displacement
    rows = dict(distortion_rows(build))
    for name, node in (("up", u[:, 2].argmax()), ("down", u[:, 2].argmin())):
        value, *place = numbers(rows[name])
        assert value == pytest.approx(u[node, 2], abs=1e-4)
        assert place == pytest.approx(build.positions[node], abs=0.05)
    sideways = np.hypot(u[:, 0], u[:, 1])
    assert numbers(rows["sideways"])[0] == pytest.approx(sideways.max(), abs=1e-4)
    assert build.positions[u[:, 2].argmax(), 0] == 12  # the tip of the overhang


def test_recoater_rows_and_plot_show_the_interference(build):
    rows = recoater_rows(build)
    over = int((build.interference[:-1, 0] > 0.04).sum())
    assert build.recoater_hits == over > 0
    worst = build.interference[:-1, 0].argmax()
    assert rows[1][0] == f"group {worst + 1}"
    height, _, *place = numbers(rows[1][1])
    assert [height, *place] == pytest.approx(build.interference[worst], abs=0.05)
    bars = plot_recoater(build).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx(build.interference[:, 0].tolist())
    assert replace(build, interference=build.interference * 0.01).recoater_hits == 0


def test_the_last_group_does_not_count_because_no_layer_is_spread_on_it(build):
    high = build.interference * 0.01
    high[-1, 0] = 5.0
    last = replace(build, interference=high)
    assert last.recoater_hits == 0
    assert "group 6" not in dict(recoater_rows(last))
    high[-2, 0] = 0.05
    assert last.recoater_hits == 1
    one = replace(build, interference=high[-1:])
    assert one.recoater_hits == 0
    assert len(recoater_rows(one)) == 1


def test_the_summary_has_the_numbers_of_the_page(build):
    moved, recoated = build.summary().splitlines()
    u, stress, met = build.released.displacement[:, 2], build.released.center_von_mises, build.interference[:-1]
    found = numbers(moved)
    assert found[:4] == pytest.approx([u.max(), *build.positions[u.argmax()]], abs=0.051)
    assert found[4:8] == pytest.approx([-u.min(), *build.positions[u.argmin()]], abs=0.051)
    assert found[8] == round(stress.max())
    assert f"group {met[:, 0].argmax() + 1}: {met[:, 0].max():.3f} mm" in recoated


def test_notes_of_the_setup_are_on_the_page(build, tmp_path):
    noted = replace(build, setup=replace(build.setup, notes=("walls are one voxel thick",)))
    assert "<li>walls are one voxel thick</li>" in write_build_page(noted, tmp_path).read_text()


def test_stress_rows_have_the_peak_of_the_voxels(build):
    rows = dict(stress_rows(build))
    peak = build.cooled.center_von_mises
    value, *place = numbers(rows["cooled, on the plate"])
    assert value == round(peak.max())
    assert place == pytest.approx(build.positions[build.cells[peak.argmax()]].mean(0), abs=0.051)


def test_the_profile_runs_along_the_longest_axis(build):
    line = plot_profile(build).axes[0].lines[0]
    assert line.get_xdata()[[0, -1]] == pytest.approx([-12, 12])
    tip = np.isclose(build.positions[:, 0], 12)
    assert line.get_ydata()[-1] == pytest.approx(build.released.displacement[tip, 2].mean())


def test_the_page_is_self_contained_and_deterministic(build, tmp_path):
    plates = compare_plate_temperatures(build.setup, [400.0], quiet=True)
    page = write_build_page(build, tmp_path, plates=plates).read_text()
    for heading in ("Distortion", "Recoater interference", "Effect of a heated plate", "Temperature"):
        assert f"<h2>{heading}</h2>" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "plate at 400 °C" in page
    spans = [numbers(text)[0] for _, text in plate_rows(plates)]
    assert spans[0] > spans[1]
    for picture in ("displacement.png", "von_mises.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again"
    again.mkdir()
    assert write_build_page(build, again, plates=plates).read_text() == page


def test_the_process_on_the_page_can_be_loaded(build, tmp_path):
    page = html.unescape(write_build_page(build, tmp_path).read_text())
    (tmp_path / "process.yaml").write_text(re.search(r"<pre>(machine:.*?)</pre>", page, re.DOTALL)[1])
    assert load_process(tmp_path / "process.yaml") == build.setup.process


def test_without_plates_the_page_has_no_such_section(build, tmp_path):
    page = write_build_page(build, tmp_path, exaggerate=0.0).read_text()
    assert "heated plate" not in page
    assert "nominal shape" in page


def test_the_page_of_voxels_reports_temperatures_above_the_solidus(tmp_path):
    setup = prepare(bar((6, 3, 2.4)))
    metal = replace(setup.process.material, solidus=1.0)

    def report(build, folder):
        write_build_page(build, folder, plates=compare_plate_temperatures(build.setup, [400.0], quiet=True))
        hot = replace(build.setup.process, material=metal)
        write_build_page(replace(build, setup=replace(setup, process=hot)), tmp_path)

    run(setup, tmp_path / "part.vtu", series=False, post_process=report, quiet=True)
    page = (tmp_path / "part_build" / "report.html").read_text()
    assert "100.0 % of the part" in html.unescape(page)
    assert "solidus of" not in page
    assert "solidus of 1 °C" in (tmp_path / "report.html").read_text()
