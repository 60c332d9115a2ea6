"""A place in the text of a query."""

import unicodedata
from dataclasses import dataclass
from typing import Self

_WIDEST = 72
"""Characters of a line that are shown; a longer line is shown around the place."""


@dataclass(frozen=True)
class Place:
    """A character of a text, with the line that contains it; line and column count from 1."""

    line: int
    column: int
    text: str

    @classmethod
    def at(cls, text: str, offset: int) -> Self:
        """The place of a character; one behind the last is the end of the text."""
        before = text[: max(offset, 0)]
        lines = text.split("\n")
        line = min(before.count("\n"), len(lines) - 1)
        return cls(line + 1, len(before) - before.rfind("\n"), lines[line].rstrip("\r"))

    @classmethod
    def at_byte(cls, text: str, offset: int) -> Self:
        """The same for an offset in the UTF-8 form of the text, as the parser counts."""
        return cls.at(text, len(text.encode()[:offset].decode(errors="ignore")))

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def excerpt(self) -> str:
        """The line, with a caret below the place."""
        start = max(0, self.column - 1 - _WIDEST // 2) if len(self.text) > _WIDEST else 0
        # every character that is no letter or sign of its own width would move the caret
        shown = "".join(c if c.isprintable() else " " for c in self.text[start : start + _WIDEST])
        margin = f"{self.line} | "
        blank = " " * (len(margin) - 2) + "| "
        return f"{margin}{shown}\n{blank}{' ' * _cells(shown[: self.column - 1 - start])}^"


def _cells(text: str) -> int:
    """The width of a text in a terminal."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
