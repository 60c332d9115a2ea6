"""The texts of the console."""

import ast
from collections import Counter
from pathlib import Path

import vitrine

TEXTS = Path(vitrine.__file__).parent / "console" / "texts.py"


def test_no_text_of_the_console_replaces_another_of_the_same_name() -> None:
    tree = ast.parse(TEXTS.read_text(encoding="utf-8"))
    names = Counter(
        target.id
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    )
    assert names
    assert [name for name, count in names.items() if count > 1] == []
