"""Repair: what differs goes once more through the pipeline, the checkpoint stays, and the keys are compared again."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.helpers.events import create_events, create_filled, events_are_right, fill_events
from tests.helpers.reconciling import NOTHING, keys, last_result, reconcile, report
from tests.helpers.running import create, run, run_one_batch, succeed
from tests.helpers.tasks import register
from vitrine.core import repair
from vitrine.core.status import RequestKind, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.postgres import Connection, raw
from vitrine.settings import Settings
from vitrine.store import checkpoint, history, pipelines, state


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    pipeline = create_filled(connection, settings, "incremental", 300)
    succeed(connection, settings, pipeline)
    return pipeline


@pytest.mark.promise("C13", "R5")
@pytest.mark.parametrize("chunk", [1, 1000])
def test_every_difference_is_corrected_and_the_checkpoint_stays(
    connection: Connection, settings: Settings, events: Pipeline, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair, "KEYS_PER_READ", chunk)
    monkeypatch.setattr(repair, "KEYS_PER_DELETE", chunk)
    connection.execute("UPDATE analytics.events SET note = 'by hand' WHERE id IN (17, 18)")
    connection.execute("DELETE FROM analytics.events WHERE id IN (42, 43)")
    connection.execute("INSERT INTO analytics.events VALUES (900, 'by hand', now()), (901, NULL, NULL)")
    connection.execute("UPDATE ugc.events SET note = 'at the source' WHERE id = 300")
    connection.execute("DELETE FROM ugc.events WHERE id = 1")
    before = state.load_state(connection, events.id)
    executed = reconcile(connection, settings, events, repair=True)
    assert executed.error is None
    assert (executed.counts.read, executed.counts.written, executed.counts.deleted) == (5, 5, 3)
    found = last_result(connection, events)
    assert (found["equal"], keys(found)) == (True, NOTHING)
    repaired = {kind: sorted(some["keys"]) for kind, some in found["repaired"].items()}
    assert repaired == {"missing": ["42", "43"], "extra": ["1", "900", "901"], "different": ["17", "18", "300"]}
    assert found["sentence"] == "repaired 2 missing, 3 extra, 3 different; source = target"
    assert events_are_right(connection)
    after = state.load_state(connection, events.id)
    assert (after.position, after.cursor_types) == (before.position, before.cursor_types)
    assert after.batch_seq > before.batch_seq
    stored = pipelines.get(connection, events.id)
    assert (stored.status, stored.verification.verdict) == (Status.IDLE, "equal")


def test_a_repair_of_an_equal_mart_writes_nothing(connection: Connection, settings: Settings, events: Pipeline) -> None:
    found = report(connection, settings, events, repair=True)
    assert (found["equal"], found["sentence"]) == (True, "source = target")
    (newest, *_) = history.list_runs(connection, events.id)
    assert (newest.rows_read, newest.rows_written, newest.rows_deleted) == (0, 0, 0)


@pytest.mark.promise("R5", "I6")
def test_extra_keys_are_deleted_under_the_shrink_guard(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    connection.execute("DELETE FROM ugc.events WHERE id <= 200")
    connection.execute("UPDATE analytics.events SET note = 'by hand' WHERE id = 250")
    error = reconcile(connection, settings, events, repair=True).error
    assert error is not None
    assert (error.code, "200 of the 300 rows" in str(error)) == ("SHRINK_GUARD", True)
    row = connection.execute("SELECT count(*) AS n FROM analytics.events WHERE note <> 'by hand'").fetchone()
    assert row == {"n": 299}  # nothing was changed
    assert pipelines.get(connection, events.id).status is Status.IDLE
    assert report(connection, settings, events, repair=True, allow_shrink=True)["equal"]
    assert events_are_right(connection)


@pytest.mark.promise("R5")
def test_rows_that_changed_meanwhile_are_left_to_the_next_run(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    connection.execute("UPDATE ugc.events SET note = 'newer', modified = now() WHERE id = 5")
    connection.execute("DELETE FROM analytics.events WHERE id = 6")
    found = report(connection, settings, events, repair=True)
    assert (found["equal"], found["waiting"], found["repaired"]["missing"]["keys"]) == (True, 1, ["6"])
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("R5", "J30")
def test_a_row_that_does_not_fit_goes_to_the_quarantine_and_is_not_called_repaired(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    connection.execute("CREATE TABLE analytics.events (id integer PRIMARY KEY, note varchar(3), modified timestamptz)")
    pipeline = create_events(connection, settings, "incremental", options={"on_reject": "quarantine"})
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'too long' WHERE id = 4")
    connection.execute("UPDATE ugc.events SET note = 'ok' WHERE id = 5")
    found = report(connection, settings, pipeline, repair=True)
    assert found["repaired"]["different"]["keys"] == ["5"]
    assert found["left_out"] == ['1 key(s) in quarantine are not compared: ["4"]']
    assert checkpoint.count_open(connection, pipeline.id) == 1


def test_a_key_that_a_transform_makes_cannot_be_repaired(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 10)
    pipeline = create(
        connection,
        settings,
        target_table="analytics.renamed",
        key_columns=["number"],
        mode="incremental",
        incremental_key="modified",
        incremental_id_key="id",
        tasks=[
            {"order_index": 1, "task_type": "SQL", "body": "SELECT id, note, modified FROM ugc.events"},
            {"order_index": 2, "task_type": "PYTHON", "body": "map_fields", "options": {"rename": {"id": "number"}}},
        ],
    )
    succeed(connection, settings, pipeline)
    connection.execute("DELETE FROM analytics.renamed WHERE number = 3")
    assert keys(report(connection, settings, pipeline)) == NOTHING | {"missing": ["3"]}
    error = reconcile(connection, settings, pipeline, repair=True).error
    assert error is not None
    assert (error.code, "ask for a full run instead" in str(error)) == ("KEY_OF_TRANSFORM", True)


@pytest.mark.promise("R5")
def test_a_repair_beside_a_load_that_is_not_published_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 300)
    pipeline = create_events(connection, settings, "full")
    succeed(connection, settings, pipeline)
    run_one_batch(connection, settings, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    error = reconcile(connection, settings, pipeline, repair=True).error
    assert error is not None
    assert error.code == "LOAD_OPEN"


@pytest.mark.promise("R6")
def test_rejects_are_replayed_and_closed_once_their_rows_fit(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 10)
    connection.execute("CREATE TABLE analytics.events (id integer PRIMARY KEY, note varchar(3), modified timestamptz)")
    connection.execute("UPDATE ugc.events SET note = 'too long' WHERE id IN (4, 7)")
    pipeline = create_events(connection, settings, "incremental", options={"on_reject": "quarantine"})
    succeed(connection, settings, pipeline)
    assert checkpoint.count_open(connection, pipeline.id) == 2
    before = state.load_state(connection, pipeline.id)
    connection.execute("UPDATE ugc.events SET note = 'ok' WHERE id = 4")
    replayed = run(connection, settings, pipeline, kind=RequestKind.REPLAY)
    assert replayed.error is None
    assert last_result(connection, pipeline) == {"replayed": 2, "closed": 1, "open": 1}
    assert [one["key"] for one in checkpoint.list_open(connection, pipeline.id)] == ["7"]
    connection.execute("ALTER TABLE analytics.events ALTER note TYPE text")
    assert run(connection, settings, pipeline, kind=RequestKind.REPLAY).error is None
    assert last_result(connection, pipeline) == {"replayed": 1, "closed": 1, "open": 0}
    assert events_are_right(connection)
    assert state.load_state(connection, pipeline.id).position == before.position
    (newest, *_) = history.list_runs(connection, pipeline.id)
    assert (newest.kind, newest.status, newest.rows_read) == ("replay", RunStatus.SUCCESS, 1)
    assert pipelines.get(connection, pipeline.id).status is Status.IDLE


@pytest.mark.promise("R1", "R5")
@pytest.mark.parametrize("kind", ["integer", "text"])
def test_a_row_with_null_in_its_key_is_reported_and_stays(
    connection: Connection, settings: Settings, kind: str
) -> None:
    fill_events(connection, 10)
    connection.execute(raw(f"CREATE TABLE analytics.events (id {kind} UNIQUE, note text, modified timestamptz)"))
    query = f"SELECT id::{kind} AS id, note, modified FROM ugc.events"
    options = {"delete_mode": "reconcile_keys"}
    pipeline = create_events(connection, settings, "incremental", source_query=query, options=options)
    succeed(connection, settings, pipeline)
    connection.execute("INSERT INTO analytics.events VALUES (NULL, 'by hand', now())")
    connection.execute("DELETE FROM analytics.events WHERE id::text = '7'")
    found = report(connection, settings, pipeline, repair=True)
    assert (keys(found), found["equal"]) == (NOTHING | {"extra": ["NULL"]}, False)
    assert found["repaired"]["missing"]["keys"] == ["7"]
    assert succeed(connection, settings, pipeline).counts.deleted == 0


READER_KEYS: list[tuple[str, Callable[[int], Any]]] = [
    ("numeric", lambda number: Decimal(f"{number}.50")),
    ("double precision", float),
    ("timestamptz", lambda number: datetime(2024, 1, number, tzinfo=UTC)),
    ("uuid", lambda number: str(UUID(int=number)).upper()),
]


@pytest.mark.promise("R1", "R5")
@pytest.mark.parametrize(("kind", "key"), READER_KEYS)
def test_rows_of_a_reader_are_found_by_the_value_of_their_key(
    connection: Connection,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    key: Callable[[int], Any],
) -> None:
    def read(after: object) -> Iterator[dict[str, Any]]:
        return ({"id": key(number), "note": f"note {number}"} for number in range(1, 10))

    register(monkeypatch, Task("keyed_rows", Kind.READER, read, None, (("id", kind), ("note", "text"))))
    pipeline = create(
        connection, settings, python_task="keyed_rows", target_table="analytics.keyed", key_columns=["id"]
    )
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE analytics.keyed SET note = 'by hand' WHERE note = 'note 1'")
    connection.execute("DELETE FROM analytics.keyed WHERE note = 'note 6'")
    found = report(connection, settings, pipeline)
    assert (found["missing"]["count"], found["extra"]["count"], found["different"]["count"]) == (1, 0, 1)
    assert report(connection, settings, pipeline, repair=True)["equal"]
    row = connection.execute("SELECT count(*) AS n, count(DISTINCT note) AS notes FROM analytics.keyed").fetchone()
    assert row == {"n": 9, "notes": 9}
