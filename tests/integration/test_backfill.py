"""A backfill: a range of the cursor is read once more and upserted, and the checkpoint stays."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers.events import create_events, create_filled, events_are_right, fill_events
from tests.helpers.running import create, once_read, run, succeed
from tests.helpers.tasks import register
from vitrine import failpoints
from vitrine.core.protocols import Outcome
from vitrine.core.status import Event, RequestKind, RunOptions, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline
from vitrine.definition.registry import Kind, Task
from vitrine.errors import ConfigError
from vitrine.operations import changes
from vitrine.plan import backfill
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state

MINUTE_2 = RunOptions(backfill_from="2024-01-01T00:01:00Z", backfill_to="2024-01-01T00:02:00Z")
"""Events 60 to 119."""


@pytest.fixture(autouse=True)
def _no_failpoints() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    failpoints.install("")


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    """A mart of 300 events; then every row has changed without a new cursor, at the source."""
    pipeline = create_filled(connection, settings, "incremental", 300, batch_size=20)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'changed'")
    return pipeline


def fill_again(connection: Connection, settings: Settings, pipeline: Pipeline, **given: Any) -> Executed:
    options = given.pop("options", MINUTE_2)
    return run(connection, settings, pipeline, kind=RequestKind.BACKFILL, options=options, **given)


def changed_ids(connection: Connection) -> list[int]:
    rows = connection.execute("SELECT id FROM analytics.events WHERE note = 'changed' ORDER BY id").fetchall()
    return [row["id"] for row in rows]


@pytest.mark.promise("D24")
def test_exactly_the_range_is_written_and_the_checkpoint_stays(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    before, fresh = state.load_state(connection, events.id), pipelines.get(connection, events.id).fresh_as_of
    executed = fill_again(connection, settings, events)
    assert executed.error is None, executed.error
    assert changed_ids(connection) == list(range(60, 120))
    assert (executed.counts.read, executed.batches) == (60, 3)
    after = state.load_state(connection, events.id)
    assert (after.position, after.cursor_types, after.identity) == (
        before.position,
        before.cursor_types,
        before.identity,
    )
    pipeline = pipelines.get(connection, events.id)
    assert (pipeline.status, pipeline.fresh_as_of) == (Status.IDLE, fresh)
    (newest, *_) = history.list_runs(connection, events.id)
    assert (newest.kind, newest.status, newest.rows_read) == ("backfill", RunStatus.SUCCESS, 60)


@pytest.mark.promise("D24")
def test_the_next_run_continues_from_the_checkpoint(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    fill_again(connection, settings, events)
    connection.execute("INSERT INTO ugc.events VALUES (301, 'new', now())")
    executed = succeed(connection, settings, events)
    assert executed.counts.written == 1


@pytest.mark.promise("D24")
@pytest.mark.parametrize("interruption", ["release", "pause"])
def test_an_interrupted_backfill_continues_after_its_last_batch(
    connection: Connection, settings: Settings, events: Pipeline, interruption: str
) -> None:
    stop = threading.Event()
    action = stop.set if interruption == "release" else lambda: pipelines.request_pause(connection, events.id)
    first = fill_again(connection, settings, events, stop=stop, watch=once_read(20, action))
    assert first.outcome is (Outcome.RELEASED if interruption == "release" else Outcome.PAUSED)
    expected = Status.RUN_REQUESTED if interruption == "release" else Status.PAUSED
    assert pipelines.get(connection, events.id).status is expected
    read = first.counts.read
    assert 20 <= read < 60
    # an equal request while it waits is the same one
    second = (
        fill_again(connection, settings, events)
        if interruption == "release"
        else run(connection, settings, events, resume=True)
    )
    assert second.error is None, second.error
    assert second.counts.read == 60 - read
    assert changed_ids(connection) == list(range(60, 120))
    assert pipelines.get(connection, events.id).status is Status.IDLE


@pytest.mark.promise("D24")
@pytest.mark.parametrize("point", ["after_read", "before_commit", "after_commit"])
def test_a_backfill_survives_a_failure_at_any_point_of_a_batch(
    connection: Connection, settings: Settings, events: Pipeline, point: str
) -> None:
    failpoints.install(f"{point}=raise@2")
    executed = fill_again(connection, settings, events, waits=(0.0,))
    assert executed.error is None, executed.error
    assert changed_ids(connection) == list(range(60, 120))


@pytest.mark.promise("D24")
def test_a_run_between_two_attempts_does_not_make_the_backfill_start_again(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    watch = once_read(20, lambda: pipelines.request_pause(connection, events.id))
    first = fill_again(connection, settings, events, watch=watch)
    assert first.outcome is Outcome.PAUSED
    succeed(connection, settings, events)  # goes first; the backfill follows it
    claim = pipelines.get(connection, events.id)
    assert (claim.status, claim.request.kind if claim.request else None) == (Status.RUN_REQUESTED, "backfill")
    second = run(connection, settings, events, resume=True)
    assert second.counts.read == 60 - first.counts.read


@pytest.mark.promise("D24")
def test_a_changed_query_makes_a_paused_backfill_start_again(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    watch = once_read(20, lambda: pipelines.request_pause(connection, events.id))
    fill_again(connection, settings, events, watch=watch)
    query = "SELECT id, upper(note) AS note, modified FROM ugc.events"
    changes.change(connection, settings, str(events.id), {"source_query": query}, state="keep")
    second = run(connection, settings, events, resume=True)
    assert second.counts.read == 60
    rows = connection.execute("SELECT count(*) AS n FROM analytics.events WHERE note = 'CHANGED'").fetchone()
    assert rows == {"n": 60}


@pytest.mark.promise("D24", "C13")
@pytest.mark.parametrize("comparison", [">=", ">"])
def test_the_range_of_a_query_with_the_checkpoint_includes_its_first_value(
    connection: Connection, settings: Settings, comparison: str
) -> None:
    query = f"SELECT id, note, modified FROM ugc.events WHERE modified {comparison} $1"
    # three rows of each time, so that batches end between rows of one time
    fill_events(connection, 300, modified="(n / 3) * interval '1 s'")
    pipeline = create_events(connection, settings, "incremental", source_query=query, batch_size=7)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'changed'")
    options = RunOptions(backfill_from="2024-01-01T00:00:10Z", backfill_to="2024-01-01T00:00:20Z")
    executed = fill_again(connection, settings, pipeline, options=options)
    assert executed.error is None, executed.error
    assert changed_ids(connection) == list(range(30, 60))


@pytest.mark.promise("D24")
@pytest.mark.parametrize("status", [Status.PAUSED, Status.FAILED])
def test_a_backfill_returns_a_pipeline_to_its_status(
    connection: Connection, settings: Settings, events: Pipeline, status: Status
) -> None:
    if status is Status.PAUSED:
        pipelines.request_pause(connection, events.id)
    else:
        pipelines.request_run(connection, events.id, trigger="api")
        held = queue.claim_next(connection, runner="w", ttl=settings.lease_ttl)
        assert held is not None
        queue.end_run(connection, held, Event.FAIL, RunStatus.FAILED, error_code="OLD", error_message="as before")
    error = pipelines.get(connection, events.id).last_error
    assert fill_again(connection, settings, events).error is None
    pipeline = pipelines.get(connection, events.id)
    assert (pipeline.status, pipeline.last_error) == (status, error)


@pytest.mark.promise("D24")
def test_rows_pass_through_the_transforms(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shout(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"note": row["note"].upper()} for row in rows]

    register(monkeypatch, Task("shout", Kind.ROW, shout, None))
    pipeline = create_filled(connection, settings, "incremental", 200, python_task="shout", batch_size=50)
    succeed(connection, settings, pipeline)
    connection.execute("UPDATE ugc.events SET note = 'changed'")
    assert fill_again(connection, settings, pipeline).error is None
    found = connection.execute("SELECT count(*) AS n FROM analytics.events WHERE note = 'CHANGED'").fetchone()
    assert found == {"n": 60}


@pytest.mark.promise("D24")
def test_the_range_of_a_python_reader_is_read(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    notes = ["first"]

    def numbers(after: Any) -> Iterator[dict[str, Any]]:
        asked.append(after)
        yield from ({"id": number, "note": notes[0]} for number in range(1, 101))

    columns = (("id", "integer"), ("note", "text"))
    register(monkeypatch, Task("numbers", Kind.READER, numbers, None, columns))
    pipeline = create(
        connection,
        settings,
        tasks=[{"order_index": 1, "task_type": "PYTHON", "body": "numbers"}],
        target_table="analytics.events",
        mode="incremental",
        incremental_key="id",
        key_columns=["id"],
    )
    succeed(connection, settings, pipeline)
    notes[0] = "changed"
    executed = fill_again(connection, settings, pipeline, options=RunOptions(backfill_from="10", backfill_to="20"))
    assert executed.error is None, executed.error
    assert changed_ids(connection) == list(range(10, 20))
    assert asked[-1] is None, "a reader is given the cursor of a row, never the beginning of a range"


# -- refusals -------------------------------------------------------------------------------------------------------


def refusal(settings: Settings, pipeline: Pipeline, start: str, end: str) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        backfill.check_backfill(pipeline.definition, settings, start, end)
    return refused.value


@pytest.mark.promise("D24")
@pytest.mark.parametrize(
    ("start", "end", "sentence"),
    [
        ("yesterday", "2024-02-01", "`from` of the backfill: 'yesterday' is not a value of 'modified'"),
        ("2024-01-01", "7", "`to` of the backfill: '7' is not a value of 'modified'"),
        ("2024-02-01", "2024-01-01", "is empty: give a `to` above `from`"),
        ("2024-02-01", "2024-02-01T00:00:00Z", "is empty"),
        ("", "2024-02-01", "is not a value of 'modified'"),
    ],
)
def test_a_value_that_is_not_of_the_cursors_type_is_refused(
    settings: Settings, events: Pipeline, start: str, end: str, sentence: str
) -> None:
    assert sentence in str(refusal(settings, events, start, end))


@pytest.mark.promise("D24")
def test_a_full_pipeline_is_refused(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    pipeline = create_events(connection, settings, "full")
    assert "its mode is full" in str(refusal(settings, pipeline, "1", "2"))


@pytest.mark.promise("D24")
def test_a_checkpoint_that_is_no_lower_bound_is_refused_with_its_place(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 3)
    query = "SELECT id, note, modified FROM ugc.events WHERE modified + (now() - $1) > now()"
    pipeline = create_events(connection, settings, "incremental", source_query=query)
    refused = refusal(settings, pipeline, "2024-01-01", "2024-02-01")
    assert refused.code == "PARAM"
    assert "line 1, column" in str(refused)


@pytest.mark.promise("D24")
def test_a_runner_refuses_as_well_and_the_pipeline_keeps_its_status(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    executed = fill_again(connection, settings, events, options=RunOptions(backfill_from="x", backfill_to="y"))
    assert executed.error is not None
    assert executed.error.code == "BACKFILL"
    pipeline = pipelines.get(connection, events.id)
    assert (pipeline.status, pipeline.last_error) == (Status.IDLE, None)
    assert changed_ids(connection) == []


@pytest.mark.promise("D24")
def test_a_mart_that_does_not_exist_is_not_backfilled(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 3)
    pipeline = create_events(connection, settings, "incremental")
    assert "run the pipeline first" in str(refusal(settings, pipeline, "2024-01-01", "2024-02-01"))


@pytest.mark.promise("D24")
def test_a_load_that_is_not_published_is_not_undone_by_a_backfill(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    watch = once_read(20, lambda: pipelines.request_pause(connection, events.id))
    assert run(connection, settings, events, full=True, watch=watch).outcome is Outcome.PAUSED
    executed = fill_again(connection, settings, events)
    assert executed.error is not None
    assert executed.error.code == "LOAD_OPEN"
    assert pipelines.get(connection, events.id).status is Status.PAUSED
    # the full run is still there
    assert run(connection, settings, events, resume=True).error is None
    assert events_are_right(connection)


@pytest.mark.promise("D24")
def test_a_target_that_was_recreated_is_reported_and_not_taken_for_the_one_of_the_checkpoint(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    connection.execute("ALTER TABLE analytics.events RENAME TO events_old")
    connection.execute("CREATE TABLE analytics.events (LIKE analytics.events_old INCLUDING ALL)")
    for _ in range(2):
        executed = fill_again(connection, settings, events)
        assert executed.error is not None
        assert executed.error.code == "TARGET_REPLACED"
    assert run(connection, settings, events).error is not None


def test_a_source_that_does_not_answer_leaves_the_decision_to_the_runner(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    away = settings.model_copy(
        update={"sources": Settings.model_validate({"sources": {"default": "postgresql://u@127.0.0.1:1/x"}}).sources}
    )
    definition = Definition.model_validate(events.definition.model_dump())
    assert backfill.check_backfill(definition, away, "2024-01-01", "2024-02-01") == ("2024-01-01", "2024-02-01")
