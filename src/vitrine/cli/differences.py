"""What `apply` shows of each pipeline."""

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from vitrine.cli import output
from vitrine.printable import printable

if TYPE_CHECKING:
    from vitrine.service.bodies.files import AppliedPipelineBody, DifferenceBody

LONGEST_LINE = 60
"""Two longer values are shown below each other."""


def show(applied: "Iterable[AppliedPipelineBody]") -> None:
    for one in applied:
        output.show(f"{one.name}: {one.outcome}")
        for difference in one.differences:
            for line in _lines(difference):
                output.show(f"  {line}")
        if one.resets:
            output.show("  state: reset")
        if one.drifted:
            output.show("  it had been changed since its file was applied; the file replaces these changes")


def _lines(difference: "DifferenceBody") -> Iterator[str]:
    old, new = _text(difference.old), _text(difference.new)
    if "\n" not in old + new and len(old) + len(new) <= LONGEST_LINE:
        yield f"{difference.field}: {printable(old)} → {printable(new)}"
        return
    from difflib import ndiff

    yield f"{difference.field}:"
    for line in ndiff(old.split("\n"), new.split("\n")):
        if not line.startswith("?"):
            yield f"  {printable(line)}".rstrip()


def _text(value: Any) -> str:
    if value is None:
        return "default"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
