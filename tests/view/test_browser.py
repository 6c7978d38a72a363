"""The page in a real browser: it draws, its panels move together, and its values are right to 1e-6."""

import io
import re
import time

import matplotlib
import numpy as np
import pytest
from PIL import Image

from flare.view.cases import CaseSource
from flare.view.source import NotThere
from flare.view.standalone import write_standalone
from tests.view.test_answers import served

browser = pytest.importorskip("browser", reason="benchmarks/ is not beside the tests")
pytestmark = pytest.mark.skipif(browser.why_not() is not None, reason=f"no browser to test in: {browser.why_not()}")

STAGE = (237, 240, 243)
"""Background color of a panel, --stage of the light theme."""


@pytest.fixture(scope="module")
def chromium():
    with browser.browser() as found:
        yield found


@pytest.fixture
def opened(chromium):
    """opened(source or file) -> the loaded page. Any error in the browser fails the test."""
    problems, servers, pages = [], [], []

    def open_page(what, **options):
        context = chromium.new_context(viewport={"width": 960, "height": 460}, color_scheme="light", **options)
        page = context.new_page()
        pages.append(context)
        page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(request.url))
        page.problems = problems
        if hasattr(what, "catalogue"):
            servers.append(served(what))
            address = servers[-1].__enter__().url
        else:
            address = what.as_uri()
        page.goto(address)
        ready(page)
        return page

    yield open_page
    for context in pages:
        context.close()
    for server in servers:
        server.__exit__(None, None, None)
    assert problems == []


def ready(page, seconds=120):
    page.wait_for_selector(browser.READY, timeout=1000 * seconds)
    page.wait_for_function("() => !flare.stage.moving && flare.stage.waiting === null", timeout=1000 * seconds)


def picture(page):
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB")).astype(int)


def stage_boxes(page):
    """Return left, top, right, bottom of every panel in pixels."""
    boxes = [stage.bounding_box() for stage in page.locator(".stage").all()]
    return [[round(v) for v in (b["x"], b["y"], b["x"] + b["width"], b["y"] + b["height"])] for b in boxes]


def shapes(page):
    """Return where each panel is drawn, as masks of one size."""
    page.mouse.move(3, 3)
    page.wait_for_selector("#readout", state="hidden")
    ready(page)
    image = picture(page)
    drawn = [(image[top:bottom, left:right] != STAGE).any(-1) for left, top, right, bottom in stage_boxes(page)]
    height, width = np.min([mask.shape for mask in drawn], axis=0)
    return [mask[:height, :width] for mask in drawn]


def drag(page, panel):
    """Drag the body of a panel and return the center of the panel."""
    left, top, right, bottom = stage_boxes(page)[panel]
    x, y = (left + right) / 2, (top + bottom) / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 60, y + 25, steps=3)
    page.mouse.up()
    return x, y


def place(page, point, panel=0):
    """Return the position of a point on the page."""
    script = """([i, k]) => { const { stage, state } = flare, element = state.panels[k].element;
        const box = element.getBoundingClientRect(), at = stage.placeOf(i, element);
        return [box.left + at.x, box.top + at.y]; }"""
    return page.evaluate(script, [point, panel])


def readout(page, point, panel=0, nudge=(0, 0)):
    """Move the pointer to a point and return number and unit of every panel."""
    x, y = place(page, point, panel)
    page.mouse.move(x + nudge[0], y + nudge[1])
    page.wait_for_selector(f"#readout:not([hidden]) >> text=/^point {point} at/", timeout=60_000)
    return readout_now(page)


def readout_now(page):
    shown = {}
    for entry in page.locator("#readout dd").all():
        number, _, unit = entry.inner_text().replace("−", "-").partition(" ")
        shown[entry.get_attribute("data-kind")] = (float(number), unit)
    return shown


