"""`$1` as the lower bound of a condition: with the lowest value of its type, such a query returns everything."""

import pytest

from vitrine.sql.checkpoint import other_use_of_checkpoint

LOWER_BOUNDS = [
    "SELECT * FROM c.f",
    "SELECT * FROM c.f WHERE m >= $1",
    "SELECT * FROM c.f WHERE m > $1 - interval '1 hour'",
    "SELECT * FROM c.f WHERE $1::timestamptz <= m AND (a = 1 OR b > $1)",
    "SELECT a FROM c.f WHERE id IN (SELECT id FROM c.g WHERE m >= $1) GROUP BY a",
    "SELECT * FROM c.f WHERE EXISTS (SELECT 1 FROM c.g WHERE m >= $1 AND g.id = f.id)",
    "WITH t AS (SELECT id FROM c.g WHERE m > $1) SELECT * FROM c.f JOIN t ON t.id = f.id AND f.m >= $1",
    "SELECT a, max(m) AS m FROM c.f GROUP BY a HAVING max(m) >= $1",
    "SELECT * FROM c.f WHERE m >= $1 UNION ALL SELECT * FROM c.g WHERE m >= $1",
    "SELECT * FROM c.f WHERE m >= $1 EXCEPT SELECT * FROM c.g",
    "SELECT * FROM (SELECT * FROM c.f WHERE m >= $1) AS q",
    "SELECT * FROM c.f, LATERAL (SELECT max(m) AS m FROM c.g) AS q WHERE greatest(f.m, q.m) >= $1",
]
OTHER_USES = [
    "SELECT * FROM c.f WHERE m = @",
    "SELECT * FROM c.f WHERE m <= @",
    "SELECT * FROM c.f WHERE @ > m",
    "SELECT * FROM c.f WHERE m BETWEEN @ AND now()",
    "SELECT * FROM c.f WHERE (m, id) >= (@, 0)",
    "SELECT * FROM c.f WHERE m >= now() - @",
    "SELECT * FROM c.f WHERE m >= $1 - (@ - b)",
    "SELECT * FROM c.f WHERE m >= coalesce(@, now())",
    "SELECT * FROM c.f WHERE NOT m >= @",
    "SELECT * FROM c.f WHERE (m >= @) = false",
    "SELECT * FROM c.f WHERE (m >= @) IS NOT TRUE",
    "SELECT * FROM c.f WHERE CASE WHEN m >= @ THEN false ELSE true END",
    "SELECT * FROM c.f WHERE NOT EXISTS (SELECT 1 FROM c.g WHERE m >= @)",
    "SELECT * FROM c.f WHERE id NOT IN (SELECT id FROM c.g WHERE m >= @)",
    "SELECT * FROM c.f WHERE m >= ALL (SELECT m FROM c.g WHERE m >= @)",
    "SELECT * FROM c.f WHERE m > (SELECT max(m) FROM c.g WHERE m >= @)",
    "SELECT * FROM c.f WHERE m >= $1 EXCEPT SELECT * FROM c.g WHERE m >= @",
    "SELECT * FROM c.f WHERE m >= @ ORDER BY m LIMIT 10",
    "SELECT * FROM (SELECT * FROM c.f WHERE m >= @ OFFSET 10) AS q",
    "SELECT m >= @ AS is_new FROM c.f",
    "SELECT (SELECT count(*) FROM c.g WHERE m >= @) AS n FROM c.f",
    "SELECT count(*) FILTER (WHERE m >= @) AS n FROM c.f",
]


@pytest.mark.parametrize("query", LOWER_BOUNDS)
def test_a_lower_bound_is_no_other_use(query: str) -> None:
    assert other_use_of_checkpoint(query) is None


@pytest.mark.promise("I17")
@pytest.mark.parametrize("query", OTHER_USES)
def test_another_use_is_found_at_its_place(query: str) -> None:
    place = other_use_of_checkpoint(query.replace("@", "$1"))
    assert place is not None
    assert (place.line, place.column) == (1, query.index("@") + 1)


def test_a_place_counts_lines_and_characters() -> None:
    place = other_use_of_checkpoint("SELECT 'é' AS é,\n       m -- ü\n  FROM c.f WHERE 'ß' = 'ß' AND m <= $1")
    assert str(place) == "line 3, column 37"
