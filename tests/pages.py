"""What the pages show: their Python blocks and their commands, in the order in which a reader meets them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = "flare|curl|docker|make|pip|python|torchrun"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ +)*(?:{PROGRAMS}) ")
"""How a line of a block begins that is a command, and no output, listing or formula."""
LAUNCHED = re.compile(r"^(?:[A-Z_]+=\S+ +)*(?:torchrun [\w -]*-m )?flare (?=\S)")
"""What comes before the words of a command of ours: variables, torchrun, the name itself."""
PLACEHOLDER = re.compile(r"…|\.\.\.|\||\b[A-Z]{3,}\b|<")
"""Marks of text that stands for a command and is none: `flare train …`, `flare data make a|b`, `flare predict RUN`."""
WHOLE = re.compile(r" --|[/.]")
"""What a command within a sentence names if it is meant to be given, and not only its verb: an option or a file."""


@dataclass(frozen=True)
class Step:
    """Something on a page to be done by its reader."""

    page: str
    line: int
    kind: str
    """`python`: a block; `shell`: a command in a block; `sentence`: one within a sentence or a table."""
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def steps(page: Path) -> list[Step]:
    """List all there is to do on a page, from top to bottom.

    A block marked `bash` consists of commands; so does an unmarked block whose first line is a command.
    """
    found: list[Step] = []
    language, block, before = None, [], ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = line.strip().startswith("```")
        indented = language is None and line.startswith("    ") and not before.strip()
        if fence and language is None:
            language, block = line.strip()[3:].strip(), []
        elif fence:
            begins = number - len(block)
            if language == "python":
                text = textwrap.dedent("\n".join(block))
                found.append(Step(name_of(page), begins, "python", text))
            elif language == "bash" or (language == "" and COMMAND.match(block[0])):
                found += [Step(name_of(page), begins + i, "shell", text) for i, text in commands_of(block)]
            language = None
        elif language is not None:
            block.append(line)
        elif indented and COMMAND.match(line.strip()):
            found.append(Step(name_of(page), number, "shell", without_comment(line)))
        else:
            spans = re.findall(r"`([^`\n]+)`", line)
            mentioned = [span for span in spans if LAUNCHED.match(span) and not PLACEHOLDER.search(span)]
            found += [Step(name_of(page), number, "sentence", span) for span in mentioned]
        before = "" if indented else line
    return found


def commands_of(block: list[str]) -> list[tuple[int, str]]:
    """List the commands of a block with the index of their first lines, joined where a line ends in a backslash."""
    found: list[tuple[int, str]] = []
    parts: list[str] = []
    for index, line in enumerate(block):
        parts.append(without_comment(line).removesuffix("\\").strip())
        if not line.rstrip().endswith("\\"):
            found.append((index + 1 - len(parts), " ".join(parts)))
            parts = []
    return [(index, text) for index, text in found if text]


def without_comment(line: str) -> str:
    return re.sub(r"(^|\s+)#.*", "", line).strip()


def to_run(page: Path) -> list[Step]:
    """Steps that a reader would take: all but names of verbs in sentences."""
    return [step for step in steps(page) if step.kind != "sentence" or WHOLE.search(step.text)]
