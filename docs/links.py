"""A hook of the site: links to notebooks, CONTRIBUTING and CHANGELOG lead to their pages; other files are named."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

PAGES = {"CONTRIBUTING.md": "project/contributing.md", "CHANGELOG.md": "project/changelog.md"}
"""File of the repository -> page that docs/project.py makes of it."""


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    depth = len(PurePosixPath(page.file.src_uri).parts)

    def converted(link: re.Match[str]) -> str:
        text, path = link.groups()
        if path in PAGES:
            return f"[{text}]({'../' * (depth - 1)}{PAGES[path]})"
        if path.endswith(".ipynb"):
            return f"[{text}]({'../' * (depth - 1)}{path.removesuffix('ipynb')}md)"
        return f"`{path}`" if path.rstrip("/").endswith(text.strip("`/")) else f"{text} (`{path}`)"

    return re.sub(rf"\[([^\]]+)\]\((?:\.\./){{{depth}}}([^)]+)\)", converted, markdown)
