"""Rows that are deleted at the source leave an incremental mart, by a column that marks them or by their keys."""

from typing import Any

import pytest

from tests.helpers.events import create_events, create_target, events_are_right, fill_events
from tests.helpers.reconciling import NOTHING, keys, last_result, report
from tests.helpers.running import create, once_read, run, succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from vitrine.core.protocols import Outcome
from vitrine.core.status import RequestKind, RunOptions
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import checkpoint, pipelines, state

MARKS = {"boolean": "true", "timestamptz": "now()", "integer": "1"}
MARKED = "SELECT id, note, modified, gone FROM ugc.events"


def ids(connection: Connection) -> list[int]:
    return [row["id"] for row in connection.execute("SELECT id FROM analytics.events ORDER BY id").fetchall()]


def create_marked(connection: Connection, settings: Settings, type_name: str, mode: str, **options: Any) -> Pipeline:
    fill_events(connection, 10)
    connection.execute(raw(f"ALTER TABLE ugc.events ADD gone {type_name}"))
    connection.execute(raw(f"UPDATE ugc.events SET gone = {MARKS[type_name]} WHERE id = 2"))
    chosen = {"delete_mode": "soft_column", "delete_column": "gone", **options}
    return create_events(connection, settings, mode, source_query=MARKED, options=chosen)


@pytest.mark.promise("I10")
@pytest.mark.parametrize("mode", ["full", "incremental"])
@pytest.mark.parametrize("type_name", MARKS)
def test_a_row_that_is_marked_as_deleted_leaves_the_mart(
    connection: Connection, settings: Settings, type_name: str, mode: str
) -> None:
    pipeline = create_marked(connection, settings, type_name, mode)
    succeed(connection, settings, pipeline)
    assert ids(connection) == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    connection.execute(raw(f"UPDATE ugc.events SET gone = {MARKS[type_name]}, modified = now() WHERE id = 5"))
    connection.execute("UPDATE ugc.events SET gone = NULL, modified = now() WHERE id = 2")
    executed = succeed(connection, settings, pipeline)
    assert (ids(connection), executed.counts.deleted) == ([1, 2, 3, 4, 6, 7, 8, 9, 10], 1)
    assert keys(report(connection, settings, pipeline)) == NOTHING
    connection.execute("INSERT INTO analytics.events (id, note) VALUES (5, 'back')")
    found = report(connection, settings, pipeline)
    # the source row of 5 changed a moment ago, so that the next run of an incremental pipeline deletes it again
    assert (keys(found)["extra"], found["waiting"]) == (([], 1) if mode == "incremental" else (["5"], 0))


@pytest.mark.promise("I10")
def test_a_row_that_is_only_to_be_marked_stays(connection: Connection, settings: Settings) -> None:
    pipeline = create_marked(connection, settings, "boolean", "incremental", on_soft_delete="mark")
    succeed(connection, settings, pipeline)
    row = connection.execute("SELECT gone FROM analytics.events WHERE id = 2").fetchone()
    assert row == {"gone": True}
    assert keys(report(connection, settings, pipeline)) == NOTHING


@pytest.mark.promise("I10")
def test_a_mark_is_read_after_the_transforms(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 10)
    connection.execute("ALTER TABLE ugc.events ADD gone boolean NOT NULL DEFAULT false")
    connection.execute("UPDATE ugc.events SET gone = true WHERE id = 2")
    create_target(connection)
    connection.execute("ALTER TABLE analytics.events ADD is_gone boolean")
    connection.execute("INSERT INTO analytics.events VALUES (2, 'old', now(), false)")
    pipeline = create(
        connection,
        settings,
        target_table="analytics.events",
        key_columns=["id"],
        mode="incremental",
        incremental_key="modified",
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": MARKED},
            {"order_index": 2, "task_type": "PYTHON", "body": "map_fields", "options": {"rename": {"gone": "is_gone"}}},
        ],
        options={"delete_mode": "soft_column", "delete_column": "is_gone"},
    )
    succeed(connection, settings, pipeline)
    assert ids(connection) == [1, 3, 4, 5, 6, 7, 8, 9, 10]
    assert keys(report(connection, settings, pipeline)) == NOTHING


