"""The table of mutants matches the markers in the source; a mismatch shows here, not in the next `make mutants`."""

from pathlib import Path

import pytest

from tests.helpers import catalog
from tests.mutants.run import Verdict, verdict_of
from tests.mutants.table import Mutant, TableError, load, markers, problems, unlisted

MUTANTS = load()
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)


@each_mutant
def test_every_mutant_can_be_applied_below_its_marker(mutant: Mutant) -> None:
    assert problems([mutant]) == []


def test_every_marker_has_an_entry() -> None:
    assert unlisted(MUTANTS) == []


@each_mutant
def test_every_mutant_names_a_test_that_exists(mutant: Mutant) -> None:
    assert catalog.is_a_test(mutant.test), mutant.test


def test_every_mutant_has_an_id_of_its_own() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def example(new: str = "", function: str = "work", lines: int = 1, part: str = "") -> Mutant:
    return Mutant("Z1", function, "tests/unit/test_example.py::test_example", new, lines, part)


def applied(mutant: Mutant, text: str, file: str = "example.py") -> str:
    (marker,) = [marker for marker in markers(Path(file), text) if marker.id == "Z1"]
    return mutant.applied_to(text, marker)


def in_tree(root: Path, text: str, file: str = "example.py") -> Path:
    (root / "src").mkdir()
    (root / "src" / file).write_text(text, "utf-8")
    return root


@pytest.mark.parametrize(
    ("below", "lines", "new", "expected"),
    [
        ("    stop()\n    go()\n", 1, "wait()\n", "    wait()\n    go()\n"),
        ("    stop(\n        1,\n    )\n    go()\n", 1, "wait()\n", "    wait()\n    go()\n"),
        ("    if a(\n        1\n    ):\n        go()\n", 1, "if True:\n", "    if True:\n        go()\n"),
        ("    if a:\n        # why\n        stop()\n    go()\n", 2, "", "    go()\n"),
        ('    a = """\n(\n"""\n    go()\n', 1, "", "    go()\n"),
        ("    stop()\n", 1, "", "    pass\n"),
        ("    # guarantee: Z2\n    stop()\n    go()\n", 1, "", "    # guarantee: Z2\n    go()\n"),
    ],
    ids=["statement", "several lines", "header", "two lines", "string", "empty block", "two markers"],
)
def test_the_lines_of_code_below_the_marker_are_replaced(below: str, lines: int, new: str, expected: str) -> None:
    top = "def work():\n    # guarantee: Z1\n"
    assert applied(example(new, lines=lines), top + below) == top + expected


def test_a_marker_inside_brackets_stands_above_one_element() -> None:
    text = "x = f(\n    # guarantee: Z1\n    a=g(\n        1,\n    ),\n    b=2,\n)\n"
    assert applied(example(), text) == "x = f(\n    # guarantee: Z1\n    b=2,\n)\n"


def test_a_part_is_replaced_inside_the_lines() -> None:
    text = '# guarantee: Z1\nx = """\n  a AND b\n"""\n'
    assert applied(example(part=" AND b"), text) == '# guarantee: Z1\nx = """\n  a\n"""\n'
    with pytest.raises(TableError, match="mutant Z1: its `part` occurs 0 times"):
        applied(example(part="AND c"), text)


def test_sql_is_replaced_by_the_lines_of_the_file() -> None:
    text = "-- work --\nSELECT 1\n -- guarantee: Z1\n WHERE (a\n    OR b);\n"
    assert applied(example("WHERE (c\n"), text, "a.sql") == text.replace("(a", "(c")


@pytest.mark.parametrize(
    ("file", "text", "function"),
    [
        ("a.py", "class A:\n    def b(self):\n        if c:\n            # guarantee: Z1\n            d = 1\n", "A.b"),
        ("a.py", "B = {\n    # guarantee: Z1\n    1: 2,\n}\n", "B"),
        ("a.py", "class A:\n    # guarantee: Z1\n    b: int = 1\n", "A.b"),
        ("a.sql", "-- a --\nSELECT 1;\n-- fragment b --\n-- guarantee: Z1\n1\n-- c --\n", "b"),
        ("a.sql", "CREATE UNIQUE INDEX a ON b (c)\n    -- guarantee: Z1\n    WHERE d;\n", "a"),
        ("a.sql", "-- guarantee: Z1\nALTER TABLE etl.a ENABLE ALWAYS TRIGGER b;\n", "etl.a"),
    ],
)
def test_a_marker_is_in_the_function_variable_or_statement_around_it(file: str, text: str, function: str) -> None:
    assert [marker.function for marker in markers(Path(file), text)] == [function]


def test_a_marker_inside_a_string_is_none() -> None:
    assert list(markers(Path("a.py"), 'x = """\n# guarantee: Z1\n"""\n')) == []


MARKED = "def work():\n    # guarantee: Z1\n    stop()\n"


@pytest.mark.parametrize(
    ("mutant", "text", "problem"),
    [
        (example("go()\n"), "def work():\n    stop()\n", "no line of the source has its marker; write"),
        (example("go()\n"), MARKED + "    # guarantee: Z1\n    go()\n", "its marker occurs 2 times"),
        (example("go()\n", "rest"), MARKED, "its marker is in work (src/example.py), the table names rest; move"),
        (example("stop()\n"), MARKED, "its `new` leaves src/example.py unchanged; write"),
        (example("if\n"), MARKED, "with its `new`, src/example.py is not valid Python; correct"),
    ],
    ids=["no marker", "two markers", "another function", "unchanged", "not Python"],
)
def test_an_entry_that_does_not_match_the_source_is_named(
    mutant: Mutant, text: str, problem: str, tmp_path: Path
) -> None:
    (found,) = problems([mutant], in_tree(tmp_path, text))
    assert found.startswith(f"mutant Z1: {problem}")


def test_a_marker_without_an_entry_is_named(tmp_path: Path) -> None:
    (found,) = unlisted([], in_tree(tmp_path, MARKED))
    assert found.startswith("src/example.py: the marker Z1 in work has no entry in the table of mutants; add one")


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
