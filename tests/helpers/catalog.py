"""All test functions of the suite, found by reading the files without importing them."""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]


@cache
def test_functions() -> dict[str, ast.FunctionDef]:
    """Each test function by its pytest id without parameters, in the order of files and lines."""
    return {
        f"tests/{file.relative_to(TESTS).as_posix()}::{node.name}": node
        for file in sorted(TESTS.rglob("test_*.py"))
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def is_a_test(pytest_id: str) -> bool:
    """Parameters in brackets are not checked."""
    return pytest_id.partition("[")[0] in test_functions()
