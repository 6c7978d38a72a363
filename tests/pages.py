"""What the pages show: their Python blocks and their commands, in the order in which a reader meets them."""

import re
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
    """All there is to do on a page, from top to bottom. A block is one of commands if its first line is one."""
    found: list[Step] = []
    language, block, before = None, [], ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        indented = language is None and line.startswith("    ") and not before.strip()
        if line.startswith("```") and language is None:
            language, block = line[3:].strip(), []
        elif line.startswith("```"):
            if language == "python":
                found.append(Step(name_of(page), number - len(block), "python", "\n".join(block)))
            elif language == "" and COMMAND.match(block[0]):
                begins = number - len(block)
                found += [
                    Step(name_of(page), begins + i, "shell", without_comment(line)) for i, line in enumerate(block)
                ]
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


def without_comment(line: str) -> str:
    return re.sub(r"\s+#.*", "", line).strip()


def to_run(page: Path) -> list[Step]:
    """Steps that a reader would take: all but names of verbs in sentences."""
    return [step for step in steps(page) if step.kind != "sentence" or WHOLE.search(step.text)]
