"""Due times in the store: consumed once, by the clock of the database, and recorded on the runs they start."""

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from psycopg import sql

from tests.helpers.waiting import wait_until
from vitrine.core import status
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.operations import changes
from vitrine.postgres import Connection
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.runner.worker import PipelineManager
from vitrine.settings import Settings
from vitrine.store import database, history, pipelines, queue, schedules

TTL = timedelta(seconds=30)
BERLIN = ZoneInfo("Europe/Berlin")


def definition(name: str = "genres", **fields: Any) -> Definition:
    query = "SELECT id, name, modified FROM content.genre"
    given = {"name": name, "source_query": query, "target_table": f"analytics.{name}", "key_columns": ["id"]}
    return Definition.model_validate(given | fields)


def create(connection: Connection, schedule: str = "1h", **fields: Any) -> Pipeline:
    return pipelines.create(connection, definition(schedule_interval=schedule, **fields), zone=BERLIN)


def change(connection: Connection, pipeline: Pipeline, **fields: Any) -> Pipeline:
    old = pipelines.get(connection, pipeline.id).definition
    return pipelines.update(connection, pipeline.id, old.model_copy(update=fields), zone=BERLIN)


def make_due(connection: Connection, ago: timedelta = timedelta(seconds=1)) -> datetime:
    """Make every schedule due; returns the due time."""
    row = connection.execute(
        "UPDATE etl.etl_pipelines SET next_due_at = date_trunc('second', now() - %s) RETURNING next_due_at", [ago]
    ).fetchone()
    assert row is not None
    return row["next_due_at"]


def claim(connection: Connection) -> Claim:
    taken = queue.claim_next(connection, runner="tests", ttl=TTL)
    assert taken is not None
    return taken


def due_times(connection: Connection, pipeline: Pipeline) -> list[tuple[str, datetime | None]]:
    """Trigger and due time of each run, the oldest first."""
    return [(one.trigger, one.due_at) for one in reversed(history.list_runs(connection, pipeline.id))]


@pytest.mark.promise("S3")
def test_a_cron_schedule_is_due_by_the_clock_of_the_database_in_its_time_zone(connection: Connection) -> None:
    pipeline = create(connection, "30 6 * * *")
    row = connection.execute(
        "SELECT next_due_at AT TIME ZONE 'Europe/Berlin' AS local, next_due_at > now() AS ahead,"
        " next_due_at <= now() + interval '25 hours' AS soon FROM etl.etl_pipelines"
    ).fetchone()
    assert row is not None
    assert (row["local"].strftime("%H:%M:%S"), row["ahead"], row["soon"]) == ("06:30:00", True, True)
    make_due(connection, timedelta(days=9))
    assert schedules.fire_schedules(connection, BERLIN) == [pipeline.name]
    after = pipelines.get(connection, pipeline.id).next_due_at
    assert after is not None
    assert after.astimezone(BERLIN).strftime("%H:%M:%S") == "06:30:00"
    assert timedelta(0) < after - datetime.now(UTC) <= timedelta(hours=25)


def test_the_time_zone_of_the_settings_applies_to_schedules(connection: Connection, settings: Settings) -> None:
    zoned = settings.model_copy(update={"timezone": "Asia/Almaty"})
    pipeline = changes.create(connection, zoned, definition(schedule_interval="0 6 * * *"))
    assert pipeline.next_due_at is not None
    assert pipeline.next_due_at.astimezone(UTC).strftime("%H:%M") == "01:00"
    moved = changes.change(connection, settings, pipeline.id, {"schedule_interval": "0 7 * * *"})
    assert moved.next_due_at is not None
    assert moved.next_due_at.astimezone(UTC).strftime("%H:%M") == "07:00"


