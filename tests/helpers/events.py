"""The table `ugc.events`, its pipeline, and the check that its mart equals it."""

from typing import Any

import pytest
from psycopg import sql

from tests.helpers.running import create, differences
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings

EVENTS = "SELECT id, note, modified FROM ugc.events"

both_modes = pytest.mark.parametrize("mode", ["full", "incremental"])


def create_events(connection: Connection, settings: Settings, mode: str, **fields: Any) -> Pipeline:
    defaults: dict[str, Any] = {
        "source_query": EVENTS,
        "target_table": "analytics.events",
        "mode": mode,
        "key_columns": ["id"],
        "batch_size": 100,
    }
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"} if mode == "incremental" else {}
    return create(connection, settings, **defaults | cursor | fields)


def create_target(connection: Connection, key: str = "id integer PRIMARY KEY") -> None:
    """Create an empty target: changes are then merged batch by batch, while a missing target gets a first load."""
    connection.execute(raw(f"CREATE TABLE analytics.events ({key}, note text, modified timestamptz)"))


def create_filled(connection: Connection, settings: Settings, mode: str, count: int, **fields: Any) -> Pipeline:
    """Fill the source and create its pipeline; an incremental one gets an empty target, so it merges batch by batch."""
    fill_events(connection, count)
    if mode == "incremental":
        create_target(connection)
    return create_events(connection, settings, mode, **fields)


def fill_events(
    connection: Connection, count: int, *, note: str = "n::text", modified: str = "n * interval '1 s'"
) -> None:
    """Create events 1 to count; `note` and `modified` (added to the start of 2024) are SQL expressions over n."""
    connection.execute("CREATE TABLE ugc.events (id integer PRIMARY KEY, note text, modified timestamptz NOT NULL)")
    values = raw(f"SELECT n, {note}, '2024-01-01'::timestamptz + {modified} FROM generate_series(1, {count}) n")
    connection.execute(sql.SQL("INSERT INTO ugc.events {}").format(values))


def events_are_right(connection: Connection) -> bool:
    return differences(connection, EVENTS, "analytics.events", "id") == []


def count_events(connection: Connection) -> int:
    row = connection.execute("SELECT count(*) AS n FROM analytics.events").fetchone()
    assert row is not None
    return row["n"]
