"""Keys that the source returns more than once, with the option to keep the last row."""

from typing import Any

import pytest

from tests.helpers.events import create_events, fill_events
from tests.helpers.planning_changes import carry_out, figures, of_run, planned
from tests.helpers.running import differences, run, succeed
from tests.helpers.tasks import register
from vitrine.core.status import RequestKind, RunOptions
from vitrine.definition.registry import Kind, Task
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


def pairs_of(connection: Connection) -> dict[int, dict[str, Any]]:
    return {row["pair"]: row for row in connection.execute("SELECT * FROM analytics.events").fetchall()}


@pytest.mark.parametrize(
    ("mode", "chosen", "transform"),
    [
        ("full", "next", None),
        ("full", "next", "upper_note"),
        ("incremental", "next", None),
        ("incremental", "reset", None),
    ],
)
def test_a_plan_counts_the_row_that_is_kept(
    connection: Connection,
    settings: Settings,
    mode: str,
    chosen: str,
    transform: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches are small: of a pair, one may write the older row, and the next one the newer."""

    def upper_note(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"note": row["note"].upper()} for row in rows]

    register(monkeypatch, Task("upper_note", Kind.ROW, upper_note, None))
    fill_events(connection, 61)
    query = "SELECT id / 2 AS pair, id, note, modified - (id % 2) * interval '1 d' AS modified FROM ugc.events"
    fields: dict[str, Any] = {"source_query": query, "key_columns": ["pair"], "batch_size": 3, "python_task": transform}
    cursor = {"incremental_key": "modified", "incremental_id_key": "id"}
    options = {"on_duplicate_key": "last", "max_delete_ratio": 1}
    pairs = create_events(connection, settings, mode, options=options, **fields, **cursor)
    first = of_run(planned(settings, pairs), "next")
    assert (figures(first), first.written) == ((31, 0, 0), 31)
    assert succeed(connection, settings, pairs).counts.written == 31
    connection.execute("UPDATE ugc.events SET note = 'x' WHERE id IN (4, 9)")  # the newer row of a pair, and the older
    connection.execute("UPDATE ugc.events SET note = 'y', modified = now() WHERE id IN (14, 15)")
    connection.execute("INSERT INTO ugc.events VALUES (100, 'a', now()), (101, 'b', now()), (102, 'c', now())")
    connection.execute("DELETE FROM ugc.events WHERE id IN (20, 21)")
    state: dict[str, Any] = {"state": "reset"} if chosen == "reset" else {}
    found = of_run(planned(settings, pairs, **state), chosen)
    before = pairs_of(connection)
    assert carry_out(connection, settings, pairs, **state) == (found.written, found.removed)
    after = pairs_of(connection)
    changed = [pair for pair in before.keys() & after.keys() if before[pair] != after[pair]]
    assert figures(found) == (len(after.keys() - before.keys()), len(changed), len(before.keys() - after.keys()))
    assert found.method == "exact"
