"""The page of a build: its numbers are those of the simulation, at the right places."""

import html
import re
from dataclasses import replace

import numpy as np
import pytest

from flare.mesh.skin import skin
from flare.physics.lpbf import load_process
from flare.physics.lpbf.job import run
from flare.physics.lpbf.outcome import in_short
from flare.physics.lpbf.plates import hotter_plates
from flare.physics.lpbf.setup import prepare
from flare.report.lpbf import (
    distortion_rows,
    plate_rows,
    profile,
    recoater,
    recoater_rows,
    stress_rows,
    write_build_page,
)
from tests.physics.lpbf.shapes import bar, shelf


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    found = []
    setup = prepare(skin(shelf()), voxel=1.5, layers=30)
    out = tmp_path_factory.mktemp("build") / "part.vtu"
    run(setup, out, series=False, more=lambda outcome, folder: found.append(outcome), quiet=True)
    return found[0]


def numbers(text):
    return [float(word) for word in re.findall(r"-?\d+\.?\d*", text)]


def test_largest_displacements_stand_with_their_places(outcome):
    u = outcome.released.displacement
    rows = dict(distortion_rows(outcome))
    for name, node in (("up", u[:, 2].argmax()), ("down", u[:, 2].argmin())):
        value, *place = numbers(rows[name])
        assert value == pytest.approx(u[node, 2], abs=1e-4)
        assert place == pytest.approx(outcome.positions[node], abs=0.05)
    sideways = np.hypot(u[:, 0], u[:, 1])
    assert numbers(rows["sideways"])[0] == pytest.approx(sideways.max(), abs=1e-4)
    assert outcome.positions[u[:, 2].argmax(), 0] == 12  # the tip of the overhang


def test_the_recoater_meets_the_overhang(outcome):
    rows = recoater_rows(outcome)
    over = int((outcome.interference[:-1, 0] > 0.04).sum())
    assert over > 0
    assert f"hits in {over} of 6 groups" in rows[0][1]
    worst = outcome.interference[:-1, 0].argmax()
    assert rows[1][0] == f"group {worst + 1}"
    assert numbers(rows[1][1]) == pytest.approx(outcome.interference[worst], abs=0.05)
    bars = recoater(outcome).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx(outcome.interference[:, 0].tolist())
    low = replace(outcome, interference=outcome.interference * 0.01)
    assert recoater_rows(low)[0][1].startswith("passes")


def test_the_last_group_does_not_count_since_no_layer_is_spread_on_it(outcome):
    high = outcome.interference * 0.01
    high[-1, 0] = 5.0
    last = replace(outcome, interference=high)
    assert last.verdict == "passes"
    assert "group 6" not in dict(recoater_rows(last))
    high[-2, 0] = 0.05
    assert last.verdict == "hits in 1 of 6 groups"
    one = replace(outcome, interference=high[-1:])
    assert recoater_rows(one)[0][1] == "passes: with one layer group, no layer is spread on the part"
    assert "no layer is spread on the part" in in_short(one)


def test_the_result_in_short_has_the_numbers_of_the_page(outcome):
    moved, recoated = in_short(outcome).splitlines()
    u, stress, met = outcome.released.displacement[:, 2], outcome.released.centre_von_mises, outcome.interference[:-1]
    found = numbers(moved)
    assert found[:4] == pytest.approx([u.max(), *outcome.positions[u.argmax()]], abs=0.051)
    assert found[4:8] == pytest.approx([-u.min(), *outcome.positions[u.argmin()]], abs=0.051)
    assert found[8] == round(stress.max())
    assert f"after group {met[:, 0].argmax() + 1}: {met[:, 0].max():.3f} mm" in recoated
    assert outcome.verdict in recoated


def test_what_makes_the_numbers_depend_on_the_voxels_stands_below_them(outcome, tmp_path):
    thin = replace(outcome, setup=replace(outcome.setup, notes=("walls are one voxel thick",)))
    assert "<li>walls are one voxel thick</li>" in write_build_page(thin, tmp_path).read_text()


def test_peak_stress_is_that_of_the_voxels(outcome):
    rows = dict(stress_rows(outcome))
    peak = outcome.cooled.centre_von_mises
    value, *place = numbers(rows["cooled, on the plate"])
    assert value == round(peak.max())
    assert place == pytest.approx(outcome.positions[outcome.cells[peak.argmax()]].mean(0), abs=0.051)


def test_the_profile_runs_along_the_longest_axis(outcome):
    line = profile(outcome).axes[0].lines[0]
    assert line.get_xdata()[[0, -1]] == pytest.approx([-12, 12])
    tip = np.isclose(outcome.positions[:, 0], 12)
    assert line.get_ydata()[-1] == pytest.approx(outcome.released.displacement[tip, 2].mean())


def test_the_page_is_whole_and_alone(outcome, tmp_path):
    plates = hotter_plates(outcome.setup, [400.0], quiet=True)
    page = write_build_page(outcome, tmp_path, plates=plates).read_text()
    for heading in ("Where it distorts", "Where the recoater would hit", "What a hotter plate would do", "Temperature"):
        assert f"<h2>{heading}</h2>" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "plate at 400 °C" in page
    spans = [numbers(text)[0] for _, text in plate_rows(plates)]
    assert spans[0] > spans[1]
    for picture in ("displacement.png", "von_mises.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    again = tmp_path / "again"
    again.mkdir()
    assert write_build_page(outcome, again, plates=plates).read_text() == page


def test_the_process_on_the_page_is_a_file_that_gives_it_again(outcome, tmp_path):
    page = html.unescape(write_build_page(outcome, tmp_path).read_text())
    (tmp_path / "process.yaml").write_text(re.search(r"<pre>(machine:.*?)</pre>", page, re.DOTALL)[1])
    assert load_process(tmp_path / "process.yaml") == outcome.setup.process


def test_without_plates_the_page_has_no_such_section(outcome, tmp_path):
    page = write_build_page(outcome, tmp_path, exaggerate=0.0).read_text()
    assert "hotter plate" not in page
    assert "nominal shape" in page


def test_a_part_of_voxels_has_a_page_and_heat_beyond_melting_stands_on_it(tmp_path):
    setup = prepare(bar((6, 3, 2.4)))
    metal = replace(setup.process.material, solidus=1.0)

    def report(outcome, folder):
        write_build_page(outcome, folder, plates=hotter_plates(outcome.setup, [400.0], quiet=True))
        hot = replace(outcome.setup.process, material=metal)
        write_build_page(replace(outcome, setup=replace(setup, process=hot)), tmp_path)

    run(setup, tmp_path / "part.vtu", series=False, more=report, quiet=True)
    page = (tmp_path / "part_build" / "report.html").read_text()
    assert "100.0 % of the part" in html.unescape(page)
    assert "1 of 2.4 mm" in page
    assert "solidus of" not in page
    assert "above the solidus of 1 °C" in (tmp_path / "report.html").read_text()
