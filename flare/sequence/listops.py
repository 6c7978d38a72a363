"""ListOps: evaluate a nested list expression over digits, such as [MAX 4 3 [MIN 2 3 ] 1 0 ], which is 4.

    example = ListOps().sample(np.random.default_rng(0))
    example.label                           # 0 … 9
    to_text(example.tokens)                 # "[SM [MED 3 ...

MIN, MAX, MED (median, rounded down) and SM (sum modulo 10) take two or more arguments. Each depends only on how often
each digit occurs among its arguments, so that an expression is evaluated with one histogram per open bracket.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numba
import numpy as np
from numpy.typing import NDArray

from flare.sequence.files import SplitFiles, read_lines
from flare.sequence.store import Example, SequenceSchema
from flare.utils.errors import ConfigError, DataError
from flare.utils.interrupts import defer_interrupts
from flare.utils.numba_cache import compiled

Tokens = NDArray[np.uint8]

WORDS = ("", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")
"""Meaning of each token id; 0 is padding."""
IDS = {word: i for i, word in enumerate(WORDS) if word}
DIGIT_0, MIN, MAX, MED, SM, CLOSE = (IDS[word] for word in ("0", "[MIN", "[MAX", "[MED", "[SM", "]"))
DIGITS = tuple("0123456789")
LONGEST = 2000
DRAWS = 1_000_000
"""Most draws for one expression. With the benchmark's limits one in twelve has an accepted length."""


@dataclass(frozen=True, kw_only=True)
class ListOps:
    """Generator of random expressions, with the defaults of the Long Range Arena."""

    min_length: int = 500
    """An expression has more tokens than this."""
    max_length: int = LONGEST
    """An expression has fewer tokens than this."""
    max_depth: int = 10
    """Most nested brackets plus one: at this depth every argument is a digit."""
    max_arguments: int = 10
    """Most arguments of an operator; the fewest are 2."""

    samples: ClassVar[int] = 100_000
    val_samples: ClassVar[int] = 2_000
    test_samples: ClassVar[int] = 2_000

    def __post_init__(self) -> None:
        least = {"max_arguments": 2, "max_depth": 2, "min_length": 0, "max_length": max(5, self.min_length + 2)}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least {low} in {self}")

    def schema(self) -> SequenceSchema:
        return _schema(self.max_length)

    def sample(self, rng: np.random.Generator) -> Example:
        """Draw an expression with min_length < tokens < max_length.

        Every node is an operator with probability 1/4, with 2 … max_arguments arguments, and a digit otherwise. At
        `max_depth` it is a digit. Expressions of other lengths are rejected.

        Raises:
            ConfigError: `DRAWS` expressions were rejected.
        """
        tokens = np.empty(self.max_length - 1, np.uint8)
        with defer_interrupts():
            length = _draw(rng, tokens, self.min_length, self.max_depth, self.max_arguments)
        if not length:
            raise ConfigError(f"none of {DRAWS:,} expressions had an accepted length with {self}; reduce min_length")
        return Example((tokens[:length],), evaluate(tokens[:length]))

    def provenance(self) -> dict[str, Any]:
        return {"kind": "recreated", "generator": "flare.sequence.listops", "numba": numba.__version__}


@dataclass(frozen=True, kw_only=True)
class ListOpsFiles(SplitFiles):
    """Published files: one per split with tab-separated `Source` and `Target` below a header. Targets are verified."""

    name: ClassVar[str] = "listops"
    reader: ClassVar[str] = "flare.sequence.listops.ListOpsFiles"
    published: ClassVar[tuple[int, int]] = (98_000, 2_000)
    train_file: str = "basic_train.tsv"
    val_file: str = "basic_val.tsv"
    test_file: str = "basic_test.tsv"

    def schema(self) -> SequenceSchema:
        return _schema(LONGEST)

    def rows(self, path: Path) -> Iterator[tuple[int, str]]:
        for number, line in read_lines(path):
            if number > 1:
                yield number, line
            elif line.split("\t") != ["Source", "Target"]:
                raise DataError(f"{path}, line 1: {line[:40]!r} must be the header, Source and Target with a tab")

    def parse(self, line: str, where: str) -> Example:
        source, tab, target = line.rpartition("\t")
        if not tab or target not in DIGITS:
            raise DataError(f"{where}: the target {target[-20:]!r} must be a digit after a tab; is the file complete?")
        try:
            tokens = from_text(source)
            value = evaluate(tokens)
        except DataError as error:
            raise DataError(f"{where}: {error}") from None
        if value != int(target):
            raise DataError(f"{where}: the target is {target}, but the value of the expression is {value}")
        return Example((tokens,), value)