@pytest.mark.promise("I10")
@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize(("first", "later", "notes"), [(True, False, ["new"]), (False, True, [])])
def test_of_a_marked_and_an_unmarked_row_with_one_key_the_later_one_counts(
    connection: Connection, settings: Settings, first: bool, later: bool, notes: list[str], batch_size: int
) -> None:
    fill_events(connection, 1, note="'old'")
    connection.execute("ALTER TABLE ugc.events ADD gone boolean, ADD slug text DEFAULT 'a'")
    query = "SELECT id, slug, note, modified, gone FROM ugc.events"
    fields = {"source_query": query, "key_columns": ["slug"], "batch_size": batch_size}
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    pipeline = create_events(connection, settings, "incremental", options=options, **fields)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET modified = '2024-02-01', gone = %s", [first])
    connection.execute("INSERT INTO ugc.events VALUES (2, 'new', '2024-02-02', %s, 'a')", [later])
    succeed(connection, settings, pipeline)
    found = connection.execute("SELECT note FROM analytics.events").fetchall()
    assert [row["note"] for row in found] == notes


def create_slugs(connection: Connection, settings: Settings, mode: str, rows: str, **fields: Any) -> Pipeline:
    """Events whose key, a slug, occurs more than once: (id, slug, note, modified, gone)."""
    kind = fields.pop("kind", "text")
    connection.execute(
        raw(f"CREATE TABLE ugc.events (id integer, slug {kind}, note text, modified timestamptz, gone boolean)")
    )
    connection.execute(raw(f"INSERT INTO ugc.events VALUES {rows}"))
    query = "SELECT id, slug, note, modified, gone FROM ugc.events"
    options = {"delete_mode": "soft_column", "delete_column": "gone", **fields.pop("options", {})}
    fields = {"source_query": query, "key_columns": ["slug"], "incremental_key": "modified", **fields}
    return create_events(connection, settings, mode, options=options, **fields)


def notes(connection: Connection) -> list[str]:
    return [row["note"] for row in connection.execute("SELECT note FROM analytics.events ORDER BY note").fetchall()]


@pytest.mark.promise("I10")
@pytest.mark.parametrize("on_duplicate_key", ["fail", "last"])
@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize(("kind", "first", "second"), [("text", "a", "a"), ("numeric", "1.0", "1.00")])
def test_the_catch_up_of_a_full_load_keeps_a_row_whose_key_a_marked_row_has_as_well(
    connection: Connection,
    settings: Settings,
    on_duplicate_key: str,
    batch_size: int,
    kind: str,
    first: str,
    second: str,
) -> None:
    rows = f"(1, '{first}', 'live', '2024-01-01', false), (2, '{second}', 'marked', now(), true)"
    rows += ", (3, '7', 'other', now(), true), (4, '8', 'later', now(), NULL)"
    options = {"on_duplicate_key": on_duplicate_key}
    pipeline = create_slugs(connection, settings, "full", rows, kind=kind, options=options, batch_size=batch_size)
    mark = "UPDATE ugc.events SET gone = true, modified = clock_timestamp() WHERE id = 4"
    watch = once_read(4, lambda: connection.execute(mark))
    succeed(connection, settings, pipeline, watch=watch)
    assert notes(connection) == ["live"]


@pytest.mark.promise("I10", "D24")
@pytest.mark.parametrize("is_continued", [False, True])
def test_a_backfill_deletes_a_marked_key_only_if_no_other_row_has_it(
    connection: Connection, settings: Settings, is_continued: bool
) -> None:
    rows = "(1, 'a', 'marked', '2024-01-01', true), (2, 'b', 'lost', '2024-01-02', false)"
    rows += ", (3, 'c', 'kept', '2024-01-03', false), (4, 'a', 'live', '2024-03-01', NULL)"
    pipeline = create_slugs(connection, settings, "incremental", rows, incremental_id_key="id", batch_size=1)
    succeed(connection, settings, pipeline)
    assert notes(connection) == ["kept", "live", "lost"]
    connection.execute("UPDATE ugc.events SET gone = true WHERE id = 2")
    wanted = RunOptions(backfill_from="2024-01-01", backfill_to="2024-02-01")
    if is_continued:
        pause = once_read(2, lambda: pipelines.request_pause(connection, pipeline.id))
        paused = succeed(connection, settings, pipeline, kind=RequestKind.BACKFILL, options=wanted, watch=pause)
        assert (paused.outcome, notes(connection)) == (Outcome.PAUSED, ["kept", "live", "lost"])
        succeed(connection, settings, pipeline, resume=True)
    else:
        succeed(connection, settings, pipeline, kind=RequestKind.BACKFILL, options=wanted)
    assert notes(connection) == ["kept", "live"]


