"""What `apply` shows of each pipeline."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitrine.cli import output

if TYPE_CHECKING:
    from vitrine.revisions import Applied, Difference

LONGEST_LINE = 60
"""Two longer values are shown below each other."""


def show(applied: "Iterable[Applied]") -> None:
    for one in applied:
        output.show(f"{one.name}: {one.outcome}")
        for difference in one.differences:
            for line in _lines(difference):
                output.show(f"  {line}")
        if one.resets:
            output.show("  state: reset")


def _lines(difference: "Difference") -> Iterator[str]:
    old, new = _text(difference.old), _text(difference.new)
    if "\n" not in old + new and len(old) + len(new) <= LONGEST_LINE:
        yield f"{difference.field}: {_printable(old)} → {_printable(new)}"
        return
    from difflib import ndiff

    yield f"{difference.field}:"
    for line in ndiff(old.split("\n"), new.split("\n")):
        if not line.startswith("?"):
            yield f"  {_printable(line)}".rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "default"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _printable(text: str) -> str:
    """Without characters that would control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