def test_the_page_draws_each_field_in_its_colors(plate, opened):
    page = opened(plate)
    image = picture(page)
    arrays = plate.field(2, "pressure")
    truth, prediction = (arrays[name].astype(float) for name in ("truth", "prediction"))
    error = prediction - truth
    low, high, most = truth.min(), truth.max(), np.abs(error).max()
    panels = [
        ("viridis", (truth - low) / (high - low)),
        ("viridis", np.clip((prediction - low) / (high - low), 0, 1)),
        ("RdBu_r", 0.5 + 0.5 * error / most),
    ]
    for panel, (colors, places) in enumerate(panels):
        for point in (8, 16, 31, 45, 53):  # inside the grid of 9 × 7
            x, y = (int(v) for v in place(page, point, panel))
            expected = 255 * np.array(matplotlib.colormaps[colors](places[point])[:3])
            assert np.abs(image[y, x] - expected).max() < 20, (panel, point)
    for left, top, _, _ in stage_boxes(page):
        assert tuple(image[top + 4, left + 4]) == STAGE


def test_dragging_one_panel_moves_all(block, opened):
    page = opened(block)
    before = shapes(page)
    x, y = drag(page, 1)
    after = shapes(page)
    page.mouse.move(x, y)
    page.mouse.wheel(0, 300)
    smaller = shapes(page)
    for drawn in (before, after, smaller):
        assert drawn[0].mean() > 0.03
        for other in drawn[1:]:  # equal up to pixels on the edge
            assert (drawn[0] != other).mean() < 0.002
    for k in range(3):
        assert (before[k] != after[k]).mean() > 0.02
        assert 0.3 < smaller[k].sum() / after[k].sum() < 0.9


def test_hovering_shows_values_to_six_digits(plate, opened):
    page = opened(plate)
    for field, unit in (("pressure", "Pa"), ("velocity.x", "m/s")):
        page.select_option("#field", field)
        ready(page)
        arrays = plate.field(2, field)
        truth, prediction = (arrays[name].astype(float) for name in ("truth", "prediction"))
        for point, panel in ((10, 0), (31, 1), (52, 2)):
            shown = readout(page, point, panel)
            assert shown["truth"] == (pytest.approx(truth[point], rel=1e-6), unit)
            assert shown["prediction"] == (pytest.approx(prediction[point], rel=1e-6), unit)
            assert shown["error"] == (pytest.approx(prediction[point] - truth[point], rel=1e-6), unit)


def test_hovering_a_solid_finds_the_corner_in_front(block, opened):
    page = opened(block)
    points = block.dataset[3].values["position"].astype(float)
    towards = np.array([0.50, -0.72, 0.47])  # approximate direction of the viewer
    nearest = int((points @ towards).argmax())
    shown = readout(page, nearest, nudge=(0, 4))  # a little below the upper corner, on a face
    assert shown["truth"] == (pytest.approx(float(block.field(3, "stress")["truth"][nearest]), rel=1e-6), "MPa")
    assert "(16, 0, 6) mm" in page.locator("#readout").inner_text()


def test_the_sample_picker_shows_other_samples(plate, opened):
    page = opened(plate)
    assert page.input_value("#sample") == "2"  # the first of the test split
    page.select_option("#sample", "4")
    ready(page)
    assert readout(page, 31)["truth"][0] == pytest.approx(float(plate.field(4, "pressure")["truth"][31]), rel=1e-6)
    assert "speed 5 m/s" in page.locator("#facts").inner_text()
    assert page.is_disabled("#next")
    page.click("#previous")
    ready(page)
    assert readout(page, 31)["truth"][0] == pytest.approx(float(plate.field(3, "pressure")["truth"][31]), rel=1e-6)
    page.select_option("#order", "error")
    worst = max((s for s in plate.catalogue()["samples"] if "error" in s), key=lambda s: s["error"])
    test_samples = page.locator("#sample optgroup[label=test] option")
    assert test_samples.first.get_attribute("value") == str(worst["id"])
    assert page.input_value("#sample") == "3"


