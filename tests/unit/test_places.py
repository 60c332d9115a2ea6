"""Places in a query: line and column, and the line with a caret."""

import pytest

from vitrine.errors import ConfigError, Place
from vitrine.sql.policy import read_only

TYPED = "select  ID,\n        lower( title )\n  from content.film_work  f -- é\n where modified>=$1"


@pytest.mark.parametrize(
    ("offset", "line", "column", "text"),
    [(0, 1, 1, "ab"), (2, 1, 3, "ab"), (3, 2, 1, "cd"), (5, 2, 3, "cd"), (6, 3, 1, ""), (99, 3, 1, "")],
)
def test_a_place_is_a_line_and_a_column(offset: int, line: int, column: int, text: str) -> None:
    assert Place.at("ab\ncd\n", offset) == Place(line, column, text)


def test_bytes_are_counted_as_characters() -> None:
    assert Place.at_byte("é\n日本 x", len("é\n日本 ".encode())) == Place(2, 4, "日本 x")


@pytest.mark.parametrize(
    ("place", "excerpt"),
    [
        (Place(2, 3, "a bc"), "2 | a bc\n  |   ^"),
        (Place(12, 3, "\t\tb"), "12 |   b\n   |   ^"),
        (Place(1, 4, "日本 x"), "1 | 日本 x\n  |      ^"),
        (Place(1, 3, ""), "1 | \n  | ^"),
    ],
)
def test_a_caret_is_below_the_place(place: Place, excerpt: str) -> None:
    assert place.excerpt() == excerpt


def test_a_long_line_is_shown_around_the_place() -> None:
    line, caret = Place(1, 5001, "x" * 5000 + "?" + "x" * 5000).excerpt().splitlines()
    assert line[caret.index("^")] == "?"
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("query", "code", "line", "column"),
    [
        ("SELECT id\n  FRM content.film_work", "SYNTAX", 2, 7),
        ("SELECT 'é', 'é',\n pg_sleep(1)", "FUNC", 2, 2),
        ("SELECT id\n  FROM film_work", "UNQUALIFIED", 2, 8),
        ("SELECT id FROM content.film_work WHERE\nid IN (SELECT id FROM secret.films)", "SCHEMA", 2, 23),
        ("SELECT 1;\n\n  SELECT 2", "MULTIPLE_STATEMENTS", 3, 3),
        ("\n DELETE FROM content.film_work", "NOT_SELECT", 2, 2),
        ("SELECT id\n  INTO content.copy FROM content.film_work", "INTO", 2, 8),
        ("SELECT $1,\n  $2", "PARAM", 2, 3),
        ("SELECT 1,\n 'x'::regclass", "NODE", 2, 7),
        ("SELECT current_user", "FUNC", 1, 8),
        ("SELECT\n x.pg_sleep FROM generate_series(1, 1) x", "FUNC", 2, 2),
        ("WITH RECURSIVE a AS (SELECT 1) SELECT * FROM a", "NODE", 1, 1),
    ],
)
def test_a_refusal_names_its_place(query: str, code: str, line: int, column: int) -> None:
    with pytest.raises(ConfigError) as refused:
        read_only(query, ("content",))
    place = refused.value.place
    assert place is not None
    assert (refused.value.code, place.line, place.column) == (code, line, column)
    assert str(refused.value).startswith(f"source query, line {line}, column {column}: ")
    assert place.text == query.split("\n")[line - 1]


def test_a_refusal_of_the_whole_query_has_no_place() -> None:
    with pytest.raises(ConfigError) as refused:
        read_only("SELECT 1 FROM content.film_work FOR UPDATE", ("content",))
    assert (refused.value.code, refused.value.place) == ("LOCKING", None)


@pytest.mark.parametrize("part", ["ID", "lower", "title", "content.film_work", "modified", ">=", "$1"])
def test_a_position_in_the_executed_text_is_found_in_what_was_typed(part: str) -> None:
    checked = read_only(TYPED, ("content",))
    position = checked.text.index(part.lower()) + 1
    assert checked.place_of_position(position) == Place.at(TYPED, TYPED.index(part))


def test_a_position_where_nothing_begins_has_no_place() -> None:
    checked = read_only(TYPED, ("content",))
    assert checked.place_of_position(checked.text.index("film_work") + 1) is None


def test_the_first_use_of_a_relation_is_its_place() -> None:
    checked = read_only("SELECT 1 FROM\n content.a, content.b,\n content.a x", ("content",))
    assert checked.place_of_relation("content", "a") == Place(2, 2, " content.a, content.b,")
    assert checked.place_of_relation("content") == Place(2, 2, " content.a, content.b,")
    assert checked.place_of_relation("content", "c") is None
