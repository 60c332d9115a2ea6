"""Checks of pipelines into Elasticsearch: by queries on a staged index, and in the rows of a batch."""

from typing import Any

import pytest

from tests.helpers.running import run, succeed
from tests.helpers.scores import SCORES, change_score, fill_scores, results
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from vitrine.errors import ConfigError, DataError
from vitrine.plan import validation
from vitrine.runner.run import Executed

Check = dict[str, Any]

both_modes = pytest.mark.parametrize("fields", [{}, INCREMENTAL], ids=["full", "incremental"])


def refused(executed: Executed) -> str:
    assert isinstance(executed.error, DataError), executed
    assert executed.error.code == "CHECK_FAILED"
    return str(executed.error)


@pytest.mark.promise("M1", "M2")
@both_modes
@pytest.mark.parametrize(
    ("check", "column", "value"),
    [
        ({"type": "not_null", "columns": ["title"]}, "title", None),
        ({"type": "accepted_values", "column": "kind", "values": ["film", "series"]}, "kind", "Film"),
        ({"type": "range", "column": "score", "min": 0, "max": 10}, "score", "10.01"),
    ],
    ids=["not_null", "accepted_values", "range"],
)
def test_documents_that_break_a_check_stay_invisible_until_they_are_mended(
    cluster: Cluster, fields: dict[str, Any], check: Check, column: str, value: str | None
) -> None:
    connection, settings = cluster.connection, cluster.settings
    fill_scores(connection, 30)
    pipeline = cluster.create(SCORES, checks=[check], batch_size=20, **fields)
    succeed(connection, settings, pipeline)
    before = cluster.search.documents(cluster.name)
    change_score(connection, [7, 25], column, value)
    error = refused(run(connection, settings, pipeline))
    assert "2 rows " in error
    assert "for example 25, 7" in error or "for example 7, 25" in error
    assert cluster.search.documents(cluster.name) == before
    assert len(cluster.search.indexes(cluster.name)) == 1
    change_score(connection, [7, 25], column, {"title": "t", "kind": "series", "score": "9"}[column])
    succeed(connection, settings, pipeline)
    assert [one["passed"] for one in results(connection, pipeline).values()] == [True]


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        ({"type": "not_null", "columns": ["title", "score"]}, [1, 3]),
        ({"type": "accepted_values", "column": "title", "values": ["title 2", "title 4"]}, [5]),
        ({"type": "accepted_values", "column": "id", "values": [1, 2, 99999999999]}, [3, 4, 5]),
        ({"type": "accepted_values", "column": "score", "values": [5, 5.5]}, [4]),
        ({"type": "accepted_values", "column": "day", "values": ["2024-01-01"]}, [2]),
        ({"type": "range", "column": "id", "max": 3}, [4, 5]),
        ({"type": "range", "column": "id", "max": 99999999999}, []),
        ({"type": "range", "column": "id", "min": 99999999999}, [1, 2, 3, 4, 5]),
        ({"type": "range", "column": "day", "max": "2024-06-30"}, [2]),
        ({"type": "range", "column": "modified", "min": "2024-01-01T00:00:03Z"}, [1, 2]),
        ({"type": "unique", "columns": ["id", "title"]}, []),
    ],
)
def test_queries_find_the_documents_that_break_a_check(cluster: Cluster, check: Check, broken: list[int]) -> None:
    connection, settings = cluster.connection, cluster.settings
    fill_scores(connection, 5)
    connection.execute("UPDATE ugc.scores SET title = NULL WHERE id = 1")
    connection.execute("UPDATE ugc.scores SET day = '2024-07-01' WHERE id = 2")
    connection.execute("UPDATE ugc.scores SET title = NULL, score = NULL WHERE id = 3")
    connection.execute("UPDATE ugc.scores SET score = 6 WHERE id = 4")
    connection.execute("UPDATE ugc.scores SET title = '' WHERE id = 5")
    pipeline = cluster.create(SCORES, checks=[check | {"severity": "warn"}], **INCREMENTAL)
    succeed(connection, settings, pipeline)
    (result,) = results(connection, pipeline).values()
    assert result["keys"] == [str(one) for one in broken]


def test_a_load_of_documents_is_counted_against_the_index(cluster: Cluster) -> None:
    connection, settings = cluster.connection, cluster.settings
    cluster.fill(1, 10)
    pipeline = cluster.create(checks=[{"type": "row_count", "min_ratio": 0.9}])
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM content.numbers WHERE id > 8")
    assert "the load has 8 rows, fewer than min_ratio 0.9 of the 10 rows of the mart" in refused(
        run(connection, settings, pipeline)
    )
    assert len(cluster.ids()) == 10


@pytest.mark.promise("M6")
@pytest.mark.parametrize(
    ("check", "reason"),
    [
        ({"type": "sql", "query": "SELECT id FROM mart"}, "has no checks of type sql; it has: accepted_values"),
        ({"type": "unique", "columns": ["note"]}, "compares documents by their key (id) only"),
        ({"type": "not_null", "columns": ["nowhere"]}, "which the rows of es:"),
        ({"type": "not_null", "columns": ["marks"]}, "cannot search column 'marks' of type integer[]"),
        ({"type": "accepted_values", "column": "note", "values": ["a"]}, "options.index maps field 'note'"),
    ],
)
def test_a_check_that_the_cluster_cannot_carry_out_is_refused(cluster: Cluster, check: Check, reason: str) -> None:
    index = {"mappings": {"properties": {"note": {"type": "text"}}}}
    query = "SELECT id, note, ARRAY[id] AS marks FROM content.numbers"
    pipeline = cluster.create(query, checks=[check], options={"index": index})
    with pytest.raises(ConfigError) as found:
        validation.validate(pipeline.definition, cluster.settings)
    assert reason in str(found.value)
    executed = run(cluster.connection, cluster.settings, pipeline)
    assert isinstance(executed.error, ConfigError)
    assert not cluster.search.indexes(cluster.name)
