"""Text from names, rows and errors, as a terminal may show it."""

import re
import unicodedata

_LETTERS = frozenset("\u200c\u200d")
"""Joiners are part of words in some scripts; they control nothing else."""


def printable(text: str, *, lines: bool = False) -> str:
    """The text with every character visible that would control a terminal: ESC as \\x1b, and so on.

    Changes of the writing direction count as well: they can make a line read as another one. With `lines`, line breaks
    stay.
    """
    if text.isprintable():
        return text
    return "".join(_shown(letter, lines=lines) for letter in text)


def printable_json(text: str) -> str:
    """JSON that means the same, without such characters: JSON has an escape for each."""
    if text.isprintable():
        return text
    return re.sub(r"[^\n -~]", lambda found: _json_escape(found[0]), text)


def markup(value: object) -> str:
    """A value within text for a rich console: neither its markup nor its control characters have an effect."""
    from rich.markup import escape

    return escape(printable(str(value)))


def _shown(letter: str, *, lines: bool) -> str:
    if letter.isprintable() or (lines and letter == "\n") or not _controls(letter):
        return letter
    return letter.encode("unicode_escape", "backslashreplace").decode("ascii")


def _json_escape(letter: str) -> str:
    if not _controls(letter):
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _controls(letter: str) -> bool:
    """Control characters, formatting such as direction changes, halves of surrogate pairs, separators of lines."""
    return unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _LETTERS
