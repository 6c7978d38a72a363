"""The page: one file, nothing fetched, nothing unescaped, whole or not there."""

import re
import subprocess
import sys
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from flare.report.curves import error_histogram
from flare.report.page import save_png, write_page

NASTY = "<script>alert('&')</script>"


def picture():
    return error_histogram(np.random.default_rng(0).random(50))


def is_a_picture(png):
    """Decodes, and is not one color."""
    pixels = imread(BytesIO(png))
    return pixels.ndim == 3 and min(pixels.shape[:2]) > 100 and pixels[..., :3].std() > 0.05


class Page(HTMLParser):
    """Tags with their attributes and the visible text of a page; refuses tags that do not nest."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path, shown = tmp_path_factory.mktemp("page") / "report.html", picture()
    write_page(
        path,
        title=f"Darcy {NASTY}",
        summary=[("Test error", "0.0123"), (NASTY, NASTY)],
        figures=[("Loss", "Falls.", shown), ("Sample", f'The "median" one {NASTY}', shown), ("Rest", "", shown)],
        tables=[("Model", [("channels", "64"), ("latents", NASTY)]), ("Data", [("samples", "1200")])],
        texts=[("Configuration", f"model:\n  name: {NASTY}\n")],
        footer=f"commit {NASTY}",
    )
    return path


def test_text_is_complete_and_escaped(written):
    html = written.read_text()
    page = Page(html)
    assert page.all("script") == []
    assert page.text.count(NASTY) == 8  # the title twice: in the tab and on the page
    for word in ("Test error", "0.0123", "Falls.", "channels", "1200", "model:\n  name:"):
        assert word in page.text


def test_the_page_fetches_nothing(written):
    html = written.read_text()
    assert not re.search(r"https?:|//\w", re.sub(r"base64,[\w+/=]+", "", html))
    for _, attrs in Page(html).tags:
        assert all(value.startswith("data:") for key, value in attrs.items() if key in {"src", "srcset", "data"})
        assert attrs.get("href", "#").startswith("#")
    assert "url(" not in html
    assert "@import" not in html


def test_pictures_are_embedded_with_alternative_text(written):
    html = written.read_text()
    images = Page(html).all("img")
    assert len(images) == html.count("data:image/png;base64,") == 3
    assert all(is_a_picture(b64decode(image["src"].split(",", 1)[1])) for image in images)
    assert [image["alt"] for image in images] == ["Loss: Falls.", f'Sample: The "median" one {NASTY}', "Rest"]


def test_the_contents_lead_to_every_section(written):
    page = Page(written.read_text())
    links = [attrs["href"].removeprefix("#") for attrs in page.all("a")]
    assert links == [attrs["id"] for attrs in page.all("section")]
    assert len(links) == 6


def test_the_page_supports_phones_dark_mode_and_printing(written):
    html = written.read_text()
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_an_empty_page_is_a_page(tmp_path):
    write_page(tmp_path / "empty.html", title="Nothing yet")
    page = Page((tmp_path / "empty.html").read_text())
    assert page.all("section") == page.all("nav") == []


def test_a_failed_page_keeps_the_old_one(written):
    before = written.read_bytes()
    broken = Figure()
    broken.savefig = lambda *args, **options: 1 / 0
    with pytest.raises(ZeroDivisionError):
        write_page(written, title="New", figures=[("Broken", "", broken)])
    assert written.read_bytes() == before
    assert [path.name for path in written.parent.iterdir()] == ["report.html"]


def test_save_png(tmp_path):
    save_png(picture(), tmp_path / "picture.png")
    assert is_a_picture((tmp_path / "picture.png").read_bytes())
    assert not list(tmp_path.glob("*.partial"))


def test_the_same_picture_has_the_same_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        save_png(picture(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_pictures_need_no_pyplot_and_the_package_no_pictures():
    code = """
import sys, flare, flare.report, flare.models.spectra
assert not {"matplotlib", "jinja2"} & set(sys.modules)
import flare.report.curves, flare.report.page, flare.report.spectra, flare.report.triptych
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
