"""The first run of an incremental pipeline whose mart is missing: a load into staging that leaves a checkpoint."""

import threading
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from tests.helpers.events import EVENTS, create_events, events_are_right, fill_events
from tests.helpers.running import differences, once_read, run, succeed
from vitrine import failpoints
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts, Row
from vitrine.definition import registry
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import state

LAST = ("2024-01-01 00:05:00+00", "300")  # of 300 events


def has_target(connection: Connection) -> bool:
    row = connection.execute("SELECT to_regclass('analytics.events') IS NOT NULL AS yes").fetchone()
    return bool(row and row["yes"])


def test_a_missing_mart_becomes_visible_at_once_and_its_last_row_is_the_checkpoint(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    seen: list[bool] = []

    def watch(counts: Counts, expected: int | None) -> None:
        seen.append(has_target(connection))

    first = succeed(connection, settings, events, watch=watch)
    assert (first.counts.read, first.counts.written, first.batches) == (300, 300, 3)
    assert not any(seen[:3])
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).position.cursor == LAST
    assert succeed(connection, settings, events).counts.read == 0


def test_a_stopped_first_load_continues_from_its_staging(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    stop = threading.Event()
    first = run(connection, settings, events, stop=stop, watch=once_read(100, stop.set))
    assert (first.outcome, first.counts.read) == (Outcome.RELEASED, 100)
    assert not has_target(connection)
    assert state.load_state(connection, events.id).position.cursor is None
    assert succeed(connection, settings, events).counts.read == 200
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).position.cursor == LAST


@pytest.mark.promise("C1")
def test_a_row_that_commits_late_during_a_first_load_is_not_lost(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    connection.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL)")
    with psycopg.connect(database_url) as late:
        late.execute("INSERT INTO ugc.events VALUES (1, 'late', now())")
        connection.execute("INSERT INTO ugc.events SELECT n, 'soon', clock_timestamp() FROM generate_series(2, 300) n")
        events = create_events(connection, settings, "incremental", options={"horizon_margin": "0s"})
        assert succeed(connection, settings, events).counts.read == 299
        late.commit()
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("C24")
def test_a_stopped_first_load_continues_below_the_horizon_of_its_first_snapshot(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    connection.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL)")
    with psycopg.connect(database_url) as late:
        late.execute("INSERT INTO ugc.events VALUES (1, 'late', now())")
        connection.execute("INSERT INTO ugc.events SELECT n, 'soon', clock_timestamp() FROM generate_series(2, 300) n")
        events = create_events(connection, settings, "incremental", options={"horizon_margin": "0s"})
        stop = threading.Event()
        run(connection, settings, events, stop=stop, watch=once_read(100, stop.set))
        late.commit()  # below the rows that were read, and below the horizon of the second part
    succeed(connection, settings, events)
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("C12")
@pytest.mark.parametrize("task", [None, "first_load_without_time"])
def test_a_row_that_changes_between_two_parts_of_a_first_load_is_not_a_repeated_key(
    connection: Connection, settings: Settings, task: str | None
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental", python_task=task)

    def interrupt() -> None:
        connection.execute("UPDATE ugc.events SET note = 'new', modified = now() WHERE id IN (1, 50, 299)")
        stop.set()

    stop = threading.Event()
    run(connection, settings, events, stop=stop, watch=once_read(100, interrupt))
    second = succeed(connection, settings, events)
    assert second.counts == Counts(read=202 + 3, written=300)  # a pass over the changes follows a resumed load
    query = EVENTS if task is None else "SELECT id, note FROM ugc.events"
    assert differences(connection, query, "analytics.events", "id") == []


@pytest.mark.promise("C12")
def test_a_row_that_changes_between_two_snapshots_of_a_first_load_is_not_a_repeated_key(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental", options={"snapshot_max_age": "0s"})

    def change() -> None:
        connection.execute("UPDATE ugc.events SET note = 'new', modified = now() WHERE id IN (1, 50)")

    succeed(connection, settings, events, watch=once_read(100, change))
    assert events_are_right(connection)


def test_a_first_load_that_fails_before_its_publish_includes_changes_until_the_next_run(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    failpoints.install("staging_built=raise@1,in_backoff=raise")
    try:
        assert run(connection, settings, events).error is not None
    finally:
        failpoints.install("")
    connection.execute("UPDATE ugc.events SET note = 'new', modified = now() WHERE id IN (1, 50)")
    assert succeed(connection, settings, events).counts == Counts(read=2 + 2, written=300)
    assert events_are_right(connection)


@registry.transforms.register("first_load_without_time")
def first_load_without_time(rows: Sequence[Row]) -> Sequence[Row]:
    return [{"id": row["id"], "note": row["note"]} for row in rows]


def test_a_table_created_during_an_interrupted_first_load_is_filled_and_not_replaced(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    events = create_events(connection, settings, "incremental")
    stop = threading.Event()
    run(connection, settings, events, stop=stop, watch=once_read(100, stop.set))
    connection.execute(
        "CREATE TABLE analytics.events (id integer PRIMARY KEY, note text, modified timestamptz, theirs text)"
    )
    succeed(connection, settings, events)
    assert events_are_right(connection)
    assert connection.execute("SELECT count(theirs) AS n FROM analytics.events").fetchone() == {"n": 0}
    left = connection.execute("SELECT count(*) AS n FROM pg_class WHERE relname LIKE 'stage\\_%'").fetchone()
    assert left == {"n": 0}


@pytest.mark.promise("E6")
def test_a_repeated_key_in_a_first_load_fails_whichever_batches_contain_it(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    query = "SELECT (id - 1) % 250 + 1 AS id, id AS number, note, modified FROM ugc.events"
    fields: dict[str, Any] = {"source_query": query, "incremental_id_key": "number"}
    events = create_events(connection, settings, "incremental", **fields)
    failed = run(connection, settings, events).error
    assert failed is not None
    assert failed.code == "DUPLICATE_KEY"
    assert not has_target(connection)
    assert state.load_state(connection, events.id).position.cursor is None


@pytest.mark.promise("C9")
@pytest.mark.parametrize("policy", ["fail", "ignore"])
def test_a_first_load_treats_a_row_without_a_cursor_time_as_the_option_says(
    connection: Connection, settings: Settings, policy: str
) -> None:
    fill_events(connection, 300)
    query = "SELECT id, note, nullif(modified, '2024-01-01 00:00:10+00') AS modified FROM ugc.events"
    events = create_events(connection, settings, "incremental", source_query=query, options={"on_null_cursor": policy})
    executed = run(connection, settings, events)
    if policy == "fail":
        assert executed.error is not None
        assert executed.error.code == "NULL_CURSOR"
        assert not has_target(connection)
    else:
        assert executed.counts.written == 299


def test_another_index_with_the_name_of_the_new_key_does_not_stop_the_first_load(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    connection.execute("CREATE TABLE analytics.events (id integer PRIMARY KEY)")
    connection.execute("ALTER TABLE analytics.events RENAME TO old_events")
    events = create_events(connection, settings, "incremental", source_query=EVENTS)
    succeed(connection, settings, events)
    assert events_are_right(connection)
