"""Every action word of the log is documented, and nothing else is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from vitrine.core.status import RETURNING, RequestKind

ROOT = Path(__file__).parents[2]
KINDS = {"claim.kind": sorted(RETURNING), "kind": sorted(RequestKind)}
"""What an action is composed with, by the expression in the code."""


def actions() -> set[str]:
    return {
        action
        for file in (ROOT / "src").rglob("*.py")
        if file.name != "runs.py"  # a body has a field of that name
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "action"
        for action in words(value)
    }


def words(value: ast.expr) -> Iterator[str]:
    """The words that an expression may have."""
    match value:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp(body=body, orelse=orelse):
            yield from words(body)
            yield from words(orelse)
        case ast.JoinedStr(values=[ast.FormattedValue(value=inserted), ast.Constant(value=str(rest))]):
            yield from (f"{kind}{rest}" for kind in KINDS[ast.unparse(inserted)])
        case ast.Call(func=ast.Name(id="getattr")):
            return  # the word of another line
        case _:
            raise AssertionError(f"cannot read the action {ast.unparse(value)}; write it as a text")


def documented() -> set[str]:
    table = (ROOT / "docs" / "observability.md").read_text("utf-8").partition("| `action` | Level | When |")[2]
    lines = table.partition("\n\n")[0].splitlines()
    return {word for line in lines for word in re.findall(r"`(\w+)`", line.split("|")[1] if "|" in line else "")}


def test_every_action_is_documented_and_every_documented_action_exists() -> None:
    assert documented() == actions()
