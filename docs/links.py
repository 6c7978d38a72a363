"""A hook of the site: links to files of the repository that are no pages become the names of those files."""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)]+)\)", _named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if path.rstrip("/").endswith(text.strip("`/")) else f"{text} (`{path}`)"
