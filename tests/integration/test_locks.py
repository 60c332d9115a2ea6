"""Readers of a mart wait for no more than a moment behind a change of its columns."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.helpers.events import both_modes, create_filled
from tests.helpers.running import differences, run, succeed
from tests.helpers.waiting import wait_until
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, connect
from vitrine.runner.run import Executed
from vitrine.settings import Settings

QUERY = "SELECT * FROM ugc.events"

ALTERING = """
    SELECT pid, query FROM pg_stat_activity
     WHERE datname = current_database() AND application_name ~ '^vitrine:' AND query ILIKE 'ALTER TABLE%'
       AND wait_event_type = 'Lock'
"""


def create_events(connection: Connection, settings: Settings, mode: str) -> Pipeline:
    """A mart after its first run, and a source with one more column."""
    options = {"on_schema_change": "add_columns"}
    events = create_filled(connection, settings, mode, 10, source_query=QUERY, options=options)
    succeed(connection, settings, events)
    connection.execute("ALTER TABLE ugc.events ADD colour text DEFAULT 'red'")
    connection.execute("UPDATE ugc.events SET modified = now()")
    return events


def run_apart(settings: Settings, pipeline: Pipeline) -> Executed:
    with connect(settings.store_url, name="tests:thread") as own:
        return run(own, settings, pipeline)


def is_waiting(connection: Connection) -> list[dict[str, Any]]:
    return connection.execute(ALTERING).fetchall()


@pytest.mark.promise("J37")
@both_modes
def test_a_reader_passes_a_column_that_waits_for_a_long_transaction(
    connection: Connection, settings: Settings, mode: str
) -> None:
    events = create_events(connection, settings, mode)
    with (
        ThreadPoolExecutor(1) as threads,
        connect(settings.store_url, name="tests:report") as report,
        connect(settings.store_url, name="tests:reader") as reader,
    ):
        with report.transaction():
            report.execute("SELECT count(*) FROM analytics.events")
            running = threads.submit(run_apart, settings, events)
            wait_until(lambda: is_waiting(connection), what="a column that waits for the report")
            reader.execute("SET statement_timeout = '3s'")
            assert reader.execute("SELECT count(*) AS n FROM analytics.events").fetchone() == {"n": 10}
            wait_until(lambda: is_waiting(connection), what="another attempt")
        assert running.result().error is None
    assert differences(connection, QUERY, "analytics.events", "id") == []


@pytest.mark.promise("J37")
@both_modes
def test_a_new_column_does_not_lock_the_mart_while_rows_are_written(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = create_events(connection, settings, mode)
    seen: list[object] = []
    with connect(settings.store_url, name="tests:reader") as reader:
        reader.execute("SET lock_timeout = '100ms'")

        def read(point: str) -> None:
            if point == "in_copy":
                seen.append(reader.execute("SELECT count(colour) AS n FROM analytics.events").fetchone())

        monkeypatch.setattr("vitrine.connectors.postgres.sink.copy_in.reach", read)
        succeed(connection, settings, events)
    assert seen
    assert all(found == {"n": 0} for found in seen)
    assert differences(connection, QUERY, "analytics.events", "id") == []


@pytest.mark.promise("J37")
def test_a_batch_that_does_not_fit_leaves_the_new_column_and_the_run_after_the_repair_fills_it(
    connection: Connection, settings: Settings
) -> None:
    events = create_events(connection, settings, "incremental")
    connection.execute("ALTER TABLE analytics.events ADD CHECK (note <> 'bad')")
    connection.execute("UPDATE ugc.events SET note = 'bad', modified = now() WHERE id = 3")
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "DATA_ERROR"
    connection.execute("UPDATE ugc.events SET note = 'good', modified = now() WHERE id = 3")
    succeed(connection, settings, events)
    assert differences(connection, QUERY, "analytics.events", "id") == []
