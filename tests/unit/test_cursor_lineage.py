"""A cursor is followed to the columns of tables that it takes its values from."""

import pytest

from vitrine.sql.checkpoint import lineage_of
from vitrine.sql.policy import read_only

CATALOG = {
    ("content", "film_work"): ("id", "title", "created", "modified"),
    ("content", "genre"): ("id", "name", "updated"),
    ("content", "genre_film_work"): ("film_work_id", "genre_id", "linked"),
}
F, G, J = "content.film_work", "content.genre", "content.genre_film_work"
FILM, GENRE, LINK = "film_work.modified", "genre.updated", "genre_film_work.linked"

FOLLOWED = [
    (f"SELECT id, modified FROM {F}", {FILM}, True),
    (f"SELECT * FROM {F}", {FILM}, True),
    (f"SELECT f.* FROM {F} f JOIN {G} g ON true", {FILM}, True),
    (f"SELECT modified FROM {F} JOIN {G} USING (id)", {FILM}, True),
    (f"SELECT * FROM {F} JOIN {G} USING (id)", {FILM}, True),
    (f"SELECT * FROM {F} NATURAL JOIN {G}", {FILM}, True),
    (f"SELECT content.film_work.modified FROM {F}", {FILM}, True),
    (f"SELECT g.updated AS modified FROM {F} f, {G} g", {GENRE}, True),
    (f"SELECT f.modified::timestamptz FROM {F} f", {FILM}, False),
    (f"SELECT greatest(f.modified, g.updated) AS modified FROM {F} f JOIN {G} g ON true", {FILM, GENRE}, False),
    (f"SELECT coalesce(g.updated, f.modified) AS modified FROM {F} f LEFT JOIN {G} g ON true", {FILM, GENRE}, False),
    (f"SELECT f.id, max(g.updated) AS modified FROM {F} f, {G} g GROUP BY 1", {GENRE}, False),
    (f"SELECT x.m AS modified FROM (SELECT max(modified) AS m FROM {F}) x", {FILM}, False),
    (f"SELECT modified FROM (SELECT * FROM {F}) x", {FILM}, True),
    (f"SELECT modified FROM (SELECT id, updated FROM {G}) AS x (a, modified)", {GENRE}, True),
    (f"SELECT modified FROM {G} AS g (a, b, modified)", {GENRE}, True),
    (f"WITH x AS (SELECT modified AS m FROM {F}), y AS (SELECT * FROM x) SELECT m AS modified FROM y", {FILM}, True),
    (f"WITH x (modified) AS (SELECT updated FROM {G}) SELECT x.modified FROM x, {F} f", {GENRE}, True),
    (f"SELECT id, modified FROM {F} UNION ALL SELECT id, updated FROM {G}", {FILM, GENRE}, False),
    (f"SELECT f.id, (SELECT max(updated) FROM {G} g WHERE g.id = f.id) AS modified FROM {F} f", {GENRE}, False),
    (f"SELECT l.m AS modified FROM {F} f CROSS JOIN LATERAL (SELECT f.modified AS m) l", {FILM}, True),
    (f"SELECT m AS modified FROM {F} f, unnest(ARRAY[f.modified]) AS u (m)", {FILM}, False),
    (f"SELECT u AS modified FROM {F} f, unnest(ARRAY[f.modified]) u", {FILM}, False),
    (f"SELECT j.modified FROM ({F} f JOIN {G} g ON g.id = f.id) AS j (i, t, c, modified)", {FILM}, True),
    (f"SELECT max(modified) OVER (PARTITION BY title) AS modified FROM {F}", {FILM}, False),
    (f"SELECT CASE WHEN true THEN f.modified END AS modified FROM {F} f", {FILM}, False),
    ("SELECT modified FROM (VALUES (1, now())) AS v (id, modified)", set[str](), False),
    (f"SELECT now() AS modified FROM {F}", set[str](), False),
]

FILTERED = [
    (f"SELECT modified FROM {F} WHERE modified >= $1", {FILM}),
    (f"SELECT modified FROM {F} WHERE $1 <= modified AND title = 'x'", {FILM}),
    (f"SELECT modified FROM {F} WHERE modified BETWEEN $1 AND now()", {FILM}),
    (f"SELECT modified FROM {F} WHERE id IN (SELECT id FROM {G} WHERE updated >= $1)", {GENRE}),
    (f"WITH t AS (SELECT genre_id FROM {J} WHERE linked > $1) SELECT f.modified FROM {F} f, t", {LINK}),
    (f"SELECT f.modified FROM {F} f JOIN {G} g ON g.updated >= $1", {GENRE}),
    (f"SELECT modified FROM {F} WHERE title || $1 = 'x'", set[str]()),
    (f"SELECT max(modified) AS modified FROM {F} GROUP BY id HAVING max(modified) >= $1", set[str]()),
    (f"SELECT greatest(modified, $1) AS modified FROM {F} WHERE modified >= $1 - interval '1 day'", {FILM}),
]

UNDECIDED = [
    f"SELECT modified FROM {F} UNION SELECT * FROM (SELECT * FROM {G} JOIN {J} USING (id)) x",
    "SELECT modified FROM content.unknown",
    f"SELECT id FROM {F}",
]


def short(origins: frozenset[tuple[tuple[str, str], str]]) -> set[str]:
    return {f"{table}.{column}" for (_, table), column in origins}


def checked(query: str) -> str:
    return read_only(query, ("content",)).text


@pytest.mark.parametrize(("query", "origins", "plain"), FOLLOWED)
def test_a_cursor_is_followed_to_its_columns(query: str, origins: set[str], plain: bool) -> None:
    found = lineage_of(checked(query), "modified", CATALOG)
    assert found is not None
    assert (short(found.origins), found.is_plain) == (origins, plain)


@pytest.mark.parametrize(("query", "filtered"), FILTERED)
def test_columns_that_are_compared_with_the_checkpoint_are_found(query: str, filtered: set[str]) -> None:
    found = lineage_of(checked(query), "modified", CATALOG)
    assert found is not None
    assert short(found.filtered) == filtered


@pytest.mark.parametrize("query", UNDECIDED)
def test_what_cannot_be_decided_is_not_guessed(query: str) -> None:
    assert lineage_of(checked(query), "modified", CATALOG) is None
