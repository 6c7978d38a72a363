"""A hook of the site: makes the pages of the section Project from CONTRIBUTING.md and CHANGELOG.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

MAP = re.compile(r"^## The map\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
"""Section of CONTRIBUTING.md that is the page on the code."""


def on_files(files: Any, *, config: Any) -> None:
    root = Path(config.config_file_path).parent
    contributing = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    pages = {
        "contributing": MAP.sub("", contributing),
        "code-map": "".join(MAP.findall(contributing)).replace("## The map", "# Code map", 1),
        "changelog": (root / "CHANGELOG.md").read_text(encoding="utf-8"),
    }
    for name, text in pages.items():
        text = re.sub(r"\]\(docs/", "](../", text)
        text = re.sub(r"\]\((?!\.\./|#|\w+:)", "](../../", text)  # files of the repository, which links.py names
        files.append(File.generated(config, f"project/{name}.md", content=text))
