"""A hook of the site: renders LaTeX, `$...$` in a line and `$$...$$` on its own lines, as MathML without any script."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from latex2mathml.converter import convert

INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)

LETTERS = re.compile(r'(?:<mi mathvariant="normal">[A-Za-z]</mi>){2,}')


def on_page_content(html: str, **_: Any) -> str:
    html = INLINE.sub(lambda found: as_mathml(found[1], "inline"), html)
    return DISPLAY.sub(lambda found: as_mathml(found[1], "block"), html)


def as_mathml(escaped: str, display: str) -> str:
    """Convert LaTeX as it stands in HTML; upright letters that follow each other become one word."""
    mathml = convert(unescape(escaped).strip(), display=display)
    return LETTERS.sub(lambda word: f"<mi>{re.sub('<[^>]+>', '', word[0])}</mi>", mathml)
