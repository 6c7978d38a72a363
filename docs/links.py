"""A hook of the site: replaces links to files of the repository that are not pages by the names of those files."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    depth = len(PurePosixPath(page.file.src_uri).parts)
    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{depth}}}([^)]+)\)", _named, markdown)


def _named(link: re.Match[str]) -> str:
    text, path = link.groups()
    return f"`{path}`" if path.rstrip("/").endswith(text.strip("`/")) else f"{text} (`{path}`)"
