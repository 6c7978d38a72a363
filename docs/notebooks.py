"""A hook of the site: adds a page for each notebook in `notebooks/`, with its saved outputs."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

FOLDER = Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, *, config: Any, **_: Any) -> Files:
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        page, pictures = as_markdown(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=page))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def as_markdown(notebook: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    blocks: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        blocks.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{notebook.stem}-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                blocks.append(f"![Output]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                blocks.append(f"```text\n{text}\n```")
    note = f"*This page is the notebook `notebooks/{notebook.name}`.*"
    return "\n\n".join([blocks[0], note, *blocks[1:]]) + "\n", pictures