def test_ranges_set_by_the_user_are_shared_by_truth_and_prediction(plate, opened):
    page = opened(plate)
    ends = page.locator(".panel[data-kind=prediction] input")
    automatic = ends.nth(1).input_value()
    ends.nth(1).fill("101400")
    ends.nth(1).press("Enter")
    ready(page)
    assert page.locator(".panel[data-kind=truth] input").nth(1).input_value() == "101400"
    assert page.locator(".panel[data-kind=error] input").nth(1).input_value() != "101400"
    before = picture(page)
    ends.nth(1).fill("no number")
    ends.nth(1).press("Enter")
    assert page.locator(".panel[data-kind=prediction] input:invalid").count() == 2
    page.locator(".panel[data-kind=truth] .auto").click()
    ready(page)
    assert ends.nth(1).input_value() == automatic
    left, top, right, bottom = stage_boxes(page)[0]
    assert (picture(page) != before)[top:bottom, left:right].any()


def test_the_eigenvectors_of_a_chosen_head_are_drawn(plate, opened):
    page = opened(plate)
    page.click("#spectra-button")
    ready(page)
    assert page.locator(".heads button").count() == 8
    page.click(".heads button[data-block='0'][data-head='2']")
    ready(page)
    modes = plate.modes(2, 0, 2)
    assert page.locator(".panel").count() == len(modes["eigenvalues"])
    shown = readout(page, 24, panel=1)
    for r, vector in enumerate(modes["eigenvectors"]):
        assert shown[f"mode-{r + 1}"][0] == pytest.approx(float(vector[24]), rel=1e-6)
    page.click("#spectra-button")
    ready(page)
    assert page.locator(".panel h2").all_inner_texts() == ["Truth", "Prediction", "Prediction − truth"]


def test_the_file_works_from_disk_without_a_network(plate, opened, tmp_path):
    write_standalone(plate, tmp_path / "page.html", [4, 2])
    page = opened(tmp_path / "page.html", offline=True)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.locator("#sample option").count() == 2
    assert page.locator("h1").inner_text() == "flare on plate"
    for sample in ("2", "4"):
        page.select_option("#sample", sample)
        ready(page)
        shown = readout(page, 31, panel=1)
        expected = float(plate.field(int(sample), "pressure")["prediction"][31])
        assert shown["prediction"] == (pytest.approx(expected, rel=1e-6), "Pa")
    image = picture(page)
    for left, top, right, bottom in stage_boxes(page):
        assert (image[top:bottom, left:right] != STAGE).any(-1).mean() > 0.2
    page.click("#spectra-button")
    ready(page)
    assert page.locator(".panel").count() == len(plate.modes(4, 1, 0)["eigenvalues"])
    assert [url for url in asked if not url.startswith(("data:", "blob:"))] == []


class UnsafeNames:
    """Names that look like HTML and paths, and a field that cannot be read."""

    name = '<img src=x onerror="document.title=1">/..'

    def catalogue(self):
        fields = [{"name": name, "unit": "<b>", "role": "extra"} for name in (self.name, "lost")]
        about = {"version": 1, "title": self.name, "facts": [["<i>", "&amp;"]], "dimension": 3, "length_unit": ""}
        sample = {"id": 0, "split": '"', "points": 8}
        return about | {"fields": fields, "parameters": [], "samples": [sample], "spectra": None}

    def geometry(self, sample):
        return {"points": 1e6 + np.array([[x, y, z] for x in (0, 1) for y in (0, 1) for z in (0, 1.0)])}

    def field(self, sample, name):
        if name == "lost":
            raise NotThere("the field <b>lost</b> is gone")
        return {"truth": 1e9 + np.arange(8.0) / 1024}


def test_names_are_shown_as_text_and_large_coordinates_keep_their_digits(opened):
    page = opened(UnsafeNames())
    assert page.locator("h1").inner_text() == UnsafeNames.name
    assert page.title() == UnsafeNames.name
    for point in (0, 5, 7):
        x, y = place(page, point)
        page.mouse.move(x, y)
        page.wait_for_selector("#readout:not([hidden])", timeout=60_000)
        number = int(re.match(r"point (\d+)", page.locator("#readout").inner_text())[1])
        corner = [float(v) for v in re.search(r"\((.+)\)", page.locator("#readout").inner_text())[1].split(", ")]
        assert corner == pytest.approx((1e6 + np.array([number >> 2, number >> 1 & 1, number & 1])).tolist(), abs=1)
    page.select_option("#field", "lost")
    ready(page)
    assert page.locator("#message").inner_text() == "the field <b>lost</b> is gone"
    assert page.input_value("#field") == UnsafeNames.name  # still shown
    page.problems[:] = [c for c in page.problems if "404" not in c and "is gone" not in c]


