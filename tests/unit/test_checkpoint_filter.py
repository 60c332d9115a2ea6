"""The filter by the checkpoint is removed where it is certain, and nowhere else."""

import postgast
import pytest

from vitrine.sql.checkpoint import without_checkpoint_filter
from vitrine.sql.policy import read_only

FILMS = "content.film_work"

REMOVED = [
    (f"SELECT id, modified FROM {FILMS} WHERE modified >= $1", f"SELECT id, modified FROM {FILMS}"),
    (f"SELECT * FROM {FILMS} WHERE modified > $1 AND id = 1", f"SELECT * FROM {FILMS} WHERE id = 1"),
    (f"SELECT f.* FROM {FILMS} f WHERE modified > $1", f"SELECT f.* FROM {FILMS} f"),
    (
        f"SELECT id, modified FROM {FILMS} WHERE (a AND modified > $1) AND (b OR c)",
        f"SELECT id, modified FROM {FILMS} WHERE a AND (b OR c)",
    ),
    (f"SELECT id, modified FROM {FILMS} f WHERE $1 <= f.modified", f"SELECT id, modified FROM {FILMS} f"),
    (
        f"SELECT f.id, f.at AS modified FROM {FILMS} f JOIN content.genre g USING (id) WHERE f.at > $1 AND g.n = 1",
        f"SELECT f.id, f.at AS modified FROM {FILMS} f JOIN content.genre g USING (id) WHERE g.n = 1",
    ),
    (
        f"SELECT id, greatest(a, b) AS modified FROM {FILMS} WHERE greatest(a, b) >= $1::date - interval '1h'",
        f"SELECT id, greatest(a, b) AS modified FROM {FILMS}",
    ),
    (f"SELECT id, modified FROM {FILMS} WHERE modified >= $1 OR modified IS NULL", f"SELECT id, modified FROM {FILMS}"),
    (
        f"SELECT id, modified FROM {FILMS} WHERE modified >= $1 AND modified < now()",
        f"SELECT id, modified FROM {FILMS} WHERE modified < now()",
    ),
]

UNKNOWN = [
    f"SELECT id, modified FROM {FILMS} WHERE modified >= $1 OR id = 1",
    f"SELECT id, modified FROM {FILMS} WHERE NOT modified < $1",
    f"SELECT id, modified FROM {FILMS} WHERE modified BETWEEN $1 AND now()",
    f"SELECT id, modified FROM {FILMS} WHERE modified <> $1",
    f"SELECT id, modified FROM {FILMS} WHERE modified >= (SELECT max(modified) FROM ugc.likes WHERE modified > $1)",
    f"SELECT id, created AS modified FROM {FILMS} WHERE modified >= $1",
    f"SELECT id, max(modified) AS modified FROM {FILMS} GROUP BY id HAVING max(modified) >= $1",
    f"SELECT id, max(modified) AS modified FROM {FILMS} WHERE modified >= $1 GROUP BY id",
    f"SELECT id, modified FROM {FILMS} WHERE modified >= $1 UNION SELECT id, modified FROM ugc.likes",
    f"WITH a AS (SELECT * FROM {FILMS} WHERE modified >= $1) SELECT * FROM a",
    f"SELECT * FROM (SELECT * FROM {FILMS} WHERE modified >= $1) a",
    f"SELECT id, modified FROM {FILMS} WHERE modified >= $1 ORDER BY modified LIMIT 10",
    f"SELECT DISTINCT ON (id) id, modified FROM {FILMS} WHERE modified >= $1",
    f"SELECT f.id, f.modified FROM {FILMS} f JOIN ugc.likes l ON l.film_id = f.id WHERE l.modified >= $1",
    f"SELECT f.* FROM {FILMS} f JOIN ugc.likes l ON l.film_id = f.id WHERE l.modified >= $1",
    f"SELECT f.*, $1 AS at FROM {FILMS} f WHERE modified >= $1",
]


@pytest.mark.promise("J33")
@pytest.mark.parametrize(("query", "expected"), REMOVED)
def test_a_condition_on_cursor_and_checkpoint_is_removed(query: str, expected: str) -> None:
    checked = read_only(query, ("content", "ugc"))
    found = without_checkpoint_filter(checked.text, "modified").text
    assert found is not None
    assert postgast.fingerprint(found) == postgast.fingerprint(expected)


@pytest.mark.promise("J33")
@pytest.mark.parametrize("query", UNKNOWN)
def test_a_query_that_uses_the_checkpoint_in_another_way_stays_unknown(query: str) -> None:
    checked = read_only(query, ("content", "ugc"))
    assert without_checkpoint_filter(checked.text, "modified").text is None


@pytest.mark.promise("J33")
def test_an_outer_join_or_grouping_sets_may_add_nulls() -> None:
    for source in ("content.a LEFT JOIN content.b USING (id)", "content.a FULL JOIN content.b USING (id)"):
        assert without_checkpoint_filter(f"SELECT * FROM {source} WHERE modified > $1", "modified").adds_nulls
    grouped = "SELECT modified FROM content.a WHERE modified > $1 GROUP BY ROLLUP (modified)"
    assert without_checkpoint_filter(grouped, "modified").adds_nulls
    joined = "SELECT * FROM content.a JOIN content.b USING (id) WHERE modified > $1"
    assert not without_checkpoint_filter(joined, "modified").adds_nulls
