"""Tables as text."""

from vitrine.text import Lines, red, table

ROWS = [("genres", "26", "all of them"), ("ratings", "1,000", "")]


def test_columns_are_aligned_under_their_names() -> None:
    assert table(("name", "rows", "what"), ROWS, right=("rows",)).splitlines() == [
        "name      rows  what",
        "───────────────────────────",
        "genres      26  all of them",
        "ratings  1,000",
    ]


def test_a_title_stands_above() -> None:
    assert table(("name",), [("genres",)], title="Runs").splitlines() == ["Runs", "name", "──────", "genres"]


def test_a_table_without_rows_has_its_columns() -> None:
    assert table(("name", "rows"), []).splitlines() == ["name  rows", "──────────"]


def test_a_wide_column_is_wrapped_and_the_others_stay_whole() -> None:
    rows = [("key", "one two three four five six seven", "last")]
    assert table(("a", "reason", "b"), rows, wrap=("reason",), width=28).splitlines() == [
        "a    reason             b",
        "────────────────────────────",
        "key  one two three      last",
        "     four five six",
        "     seven",
    ]


def test_a_table_that_cannot_be_narrowed_stays_complete() -> None:
    assert table(("name", "what"), [("x" * 30, "y" * 30)], width=20).splitlines()[2] == f"{'x' * 30}  {'y' * 30}"
    wrapped = table(("name", "what"), [("x" * 30, "y" * 30)], wrap=("what",), width=20).splitlines()[2:]
    assert "".join(line[32:] for line in wrapped) == "y" * 30


def test_a_cell_may_have_several_lines() -> None:
    assert table(("name", "options"), [("trend", Lines("a: int\nb: float")), ("next", "")]).splitlines()[2:] == [
        "trend  a: int",
        "       b: float",
        "next",
    ]


def test_colours_do_not_change_the_columns() -> None:
    rows = [("rows", red("25"), "x"), ("ends", "2025", "y")]
    plain = table(("", "target", "z"), rows)
    coloured = table(("", "target", "z"), rows, title="", colours=True)
    assert "\x1b[31m25    \x1b[0m" in coloured
    for code in ("\x1b[31m", "\x1b[36m", "\x1b[0m"):
        coloured = coloured.replace(code, "")
    assert coloured == plain
    assert "\x1b" not in plain