@pytest.mark.promise("S1")
def test_a_due_time_that_another_runner_has_consumed_is_skipped(connection: Connection) -> None:
    pipeline = create(connection)
    make_due(connection)
    (seen,) = database.fetch_all(connection, "list_due", limit=10)
    assert schedules.fire_schedules(connection) == [pipeline.name]
    held = claim(connection)
    queue.end_run(connection, held, Event.FINISH, RunStatus.SUCCESS)
    # as a runner does that has read the due time before, and writes now
    late = {"ids": [pipeline.id], "due": [seen["next_due_at"]], "following": [seen["next_due_at"]]}
    assert database.fetch_all(connection, "fire_schedules", **late, steps=status.STEPS) == []
    assert pipelines.get(connection, pipeline.id).status is Status.IDLE


@pytest.mark.promise("S2")
def test_after_days_without_a_runner_one_run_starts_and_the_interval_keeps_its_phase(connection: Connection) -> None:
    pipeline = create(connection, "7m")
    due = make_due(connection, timedelta(days=3))
    assert schedules.fire_schedules(connection) == [pipeline.name]
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    assert schedules.fire_schedules(connection) == []
    following = pipelines.get(connection, pipeline.id).next_due_at
    assert following is not None
    assert (following - due) % timedelta(minutes=7) == timedelta(0)
    assert due_times(connection, pipeline) == [("schedule", due)]


def test_more_due_times_than_one_statement_reads_are_all_consumed(connection: Connection) -> None:
    template = create(connection)
    connection.execute(
        "INSERT INTO etl.etl_pipelines (name, target_table, source_query, key_columns, schedule_interval, next_due_at)"
        " SELECT 'p' || n, 'analytics.p' || n, source_query, key_columns, schedule_interval, now()"
        "   FROM etl.etl_pipelines, generate_series(1, %s) AS n WHERE id = %s",
        [2 * schedules.DUE_LIMIT + 10, template.id],
    )
    make_due(connection)
    assert len(set(schedules.fire_schedules(connection))) == 2 * schedules.DUE_LIMIT + 11
    assert schedules.fire_schedules(connection) == []


@pytest.mark.promise("S4")
def test_every_attempt_records_the_due_time_it_serves(connection: Connection) -> None:
    pipeline = create(connection)
    due = make_due(connection)
    schedules.fire_schedules(connection)
    queue.end_run(connection, claim(connection), Event.RETRY, RunStatus.FAILED, attempt=1)
    held = claim(connection)
    pipelines.request_pause(connection, pipeline.id)
    queue.end_run(connection, held, Event.PAUSED, RunStatus.PAUSED)
    pipelines.request_run(connection, pipeline.id, trigger="api")  # resumes the same request
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    assert due_times(connection, pipeline) == [("schedule", due), ("schedule", due), ("api", due)]
    (request,) = {one.request_id for one in history.list_runs(connection, pipeline.id)}
    assert request is not None


@pytest.mark.promise("S4")
@pytest.mark.parametrize("ending", [Event.FINISH, Event.FAIL])
def test_a_run_that_a_user_requests_has_no_due_time(connection: Connection, ending: Event) -> None:
    pipeline = create(connection)
    due = make_due(connection)
    schedules.fire_schedules(connection)
    queue.end_run(connection, claim(connection), ending, RunStatus.SUCCESS)
    pipelines.request_run(connection, pipeline.id, trigger="cli")
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    assert due_times(connection, pipeline) == [("schedule", due), ("cli", None)]


@pytest.mark.promise("S4")
def test_a_rerun_after_a_scheduled_run_is_not_a_second_run_for_the_due_time(connection: Connection) -> None:
    pipeline = create(connection)
    due = make_due(connection)
    schedules.fire_schedules(connection)
    held = claim(connection)
    pipelines.request_run(connection, pipeline.id, trigger="api")
    queue.end_run(connection, held, Event.FINISH, RunStatus.SUCCESS)
    queue.end_run(connection, claim(connection), Event.FINISH, RunStatus.SUCCESS)
    assert due_times(connection, pipeline) == [("schedule", due), ("api", None)]


