"""A browser without a screen, for measurements and tests of the page: playwright and the system's chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# A container has no sandbox and no GPU; the rest keeps the browser from calling home.
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
READY = 'body[aria-busy="false"]'
"""The page shows what was asked for."""


def why_not() -> str | None:
    """What is missing, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    return None if shutil.which("chromium") else "there is no chromium on the path"


@contextmanager
def browser() -> Iterator[Any]:
    """A chromium with a fresh profile; pages come from its `new_page(viewport=…)`."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            yield chromium
        finally:
            chromium.close()
