"""The page of guarantees, the marks in the tests and the generated list of tests agree."""

import re
from dataclasses import replace

import pytest

from tests import guarantees
from tests.mutants import table

PROVEN, _, NOT_YET = guarantees.PAGE.read_text("utf-8").partition("## Not proven yet")
NUMBERS = guarantees.promises(PROVEN)
MARKED = guarantees.marked_tests()


def in_order(numbers: list[str]) -> list[str]:
    return sorted(numbers, key=lambda number: (number[0], int(number[1:])))


def test_every_promise_stands_once_and_in_order_under_the_heading_of_its_letter() -> None:
    found = re.findall(r"^(?:## ([A-Z])\.|- \*\*([A-Z])\d+\*\*) ", PROVEN, flags=re.MULTILINE)
    heading = ""
    for letter, promise in found:
        heading = letter or heading
        assert promise in ("", heading)
    assert in_order(NUMBERS) == NUMBERS
    assert len(set(NUMBERS)) == len(NUMBERS) > 0


def test_a_promise_is_one_line_that_ends_with_a_full_stop() -> None:
    lines = [line for line in PROVEN.splitlines() if line.startswith("- **") and re.match(r"- \*\*[A-Z]\d", line)]
    assert len(lines) == len(NUMBERS)
    assert [line for line in lines if not line.endswith(".")] == []


def test_a_number_is_proven_or_reserved_and_never_both() -> None:
    reserved = re.findall(r"\b[A-Z]\d+\b", NOT_YET)
    assert len(set(reserved)) == len(reserved)
    assert set(reserved).isdisjoint(NUMBERS)


def test_every_promise_has_a_test() -> None:
    assert set(NUMBERS) - {number for numbers in MARKED.values() for number in numbers} == set()


def test_no_mark_names_an_unknown_promise() -> None:
    unknown = {test: set(numbers) - set(NUMBERS) for test, numbers in MARKED.items()}
    assert {test: numbers for test, numbers in unknown.items() if numbers} == {}


@pytest.mark.parametrize("mutant", table.load(), ids=lambda mutant: mutant.id)
def test_the_test_of_a_mutant_is_marked_with_its_promise(mutant: table.Mutant) -> None:
    assert mutant.id in MARKED.get(mutant.test.partition("[")[0], ())


def test_the_list_of_tests_is_up_to_date() -> None:
    written = guarantees.APPENDIX.read_text("utf-8")
    assert written == guarantees.appendix(), "run `make guarantees` and commit docs/guarantees-tests.md"


def test_the_list_shows_each_test_below_its_promises_and_which_of_them_a_mutant_proves() -> None:
    mutant = replace(table.load()[0], id="A1", test="tests/unit/test_a.py::test_a[1]")
    marked = {"tests/unit/test_a.py::test_a": ("A1", "A2"), "tests/unit/test_b.py::test_b": ("A2",)}
    _, _, listed = guarantees.render(["A1", "A2"], marked, [mutant]).partition("- **A1**\n")
    assert listed.splitlines() == [
        "  - `unit/test_a.py::test_a` **mutant**",
        "- **A2**",
        "  - `unit/test_a.py::test_a`",
        "  - `unit/test_b.py::test_b`",
    ]
