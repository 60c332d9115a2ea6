"""The table of mutants matches the tree, so that a moved line is noticed at once and not by the next `make mutants`."""

from pathlib import Path

import pytest

from tests.helpers import catalog
from tests.mutants.run import Verdict, verdict_of
from tests.mutants.table import Mutant, TableError, load, problems

MUTANTS = load()
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)


@each_mutant
def test_the_old_lines_of_every_mutant_occur_once_in_its_file(mutant: Mutant) -> None:
    assert problems([mutant]) == []
    assert mutant.new != mutant.old


@each_mutant
def test_every_mutant_names_a_test_that_exists(mutant: Mutant) -> None:
    assert catalog.is_a_test(mutant.test), mutant.test


def test_every_mutant_has_an_id_of_its_own() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def example(old: str, new: str = "") -> Mutant:
    return Mutant("Z1", "src/example.py", "tests/unit/test_example.py::test_example", old, new)


def test_a_mutant_replaces_whole_lines_only() -> None:
    text = "if a:\n    stop()\nif b:\n        stop()\n"
    assert example("    stop()\n", "    go()\n").applied_to(text) == "if a:\n    go()\nif b:\n        stop()\n"


@pytest.mark.parametrize(("text", "count"), [("", 0), ("other()\n", 0), ("stop()\nstop()\n", 2)])
def test_old_lines_that_do_not_occur_exactly_once_are_refused_with_their_entry(text: str, count: int) -> None:
    with pytest.raises(TableError, match=rf"mutant Z1: its old lines occur {count} times in src/example\.py"):
        example("stop()\n").applied_to(text)


def test_a_file_that_does_not_exist_is_named_with_its_entry(tmp_path: Path) -> None:
    (problem,) = problems([example("stop()\n")], tmp_path)
    assert problem.startswith("mutant Z1: there is no file src/example.py")


@pytest.mark.parametrize(
    ("code", "summary", "verdict"),
    [
        (0, "3 passed in 0.1s", Verdict.SURVIVED),
        (1, "1 failed, 2 passed in 0.1s", Verdict.KILLED),
        (1, "1 error in 0.1s", Verdict.BROKEN),
        (2, "1 error in 0.1s", Verdict.BROKEN),
        (4, "no tests ran in 0.1s", Verdict.BROKEN),
        (-9, "", Verdict.BROKEN),
    ],
)
def test_only_a_test_that_failed_kills_a_mutant(code: int, summary: str, verdict: Verdict) -> None:
    assert verdict_of(code, summary) is verdict
