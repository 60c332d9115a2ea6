"""Keys that the source returns more than once, with the option to keep the last row."""

from typing import Any

import pytest

from tests.helpers.events import create_events, fill_events
from tests.helpers.running import differences, run, succeed
from vitrine.model import RequestKind, RunOptions
from vitrine.postgres import Connection
from vitrine.settings import Settings

# every pair has two rows; the newer one has the lower id
PAIRS = """
    SELECT id / 2 AS pair, id, note, '2024-02-01'::timestamptz - (id % 2) * interval '1 day' AS modified FROM ugc.events
"""
NEWEST = f"SELECT DISTINCT ON (pair) * FROM ({PAIRS}) AS q ORDER BY pair, modified DESC, id DESC"
TARGET = "CREATE TABLE analytics.events (pair integer PRIMARY KEY, id integer, note text, modified timestamptz)"


@pytest.mark.promise("E6")
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("exists", [False, True], ids=["new target", "old target"])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_the_last_of_the_rows_with_one_key_is_kept_and_the_others_are_counted(
    connection: Connection, settings: Settings, mode: str, exists: bool, batch_size: int
) -> None:
    fill_events(connection, 21)
    if exists:
        connection.execute(TARGET)
    fields: dict[str, Any] = {"source_query": PAIRS, "key_columns": ["pair"], "batch_size": batch_size}
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"}
    pairs = create_events(connection, settings, mode, options={"on_duplicate_key": "last"}, **fields, **cursor)
    executed = succeed(connection, settings, pairs)
    assert differences(connection, NEWEST, "analytics.events", "pair") == []
    if mode == "full" or not exists:
        assert (executed.counts.read, executed.counts.repeated) == (21, 10)
        row = connection.execute("SELECT rows_repeated FROM etl.etl_runs").fetchone()
        assert row == {"rows_repeated": 10}


@pytest.mark.promise("D24", "E6")
@pytest.mark.parametrize("batch_size", [1, 100])
def test_a_backfill_leaves_the_newest_of_the_rows_with_one_key(
    connection: Connection, settings: Settings, batch_size: int
) -> None:
    fill_events(connection, 21)
    fields: dict[str, Any] = {"source_query": PAIRS, "key_columns": ["pair"], "incremental_id_key": "id"}
    options = {"on_duplicate_key": "last"}
    pairs = create_events(connection, settings, "incremental", options=options, batch_size=batch_size, **fields)
    succeed(connection, settings, pairs)
    connection.execute("UPDATE ugc.events SET note = 'changed' WHERE id = 5")
    # the older row of each pair
    wanted = RunOptions(backfill_from="2024-01-31", backfill_to="2024-02-01")
    succeed(connection, settings, pairs, kind=RequestKind.BACKFILL, options=wanted)
    assert differences(connection, NEWEST, "analytics.events", "pair") == []


def test_rows_with_a_repeated_key_that_do_not_fit_are_quarantined(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 21)
    connection.execute(TARGET)
    connection.execute("ALTER TABLE analytics.events ADD CHECK (pair <> 5)")
    options = {"on_duplicate_key": "last", "on_reject": "quarantine"}
    fields: dict[str, Any] = {"source_query": PAIRS, "key_columns": ["pair"], "incremental_id_key": "id"}
    pairs = create_events(connection, settings, "incremental", options=options, **fields)
    executed = succeed(connection, settings, pairs)
    assert executed.counts.rejected == 2
    others = f"SELECT * FROM ({NEWEST}) AS n WHERE pair <> 5"
    assert differences(connection, others, "analytics.events", "pair") == []


def test_without_the_option_a_repeated_key_fails_the_run(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 21)
    failed = run(
        connection, settings, create_events(connection, settings, "full", source_query=PAIRS, key_columns=["pair"])
    )
    assert failed.error is not None
    assert failed.error.code == "DUPLICATE_KEY"
    assert "on_duplicate_key" in str(failed.error)
