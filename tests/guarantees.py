"""Writes docs/guarantees-tests.md, the list of tests behind each promise: `python -m tests.guarantees`."""

import ast
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.helpers import catalog
from tests.mutants import table

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "guarantees.md"
APPENDIX = DOCS / "guarantees-tests.md"
MARK = "pytest.mark.promise"

_HEAD = f"""# Tests of the guarantees

Generated from the marks in the tests by `make guarantees`; do not edit. The promises are in [{PAGE.name}]({PAGE.name}).
Test ids are relative to `tests/`. **mutant** means that the test fails when `make mutants` removes the protection.
"""


def promises(page: str) -> list[str]:
    """Numbers of the promises on the page, in its order."""
    return re.findall(r"^- \*\*([A-Z]\d+)\*\* ", page, flags=re.MULTILINE)


def marked_tests() -> dict[str, tuple[str, ...]]:
    """The promises of each test that has a mark."""
    marks = {test: _marks_of(function) for test, function in catalog.test_functions().items()}
    return {test: numbers for test, numbers in marks.items() if numbers}


def render(numbers: Iterable[str], marked: Mapping[str, tuple[str, ...]], mutants: Iterable[table.Mutant]) -> str:
    """The appendix: a line for each promise and its tests below it."""
    proven_by_mutants = {(mutant.id, mutant.test.partition("[")[0]) for mutant in mutants}
    lines = [_HEAD]
    for number in numbers:
        lines.append(f"- **{number}**")
        for test in (test for test, named in marked.items() if number in named):
            suffix = " **mutant**" if (number, test) in proven_by_mutants else ""
            lines.append(f"  - `{test.removeprefix('tests/')}`{suffix}")
    return "\n".join(lines) + "\n"


def appendix() -> str:
    return render(promises(PAGE.read_text("utf-8")), marked_tests(), table.load())


def _marks_of(function: ast.FunctionDef) -> tuple[str, ...]:
    return tuple(
        str(ast.literal_eval(argument))
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == MARK
        for argument in decorator.args
    )


if __name__ == "__main__":
    APPENDIX.write_text(appendix(), "utf-8")
