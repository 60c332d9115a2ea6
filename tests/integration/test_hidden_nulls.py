"""Rows with NULL in the cursor that the query's own condition on `$1` hides are counted."""

from typing import Any

import pytest

from tests.helpers.running import create, run, succeed
from vitrine.definition.model import Definition
from vitrine.plan import planner, validation
from vitrine.postgres import Connection
from vitrine.settings import Settings

FIELDS: dict[str, Any] = {
    "name": "under_test",
    "source_query": "SELECT id, note, modified FROM ugc.events WHERE modified >= $1",
    "target_table": "analytics.events",
    "key_columns": ["id"],
    "mode": "incremental",
    "incremental_key": "modified",
}


@pytest.fixture(autouse=True)
def _events(connection: Connection) -> None:
    """10 events, of which 2 have no time."""
    connection.execute(
        """
        CREATE TABLE ugc.events (id integer PRIMARY KEY, note text, modified timestamptz);
        INSERT INTO ugc.events SELECT n, 'x', CASE WHEN n <= 8 THEN now() - interval '1 day' END
                                 FROM generate_series(1, 10) AS n
        """
    )


def stored(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) AS n FROM analytics.events").fetchone()
    return row["n"] if row else 0


def warnings(settings: Settings, **fields: Any) -> tuple[str, ...]:
    return validation.validate(Definition.model_validate(FIELDS | fields), settings).warnings


@pytest.mark.promise("J33")
def test_hidden_rows_fail_the_first_load_with_their_number(connection: Connection, settings: Settings) -> None:
    failed = run(connection, settings, create(connection, settings, **FIELDS)).error
    assert failed is not None
    assert failed.code == "NULL_CURSOR"
    assert str(failed).startswith("2 row(s) of the source have NULL in 'modified'")


@pytest.mark.promise("J33")
def test_hidden_rows_fail_an_incremental_run_after_the_others_are_written(
    connection: Connection, settings: Settings
) -> None:
    events = create(connection, settings, **FIELDS)
    connection.execute("UPDATE ugc.events SET modified = now() - interval '1 day'")
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET modified = NULL WHERE id > 8")
    connection.execute("UPDATE ugc.events SET modified = now(), note = 'y' WHERE id = 1")
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "NULL_CURSOR"
    assert connection.execute("SELECT note FROM analytics.events WHERE id = 1").fetchone() == {"note": "y"}
    connection.execute("UPDATE ugc.events SET modified = now()")
    succeed(connection, settings, events)
    assert stored(connection) == 10


@pytest.mark.promise("J33")
def test_hidden_rows_are_ignored_where_the_pipeline_says_so(connection: Connection, settings: Settings) -> None:
    events = create(connection, settings, **FIELDS, options={"on_null_cursor": "ignore"})
    succeed(connection, settings, events)
    assert stored(connection) == 8
    assert warnings(settings, options={"on_null_cursor": "ignore"}) == ()


@pytest.mark.promise("J33")
def test_validate_counts_hidden_rows(settings: Settings) -> None:
    assert warnings(settings) == ("2 row(s) of the source have NULL in 'modified' and are not in the mart",)


OTHER_USES = [
    "SELECT id, note, modified FROM ugc.events WHERE modified >= $1 OR id = 0",
    "SELECT * FROM (SELECT id, note, modified FROM ugc.events WHERE modified >= $1) AS e",
    "WITH e AS (SELECT id, note, modified FROM ugc.events WHERE modified >= $1) SELECT * FROM e",
    "SELECT id, max(note) AS note, max(modified) AS modified FROM ugc.events GROUP BY id HAVING max(modified) >= $1",
]


@pytest.mark.promise("J33")
@pytest.mark.parametrize("query", OTHER_USES)
def test_validate_warns_where_hidden_rows_cannot_be_counted(
    connection: Connection, settings: Settings, query: str
) -> None:
    (warning,) = warnings(settings, source_query=query)
    assert "rows of the source with NULL in 'modified' would not be noticed" in warning
    if "max" not in query:
        connection.execute("UPDATE ugc.events SET modified = now()")
        connection.execute("ALTER TABLE ugc.events ALTER COLUMN modified SET NOT NULL")
        assert warnings(settings, source_query=query) == ()


@pytest.mark.promise("J33")
def test_rows_are_not_counted_where_the_column_is_declared_not_null(connection: Connection, settings: Settings) -> None:
    # rows that contradict the declaration show that none was counted
    connection.execute(
        "UPDATE pg_attribute SET attnotnull = true WHERE attrelid = 'ugc.events'::regclass AND attname = 'modified'"
    )
    succeed(connection, settings, create(connection, settings, **FIELDS))


@pytest.mark.promise("J33")
def test_an_outer_join_makes_a_declared_column_null(connection: Connection, settings: Settings) -> None:
    connection.execute("UPDATE ugc.events SET modified = now()")
    connection.execute("ALTER TABLE ugc.events ALTER COLUMN modified SET NOT NULL")
    connection.execute("CREATE TABLE ugc.users (id integer PRIMARY KEY); INSERT INTO ugc.users VALUES (1), (99)")
    query = "SELECT u.id, e.note, e.modified FROM ugc.users u LEFT JOIN ugc.events e USING (id) WHERE e.modified >= $1"
    failed = run(connection, settings, create(connection, settings, **FIELDS | {"source_query": query})).error
    assert failed is not None
    assert str(failed).startswith("1 row(s) of the source have NULL")


@pytest.mark.promise("J33")
def test_a_comparison_reports_hidden_rows(settings: Settings) -> None:
    built = planner.prepare(planner.check(Definition.model_validate(FIELDS), settings), writes=False)
    try:
        assert [finding.code for finding in built.source.findings] == ["NULL_CURSOR"]
    finally:
        built.close()