def evaluate(tokens: Tokens) -> int:
    """Return the value of an expression, 0 … 9."""
    value = _evaluate(np.ascontiguousarray(tokens, np.uint8))
    if value < 0:
        raise DataError(f"{to_text(tokens)[:60]!r} ... is not one complete expression; check brackets and arguments")
    return int(value)


def to_text(tokens: Tokens) -> str:
    return " ".join(WORDS[token] for token in tokens)


def from_text(text: str) -> Tokens:
    """Parse an expression. The parentheses of the published files carry no information and are dropped."""
    words = text.replace("(", " ").replace(")", " ").split()
    unknown = next((word for word in words if word not in IDS), None)
    if unknown is not None:
        raise DataError(f"{unknown!r} is not a digit, operator or closing bracket")
    return np.array([IDS[word] for word in words], np.uint8)


def _schema(longest: int) -> SequenceSchema:
    return SequenceSchema(name="listops", vocabulary=len(WORDS), classes=DIGITS, longest=longest)


@compiled
def _draw(rng: np.random.Generator, tokens: Tokens, min_length: int, max_depth: int, max_arguments: int) -> int:
    """Write the first random expression of an accepted length, and return the length, or 0 after `DRAWS` draws."""
    for _ in range(DRAWS):
        length = _grow(rng, tokens, max_depth, max_arguments)
        if length > min_length:
            return length
    return 0


@compiled
def _grow(rng: np.random.Generator, tokens: Tokens, max_depth: int, max_arguments: int) -> int:
    """Write a random expression from left to right, and return its length, or 0 if it is too long."""
    missing = np.zeros(max_depth + 1, np.int64)  # arguments still missing in every open bracket
    missing[0] = 1  # the expression itself, at depth 1
    depth, length = 1, 0
    while depth > 1 or missing[0] > 0:
        if length == len(tokens):
            return 0
        if missing[depth - 1] == 0:
            tokens[length] = CLOSE
            depth -= 1
        else:
            missing[depth - 1] -= 1
            if depth < max_depth and rng.random() <= 0.25:
                tokens[length] = rng.integers(MIN, SM + 1)
                missing[depth] = rng.integers(2, max_arguments + 1)
                depth += 1
            else:
                tokens[length] = rng.integers(DIGIT_0, DIGIT_0 + 10)
        length += 1
    return length


@compiled
def _evaluate(tokens: Tokens) -> int:
    """Return the value of an expression, or −1 if the tokens are not exactly one expression."""
    seen = np.zeros((len(tokens) + 1, 10), np.int64)  # histogram of the arguments of every open bracket
    operator = np.zeros(len(tokens) + 1, np.uint8)
    depth = 0
    for place, token in enumerate(tokens):
        if place > 0 and depth == 0:
            return -1  # tokens after the end of the expression
        if MIN <= token <= SM:
            depth += 1
            operator[depth] = token
            seen[depth] = 0
        elif token == CLOSE:
            if seen[depth].sum() == 0:
                return -1
            value = _apply(operator[depth], seen[depth])
            depth -= 1
            seen[depth, value] += 1
        elif DIGIT_0 <= token < DIGIT_0 + 10:
            seen[depth, token - DIGIT_0] += 1
        else:
            return -1
    if depth > 0 or len(tokens) == 0:
        return -1
    return int(np.argmax(seen[0]))


@compiled
def _apply(operator: int, seen: NDArray[np.int64]) -> int:
    """Return the value of an operator from the histogram of its arguments."""
    count = seen.sum()
    if operator == SM:
        return int((seen * np.arange(10)).sum() % 10)
    if operator == MIN:
        return _ranked(seen, 0)
    if operator == MAX:
        return _ranked(seen, count - 1)
    return (_ranked(seen, (count - 1) // 2) + _ranked(seen, count // 2)) // 2


@compiled
def _ranked(seen: NDArray[np.int64], rank: int) -> int:
    """Return the digit of this rank among the sorted arguments."""
    before = 0
    for digit in range(10):
        before += seen[digit]
        if rank < before:
            return digit
    return 9