@pytest.mark.promise("I10", "R5")
def test_a_repair_restores_a_row_whose_key_marked_rows_have_as_well(connection: Connection, settings: Settings) -> None:
    rows = "(1, 'a', 'live', '2024-01-01', false), (2, 'a', 'x', '2024-02-01', true), (3, 'a', 'y', '2024-03-01', true)"
    pipeline = create_slugs(connection, settings, "full", rows, batch_size=1)
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM analytics.events")
    assert report(connection, settings, pipeline, repair=True)["repaired"]["missing"]["keys"] == ["a"]
    assert notes(connection) == ["live"]


@pytest.mark.promise("I10", "J24")
@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("on_reject", ["fail", "quarantine"])
def test_a_row_takes_over_a_unique_value_of_a_marked_row(
    connection: Connection, settings: Settings, on_reject: str, batch_size: int
) -> None:
    fill_events(connection, 2, note="'note ' || n")
    connection.execute("ALTER TABLE ugc.events ADD gone boolean")
    create_target(connection, "id integer PRIMARY KEY, gone boolean")
    connection.execute("ALTER TABLE analytics.events ADD UNIQUE (note)")
    options = {"delete_mode": "soft_column", "delete_column": "gone", "on_reject": on_reject}
    fields = {"source_query": MARKED, "batch_size": batch_size}
    pipeline = create_events(connection, settings, "incremental", options=options, **fields)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET gone = true, modified = '2024-02-01' WHERE id = 1")
    connection.execute("INSERT INTO ugc.events VALUES (3, 'note 1', '2024-02-02')")
    executed = succeed(connection, settings, pipeline)
    assert (ids(connection), executed.counts.rejected, executed.counts.deleted) == ([2, 3], 0, 1)


