"""The page of guarantees keeps up with the tests: what it names exists, and every mutant belongs to a promise."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.table import load

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
PROVEN, _, NOT_YET = (ROOT / "docs" / "guarantees.md").read_text("utf-8").partition("## Not proven yet")
ROWS = re.findall(r"^\| ([A-I]\d+) \| (.+) \| (.+) \|$", PROVEN, flags=re.MULTILINE)
WITHOUT_NUMBER = re.findall(r"^\| ([A-Z][^|]+\.) \| (.+) \|$", PROVEN, flags=re.MULTILINE)
NUMBERS = [number for number, _, _ in ROWS]


@cache
def functions_of(file: Path) -> frozenset[str]:
    """Functions of a test file, by name; none where there is no such file."""
    if not file.is_file():
        return frozenset()
    parsed = ast.parse(file.read_text("utf-8"))
    return frozenset(node.name for node in parsed.body if isinstance(node, ast.FunctionDef))


def exists(test: str) -> bool:
    """Whether `folder/file.py::name`, below tests, is a test; a parameter in brackets is not looked at."""
    file, _, name = test.partition("::")
    return name.startswith("test_") and name.partition("[")[0] in functions_of(TESTS / file)


def in_order(numbers: list[str]) -> list[str]:
    return sorted(numbers, key=lambda number: (number[0], int(number[1:])))


def test_every_promise_stands_once_and_in_order() -> None:
    assert in_order(NUMBERS) == NUMBERS
    assert len(set(NUMBERS)) == len(NUMBERS) > 0


def test_a_promise_is_proven_or_not_and_never_both() -> None:
    missing = re.findall(r"\b[A-I]\d+\b", NOT_YET)
    assert in_order(missing) == missing
    assert set(missing).isdisjoint(NUMBERS)


@pytest.mark.parametrize(("number", "promise", "proofs"), ROWS, ids=NUMBERS)
def test_every_test_that_proves_a_promise_exists(number: str, promise: str, proofs: str) -> None:
    named = re.findall(r"`([^`]+)`", proofs)
    assert promise.endswith(".")
    assert ", ".join(f"`{test}`" for test in named) == proofs
    assert [test for test in named if not exists(test)] == [], number


@pytest.mark.parametrize(("promise", "proofs"), WITHOUT_NUMBER)
def test_every_test_that_proves_a_promise_without_a_number_exists(promise: str, proofs: str) -> None:
    named = re.findall(r"`([^`]+)`", proofs)
    assert ", ".join(f"`{test}`" for test in named) == proofs
    assert [test for test in named if not exists(test)] == [], promise


def test_every_mutant_belongs_to_a_promise() -> None:
    assert [mutant.id for mutant in load() if mutant.id not in NUMBERS] == []
