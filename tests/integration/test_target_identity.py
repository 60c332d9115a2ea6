"""An incremental mart that is dropped and created again, and the identity of its table in the state."""

import pytest

from tests.helpers.events import (
    both_modes,
    count_events,
    create_events,
    create_filled,
    create_target,
    events_are_right,
    fill_events,
)
from tests.helpers.running import differences, once_read, run, succeed
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import history, pipelines, state


def table_oid(connection: Connection) -> str:
    row = connection.execute("SELECT 'analytics.events'::regclass::oid::text AS oid").fetchone()
    assert row is not None
    return row["oid"]


def add_event(connection: Connection) -> None:
    connection.execute("INSERT INTO ugc.events SELECT max(id) + 1, 'new', now() FROM ugc.events")


@pytest.fixture(params=["first load", "existing mart"])
def events(request: pytest.FixtureRequest, connection: Connection, settings: Settings) -> Pipeline:
    """An incremental pipeline that has run: its mart was created by its first load, or existed before."""
    if request.param == "first load":
        fill_events(connection, 300)
        pipeline = create_events(connection, settings, "incremental")
    else:
        pipeline = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, pipeline)
    return pipeline


@pytest.mark.promise("E14")
def test_a_mart_that_was_recreated_under_a_checkpoint_fails_until_the_state_is_reset(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    before = state.load_state(connection, events.id)
    assert before.identity == table_oid(connection)
    connection.execute("DROP TABLE analytics.events")
    create_target(connection)
    add_event(connection)
    for _ in range(2):
        failed = run(connection, settings, events).error
        assert failed is not None
        assert failed.code == "TARGET_REPLACED"
        assert "reset the state" in str(failed)
        assert pipelines.get(connection, events.id).status is Status.FAILED
        assert count_events(connection) == 0
        after = state.load_state(connection, events.id)
        assert (after.position, after.identity) == (before.position, before.identity)
    newest = history.list_runs(connection, events.id)[0]
    assert (newest.status, newest.error_code) == (RunStatus.FAILED, "TARGET_REPLACED")
    state.reset_state(connection, events.id)
    assert succeed(connection, settings, events).counts.written == 301
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).identity == table_oid(connection)
    add_event(connection)
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("E14")
def test_a_state_without_an_identity_continues_and_stores_it(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    # as after an upgrade from a release that did not store it
    connection.execute("UPDATE etl.etl_state SET target_identity = NULL")
    add_event(connection)
    assert succeed(connection, settings, events).counts.written == 1
    assert events_are_right(connection)
    assert state.load_state(connection, events.id).identity == table_oid(connection)


@pytest.mark.promise("E14")
@pytest.mark.parametrize(
    "statement",
    [
        b"ALTER TABLE analytics.events ADD COLUMN theirs text DEFAULT 'x'",
        b'ALTER TABLE analytics.events ALTER note TYPE text COLLATE "C"',
        b"VACUUM FULL analytics.events",
        b"ALTER TABLE analytics.events RENAME TO moved; ALTER TABLE analytics.moved RENAME TO events",
    ],
    ids=["new column", "new collation", "vacuum", "renamed twice"],
)
def test_a_change_that_keeps_the_table_keeps_its_identity(
    connection: Connection, settings: Settings, statement: bytes
) -> None:
    events = create_filled(connection, settings, "incremental", 10)
    succeed(connection, settings, events)
    connection.execute(statement)
    add_event(connection)
    assert succeed(connection, settings, events).counts.written == 1
    assert events_are_right(connection)


def test_a_full_load_does_not_need_the_table_it_wrote_before(connection: Connection, settings: Settings) -> None:
    events = create_filled(connection, settings, "full", 10)
    succeed(connection, settings, events)
    connection.execute("DROP TABLE analytics.events")
    create_target(connection)
    assert succeed(connection, settings, events).counts.written == 10
    assert events_are_right(connection)


RECREATE = "DROP TABLE analytics.events; CREATE TABLE analytics.events (id integer PRIMARY KEY, note {}, modified {})"
CHANGES = {
    "another type": ("ALTER TABLE analytics.events ALTER note TYPE integer USING 0", "DATA_ERROR", "would be changed"),
    "a trigger": (
        "CREATE FUNCTION analytics.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        " CREATE TRIGGER keep BEFORE INSERT ON analytics.events FOR EACH ROW EXECUTE FUNCTION analytics.keep()",
        "TARGET_CHANGED_ROWS",
        "keep",
    ),
    "another table": (RECREATE.format("numeric", "timestamptz"), "TARGET_REPLACED", "was recreated"),
}


@pytest.mark.promise("E14", "J31")
@both_modes
@pytest.mark.parametrize("change", CHANGES)
def test_a_mart_that_changes_during_a_run_is_planned_again(
    connection: Connection, settings: Settings, mode: str, change: str
) -> None:
    statements, code, named = CHANGES[change]
    fill_events(connection, 300)
    create_target(connection)
    connection.execute("ALTER TABLE analytics.events ALTER note TYPE numeric USING 0")
    query = "SELECT id, id + 0.5 AS note, modified FROM ugc.events"
    pipeline = create_events(connection, settings, mode, source_query=query)
    watch = once_read(100, lambda: connection.execute(raw(statements)))
    executed = run(connection, settings, pipeline, watch=watch, waits=[0.0])
    if mode == "full" and change == "another table":  # a load needs no earlier row
        assert executed.error is None, executed.error
        assert differences(connection, query, "analytics.events", "id") == []
        return
    assert executed.error is not None
    if mode == "full" and change == "another type":
        code, named = "STAGING_MISMATCH", "staged for type numeric"
    assert (executed.error.code, named in str(executed.error)) == (code, True)
    assert count_events(connection) == (0 if mode == "full" or change == "another table" else 100)


KEEP = """
    CREATE FUNCTION analytics.keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
    CREATE TRIGGER keep BEFORE {} FOR EACH ROW EXECUTE FUNCTION analytics.keep()
"""


@pytest.mark.promise("J20")
def test_a_trigger_that_a_partition_gets_during_a_run_is_noticed(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 300)
    connection.execute(
        "CREATE TABLE analytics.events (id integer PRIMARY KEY, note text, modified timestamptz)"
        " PARTITION BY RANGE (id); CREATE TABLE analytics.part PARTITION OF analytics.events DEFAULT"
    )
    pipeline = create_events(connection, settings, "incremental")
    watch = once_read(100, lambda: connection.execute(raw(KEEP.format("INSERT ON analytics.part"))))
    executed = run(connection, settings, pipeline, watch=watch, waits=[0.0])
    assert executed.error is not None
    assert executed.error.code == "TARGET_CHANGED_ROWS"


@pytest.mark.promise("J20")
def test_a_trigger_that_is_created_before_a_batch_of_deletions_is_noticed(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 300)
    connection.execute("ALTER TABLE ugc.events ADD gone boolean")
    query = "SELECT id, note, modified, gone FROM ugc.events"
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    pipeline = create_events(connection, settings, "incremental", source_query=query, options=options)
    succeed(connection, settings, pipeline)
    # the second batch consists of marked rows only
    connection.execute("UPDATE ugc.events SET gone = id > 100, modified = modified + interval '1 day' WHERE id <= 200")
    watch = once_read(100, lambda: connection.execute(raw(KEEP.format("DELETE ON analytics.events"))))
    executed = run(connection, settings, pipeline, watch=watch, waits=[0.0])
    assert executed.error is not None
    assert (executed.error.code, count_events(connection)) == ("TARGET_CHANGED_ROWS", 300)