def test_parameters_of_a_file_are_shown_with_a_warning_if_it_is_out_of_distribution(opened, tmp_path):
    rng = np.random.default_rng(0)
    for name, numbers in (("a", {"familiarity_score": 22.04, "speed": 29.06}), ("b", {"familiarity_score": 0.8})):
        np.savez(tmp_path / f"{name}.npz", points=rng.random((40, 2)), heat=rng.random(40), **numbers)
    page = opened(CaseSource(tmp_path))
    assert "speed 29.06" in page.locator("#facts").inner_text()
    warning = page.locator("#warning")
    assert "22.04" in warning.inner_text()
    assert warning.evaluate("(line) => getComputedStyle(line).color") == "rgb(185, 28, 28)"
    page.click("#next")
    ready(page)
    assert warning.is_hidden()
    assert "familiarity_score 0.8" in page.locator("#facts").inner_text()
    assert "speed" not in page.locator("#facts").inner_text()
    assert page.is_visible("#size")  # of points


def test_a_large_body_is_drawn_with_fewer_points_while_it_moves(opened):
    import view

    page = opened(view.Ripples(210, "surface"))
    count = page.evaluate("() => [flare.state.body.few.count, flare.state.body.index.count]")
    assert 1000 < count[0] < 0.9 * count[1]
    drawn = """([whole, moving, all]) => {
        const { stage } = flare;
        Object.assign(stage.frames, { whole, few: Infinity, drawn: 1000 });
        Object.assign(stage, { moving, all });
        stage.draw();
        stage.moving = false;
        return [...stage.windows.map((w) => w.layer.whole.visible), stage.partial]; }"""
    assert page.evaluate(drawn, [5, True, False]) == [True] * 3 + [False]  # fast
    assert page.evaluate(drawn, [500, True, False]) == [False] * 3 + [False]  # slow: fewer points in motion,
    assert page.evaluate(drawn, [500, False, False]) == [True] * 3 + [False]  # all at rest
    assert page.evaluate(drawn, [9000, False, False]) == [False] * 3 + [True]  # very slow: fewer points and a note
    assert page.is_visible("#partial")
    assert page.evaluate(drawn, [9000, False, True]) == [True] * 3 + [False]  # the user asked for all


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["surface", "cloud"])
def test_a_million_points_are_drawn_rotated_and_read_out(kind, opened):
    """The time limits detect hangs; they are no measure of speed."""
    import view

    body = view.Ripples(1000, kind)
    assert len(body.points) == 1_000_000
    begin = time.monotonic()
    page = opened(body)
    page.set_default_timeout(120_000)
    assert page.evaluate("() => flare.state.body.positions.length / 3") == 1_000_000
    assert time.monotonic() - begin < 120

    before = shapes(page)
    x, y = drag(page, 0)
    after = shapes(page)
    for k in range(3):
        assert min(before[k].mean(), after[k].mean()) > 0.03
        assert (before[k] != after[k]).mean() > 0.02
    fields = {name: values.astype(float) for name, values in body.field(0, "height").items()}
    fields["error"] = fields["prediction"] - fields["truth"]
    for dx, dy in ((0, 0), (20, 10), (-25, 5)):
        page.mouse.move(3, 3)
        page.wait_for_selector("#readout", state="hidden")
        page.mouse.move(x + dx, y + dy)
        page.wait_for_selector("#readout:not([hidden])")
        point = int(re.match(r"point (\d+)", page.locator("#readout").inner_text())[1])
        assert np.hypot(*np.subtract(place(page, point), (x + dx, y + dy))) < 8, "not the one under the pointer"
        shown = readout_now(page)
        for name, values in fields.items():
            assert shown[name] == (pytest.approx(values[point], rel=1e-6, abs=1e-9), "mm")
    assert time.monotonic() - begin < 400
