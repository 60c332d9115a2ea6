"""The layout of the tests: shared helpers live in tests/helpers."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imports_of(text: str) -> Iterator[str]:
    """Dotted names that a module imports, wherever the import stands in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = "tests." if node.level else ""
            yield from (f"{package}{node.module or ''}.{one.name}" for one in node.names)


def from_test_modules(text: str) -> list[str]:
    """What a module imports from a test module."""
    named = [name.split(".") for name in imports_of(text)]
    return [".".join(parts) for parts in named if parts[0] == "tests" and any(one.startswith("test_") for one in parts)]


def test_no_module_imports_from_a_test_module() -> None:
    found = {str(file.relative_to(TESTS)): from_test_modules(file.read_text("utf-8")) for file in TESTS.rglob("*.py")}
    assert {file: names for file, names in found.items() if names} == {}


def test_an_import_from_a_test_module_is_found_in_every_form() -> None:
    assert from_test_modules("def use():\n    from tests.unit.test_plan import PLAN") == ["tests.unit.test_plan.PLAN"]
    assert from_test_modules("from tests.unit import test_plan") == ["tests.unit.test_plan"]
    assert from_test_modules("from .test_plan import PLAN") == ["tests.test_plan.PLAN"]
    assert from_test_modules("from tests.helpers.waiting import wait_until\nimport test_support") == []