@pytest.mark.promise("I10", "J18")
@pytest.mark.parametrize("delete_mode", ["soft_column", "reconcile_keys", "full"])
def test_a_row_in_quarantine_that_is_deleted_leaves_the_mart_and_the_quarantine(
    connection: Connection, settings: Settings, delete_mode: str
) -> None:
    fill_events(connection, 10)
    connection.execute("ALTER TABLE ugc.events ADD gone boolean")
    create_target(connection, "id integer PRIMARY KEY, gone boolean")
    connection.execute("ALTER TABLE analytics.events ADD CHECK (note <> 'bad')")
    mode = "full" if delete_mode == "full" else "incremental"
    options = {"on_reject": "quarantine"} | ({"delete_mode": delete_mode} if mode == "incremental" else {})
    options |= {"delete_column": "gone"} if delete_mode == "soft_column" else {}
    pipeline = create_events(connection, settings, mode, source_query=MARKED, options=options)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'bad', modified = '2024-02-01' WHERE id IN (3, 4)")
    assert (succeed(connection, settings, pipeline).counts.rejected, len(ids(connection))) == (2, 10)
    if delete_mode == "soft_column":
        connection.execute("UPDATE ugc.events SET gone = true, modified = '2024-02-02' WHERE id = 3")
    else:
        connection.execute("DELETE FROM ugc.events WHERE id = 3")
    succeed(connection, settings, pipeline)
    assert ids(connection) == [1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert [one["key"] for one in checkpoint.list_open(connection, pipeline.id)] == ["4"]
    if delete_mode == "reconcile_keys":
        assert last_result(connection, pipeline)["keys_missing"] == 0


def test_a_marked_row_without_a_key_deletes_nothing(connection: Connection, settings: Settings) -> None:
    connection.execute("CREATE TABLE ugc.events (id integer, note text, modified timestamptz, gone boolean)")
    connection.execute("INSERT INTO ugc.events VALUES (1, '', now(), false), (2, NULL, now(), true)")
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    create_target(connection, "id integer, gone boolean, UNIQUE (note)")
    fields = {"source_query": MARKED, "key_columns": ["note"]}
    succeed(connection, settings, create_events(connection, settings, "incremental", options=options, **fields))
    assert ids(connection) == [1]


def test_a_delete_column_that_the_query_lacks_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    options = {"delete_mode": "soft_column", "delete_column": "gone"}
    error = run(connection, settings, create_events(connection, settings, "incremental", options=options)).error
    assert error is not None
    assert (error.code, "'gone' is not a column of the source" in str(error)) == ("DELETE_COLUMN", True)


@pytest.mark.parametrize(
    "options",
    [
        {"delete_mode": "soft_column"},
        {"delete_column": "gone"},
        {"delete_interval": "1h"},
        {"delete_mode": "reconcile_keys"},
    ],
)
def test_options_that_do_not_match_are_refused(options: dict[str, Any]) -> None:
    fields = {"name": "x", "source_query": "SELECT 1 AS id", "target_table": "analytics.x", "key_columns": ["id"]}
    with pytest.raises(ValueError, match="delete_"):
        Definition.model_validate(fields | {"options": options})


@pytest.fixture
def compared(connection: Connection, settings: Settings) -> Pipeline:
    fill_events(connection, 100)
    pipeline = create_events(connection, settings, "incremental", options={"delete_mode": "reconcile_keys"})
    succeed(connection, settings, pipeline)
    return pipeline


@pytest.mark.promise("I10")
def test_keys_that_vanished_at_the_source_are_deleted(
    connection: Connection, settings: Settings, compared: Pipeline
) -> None:
    connection.execute("DELETE FROM ugc.events WHERE id <= 3")
    connection.execute("INSERT INTO ugc.events VALUES (500, 'new', now())")
    before = state.load_state(connection, compared.id).position
    executed = succeed(connection, settings, compared)
    assert executed.counts.deleted == 3
    assert events_are_right(connection)
    result = last_result(connection, compared)
    assert (result["keys_compared"], result["keys_deleted"], result["keys_missing"]) == (101, 3, 0)
    assert state.load_state(connection, compared.id).position != before
    assert pipelines.get(connection, compared.id).fresh_as_of is not None


@pytest.mark.promise("I10", "I6")
def test_too_many_vanished_keys_fail_the_run(connection: Connection, settings: Settings, compared: Pipeline) -> None:
    connection.execute("DELETE FROM ugc.events WHERE id <= 60")
    error = run(connection, settings, compared).error
    assert error is not None
    assert error.code == "SHRINK_GUARD"
    assert len(ids(connection)) == 100
    succeed(connection, settings, compared, allow_shrink=True)
    assert events_are_right(connection)


@pytest.mark.promise("I10")
def test_keys_are_compared_only_when_the_interval_has_passed(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 20)
    options = {"delete_mode": "reconcile_keys", "delete_interval": "1h"}
    pipeline = create_events(connection, settings, "incremental", options=options)
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM ugc.events WHERE id = 3")
    succeed(connection, settings, pipeline)
    assert len(ids(connection)) == 20
    connection.execute("UPDATE etl.etl_state SET deletes_checked_at = now() - interval '2 hours'")
    succeed(connection, settings, pipeline)
    assert events_are_right(connection)


@pytest.mark.promise("I10")
@pytest.mark.parametrize(
    "options", [{"delete_mode": "soft_column", "delete_column": "gone"}, {"delete_mode": "reconcile_keys"}]
)
def test_documents_of_deleted_rows_leave_the_index(cluster: Cluster, options: dict[str, Any]) -> None:
    cluster.connection.execute("ALTER TABLE content.numbers ADD gone boolean")
    cluster.fill(1, 10)
    chosen = INCREMENTAL | {"options": {"horizon_margin": "0s", **options}}
    pipeline = cluster.create("SELECT id, note, modified, gone FROM content.numbers", **chosen)
    succeed(cluster.connection, cluster.settings, pipeline)
    if "delete_column" in options:
        cluster.connection.execute("UPDATE content.numbers SET gone = true, modified = clock_timestamp() WHERE id = 4")
    else:
        cluster.connection.execute("DELETE FROM content.numbers WHERE id = 4")
    succeed(cluster.connection, cluster.settings, pipeline)
    assert cluster.ids() == [str(number) for number in range(1, 11) if number != 4]
    assert keys(report(cluster.connection, cluster.settings, pipeline)) == NOTHING