@pytest.mark.promise("D14")
def test_a_disabled_pipeline_is_never_due_and_gets_a_new_due_time_when_it_is_enabled(connection: Connection) -> None:
    pipeline = create(connection)
    make_due(connection, timedelta(days=2))
    assert change(connection, pipeline, enabled=False).next_due_at is None
    assert schedules.fire_schedules(connection) == []
    # even one that was written to the table without the API
    make_due(connection)
    assert schedules.fire_schedules(connection) == []
    again = change(connection, pipeline, enabled=True).next_due_at
    assert again is not None
    assert timedelta(minutes=59) < again - datetime.now(UTC) < timedelta(minutes=61)
    assert schedules.fire_schedules(connection) == []


def test_a_change_of_other_fields_keeps_the_due_time(connection: Connection) -> None:
    pipeline = create(connection)
    assert change(connection, pipeline, batch_size=7).next_due_at == pipeline.next_due_at
    assert change(connection, pipeline, schedule_interval="2h").next_due_at != pipeline.next_due_at
    assert change(connection, pipeline, schedule_interval=None).next_due_at is None


def test_a_schedule_stored_without_validation_does_not_stop_the_others(connection: Connection) -> None:
    odd = create(connection)
    create(connection, name="fine", target_table="analytics.fine")
    connection.execute("UPDATE etl.etl_pipelines SET schedule_interval = 'now and then' WHERE id = %s", [odd.id])
    make_due(connection)
    assert sorted(schedules.fire_schedules(connection)) == ["fine", "genres"]
    assert claim(connection).definition.name == "fine"
    assert queue.claim_next(connection, runner="tests", ttl=TTL) is None
    row = connection.execute("SELECT status, next_due_at FROM etl.etl_pipelines WHERE id = %s", [odd.id]).fetchone()
    assert row == {"status": "FAILED", "next_due_at": None}


def test_the_wait_until_the_next_due_time_uses_the_clock_of_the_database(connection: Connection) -> None:
    assert schedules.seconds_until_due(connection) is None
    create(connection, "10s")
    seconds = schedules.seconds_until_due(connection)
    assert seconds is not None
    assert 5 < seconds <= 10


def test_a_runner_with_a_long_poll_interval_wakes_for_every_due_time(
    connection: Connection, settings: Settings
) -> None:
    seldom = settings.model_copy(update={"poll_interval": timedelta(minutes=5)})
    pipeline = create(connection, "1s")
    stop = threading.Event()
    dispatcher = PipelineDispatcher(seldom, PipelineExecutor(seldom, stop))
    manager = PipelineManager(seldom, dispatcher, name="tests", concurrency=1, stop=stop)
    thread = threading.Thread(target=manager.run)
    thread.start()
    try:
        wait_until(lambda: len(due_times(connection, pipeline)) >= 3, what="three scheduled runs")
    finally:
        manager.request_stop()
        thread.join(20)
    assert not thread.is_alive()


@pytest.mark.promise("S8")
@pytest.mark.parametrize("name", ["list_due", "seconds_until_due"])
def test_ten_thousand_scheduled_pipelines_cost_no_more_than_ten(connection: Connection, name: str) -> None:
    connection.execute(
        "INSERT INTO etl.etl_pipelines (name, target_table, source_query, schedule_interval, next_due_at)"
        " SELECT 'p' || n, 'analytics.p' || n, 'SELECT 1', '1h', now() + n * interval '1 second' - interval '5 s'"
        "   FROM generate_series(1, 10000) AS n"
    )
    connection.execute("ANALYZE etl.etl_pipelines")
    statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {}").format(sql.SQL(database.statement(name)))
    explained = connection.execute(statement, {"limit": schedules.DUE_LIMIT}).fetchone()
    assert explained is not None
    plan = explained["QUERY PLAN"][0]["Plan"]
    assert '"Index Name": "scheduled"' in str(plan).replace("'", '"')
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 20
