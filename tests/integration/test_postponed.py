"""Failures that heal: a scheduled run that fails for a transient reason is due again later, at growing distance."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from tests.helpers import journal
from tests.helpers.proxy import Proxy
from tests.helpers.running import create, differences
from tests.helpers.scraping import parse
from tests.helpers.waiting import wait_until
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts
from vitrine.core.status import Event, RequestKind, RunStatus, Status
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.errors import ConfigError, DataError, TransientError, VitrineError
from vitrine.postgres import Connection
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.runner.worker import PipelineManager
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, schedules

QUERY = "SELECT id, name FROM content.genre"
AT_ONCE = (timedelta(0), timedelta(0))
SOON = (timedelta(milliseconds=50), timedelta(milliseconds=100), timedelta(milliseconds=200))
DOWN = TransientError("source 'default': connection refused")


def scheduled(connection: Connection, settings: Settings, schedule: str = "1h", **fields: Any) -> Pipeline:
    defaults = {"name": "genres", "source_query": QUERY, "target_table": "analytics.genres", "key_columns": ["id"]}
    return create(connection, settings, **{**defaults, "schedule_interval": schedule, **fields})


def make_due(connection: Connection) -> None:
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now() WHERE next_due_at IS NOT NULL")


class Failing(PipelineExecutor):
    """Every run ends with the given error, or is a success without one."""

    def __init__(self, settings: Settings, error: VitrineError | None) -> None:
        super().__init__(settings, threading.Event())
        self._error = error

    def execute(self, *_: Any, **__: Any) -> Executed:
        return Executed(None if self._error else Outcome.FINISHED, self._error, Counts(), 0, 0.0)


def claim(connection: Connection, settings: Settings) -> Claim | None:
    return queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl)


def dispatch_all(connection: Connection, settings: Settings, error: VitrineError | None) -> Status | None:
    """Runs every attempt that waits, each with the same end; the last status."""
    dispatcher = PipelineDispatcher(settings, Failing(settings, error), delays=AT_ONCE)
    status = None
    while held := claim(connection, settings):
        _, status = dispatcher.dispatch(held)
    return status


def fail_when_due(connection: Connection, settings: Settings, error: VitrineError = DOWN) -> Status | None:
    make_due(connection)
    assert schedules.fire_schedules(connection)
    return dispatch_all(connection, settings, error)


def distance(connection: Connection) -> float:
    """Seconds from the end of the last run to the next due time."""
    row = connection.execute(
        "SELECT extract(epoch FROM next_due_at - last_error_at)::float8 AS seconds FROM etl.etl_pipelines"
    ).fetchone()
    assert row is not None
    return round(row["seconds"], 1)


def regular_due_at(connection: Connection) -> datetime | None:
    row = connection.execute("SELECT regular_due_at FROM etl.etl_pipelines").fetchone()
    assert row is not None
    return row["regular_due_at"]


# -- the outage -------------------------------------------------------------------------------------------------------


@contextmanager
def runner(settings: Settings) -> Generator[None]:
    """A runner in this process whose waits are short, so that an outage of seconds is a long one."""
    stop = threading.Event()
    executor = PipelineExecutor(settings, stop, waits=(0.01,))
    work = PipelineDispatcher(settings, executor, delays=SOON[:2], postponements=SOON)
    manager = PipelineManager(settings, work, name="tests", concurrency=4, stop=stop)
    thread = threading.Thread(target=manager.run)
    thread.start()
    try:
        yield
    finally:
        manager.request_stop()
        thread.join(20)


def stored(connection: Connection, marts: Sequence[Pipeline]) -> list[Pipeline]:
    return [pipelines.get(connection, mart.id) for mart in marts]


@pytest.mark.promise("D22")
def test_twenty_scheduled_marts_survive_an_outage_of_their_source_and_a_broken_query_among_them_fails(
    connection: Connection, settings: Settings, database_url: str, proxy: Proxy
) -> None:
    journal.start(connection)
    connection.execute("CREATE TABLE ugc.notes (id integer PRIMARY KEY, note text)")
    marts = [
        scheduled(connection, settings, "1s", name=f"mart_{number}", target_table=f"analytics.mart_{number}")
        for number in range(20)
    ]
    query = "SELECT id, note FROM ugc.notes"
    broken = scheduled(connection, settings, "1s", name="broken", target_table="analytics.broken", source_query=query)
    connection.execute("ALTER TABLE ugc.notes DROP COLUMN note")
    behind = settings.model_copy(
        update={"sources": {"default": SecretStr(proxy.url(database_url))}, "lease_ttl": timedelta(seconds=30)}
    )
    proxy.refusing = True
    make_due(connection)
    with runner(behind):
        everything = [*marts, broken]
        wait_until(
            lambda: all(one.postponed >= 2 for one in stored(connection, everything)), 60, "an outage that lasts"
        )
        assert not any(one.status is Status.FAILED for one in stored(connection, everything))
        assert all(one.last_error and one.last_error.code == "TRANSIENT" for one in stored(connection, marts))
        proxy.refusing = False
        wait_until(
            lambda: all(one.fresh_as_of and not one.last_error for one in stored(connection, marts)), 60, "recovery"
        )
        wait_until(lambda: pipelines.get(connection, broken.id).status is Status.FAILED, what="the broken query")
    assert {one.postponed for one in stored(connection, marts)} == {0}
    assert {one.status for one in stored(connection, marts)} <= {Status.IDLE, Status.RUN_REQUESTED}
    for mart in marts:
        assert differences(connection, QUERY, mart.definition.target_table, "id") == []
    ended = pipelines.get(connection, broken.id)
    assert ended.last_error is not None
    assert "note" in ended.last_error.message
    make_due(connection)
    assert "broken" not in schedules.fire_schedules(connection)
    assert pipelines.get(connection, broken.id).status is Status.FAILED
    journal.assert_legal(connection)


# -- which runs are postponed -----------------------------------------------------------------------------------------


@pytest.mark.promise("D22")
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (DOWN, Status.IDLE),
        (TransientError("locked", code="SINK_LOCKED"), Status.IDLE),
        (TransientError("too slow", code="QUERY_CANCELED"), Status.FAILED),
        (TransientError("no such account", code="ACCESS_REFUSED"), Status.FAILED),
        (ConfigError("no such column"), Status.FAILED),
        (DataError("too long"), Status.FAILED),
        (VitrineError("unexpected", code="UNEXPECTED"), Status.FAILED),
    ],
    ids=lambda value: getattr(value, "code", value),
)
def test_only_a_reason_that_may_pass_postpones_a_scheduled_run(
    connection: Connection, settings: Settings, error: VitrineError, status: Status
) -> None:
    pipeline = scheduled(connection, settings)
    assert fail_when_due(connection, settings, error) is status
    left = pipelines.get(connection, pipeline.id)
    assert (left.status, left.postponed, left.request) == (status, int(status is Status.IDLE), None)
    assert left.last_error is not None
    assert (left.last_error.code, left.last_error.message) == (error.code, str(error))


@pytest.mark.promise("D22")
@pytest.mark.parametrize("trigger", ["api", "cli"])
def test_a_run_that_a_person_requested_fails_as_before(
    connection: Connection, settings: Settings, trigger: str
) -> None:
    pipeline = scheduled(connection, settings)
    pipelines.request_run(connection, pipeline.id, trigger=trigger)
    assert dispatch_all(connection, settings, DOWN) is Status.FAILED
    left = pipelines.get(connection, pipeline.id)
    assert (left.postponed, left.next_due_at) == (0, pipeline.next_due_at)
    assert left.last_error is not None


@pytest.mark.promise("D22")
def test_a_scheduled_run_that_a_person_has_requested_as_well_fails(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    make_due(connection)
    schedules.fire_schedules(connection)
    pipelines.request_run(connection, pipeline.id, trigger="api")
    assert dispatch_all(connection, settings, DOWN) is Status.FAILED


@pytest.mark.promise("D22")
def test_a_request_that_follows_a_postponed_run_starts_at_once(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    make_due(connection)
    schedules.fire_schedules(connection)
    held = claim(connection, settings)
    assert held is not None
    _, request_id = pipelines.request_run(connection, pipeline.id, trigger="api")
    ended = queue.end_run(connection, held, Event.POSTPONE, RunStatus.FAILED, error_code="TRANSIENT")
    left = pipelines.get(connection, pipeline.id)
    assert (ended, left.request_id, left.rerun) == (Status.RUN_REQUESTED, request_id, None)
    assert dispatch_all(connection, settings, DOWN) is Status.FAILED
    assert history.get_request(connection, request_id).state == "failed"


def test_nothing_is_postponed_if_the_schedule_was_removed_during_the_run(
    connection: Connection, settings: Settings
) -> None:
    pipeline = scheduled(connection, settings)
    make_due(connection)
    schedules.fire_schedules(connection)
    held = claim(connection, settings)
    assert held is not None
    pipelines.update(connection, pipeline.id, pipeline.definition.model_copy(update={"schedule_interval": None}))
    assert queue.end_run(connection, held, Event.POSTPONE, RunStatus.FAILED) is Status.FAILED
    assert pipelines.get(connection, pipeline.id).postponed == 0


def test_a_pause_holds_after_a_postponed_run(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    make_due(connection)
    schedules.fire_schedules(connection)
    held = claim(connection, settings)
    assert held is not None
    pipelines.request_pause(connection, pipeline.id)
    ended = queue.end_run(connection, held, Event.POSTPONE, RunStatus.FAILED, delay=timedelta(0))
    assert ended is Status.PAUSED
    make_due(connection)
    assert schedules.fire_schedules(connection) == []
    assert dispatch_all(connection, settings, None) is None


# -- due times --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D22")
def test_the_next_due_time_is_at_growing_distance_up_to_an_hour_and_a_success_resets_it(
    connection: Connection, settings: Settings
) -> None:
    pipeline = scheduled(connection, settings, "1d")
    seen: list[float] = []
    for _ in range(11):
        assert fail_when_due(connection, settings) is Status.IDLE
        seen.append(distance(connection))
    assert seen == [15, 30, 60, 120, 240, 480, 900, 1800, 3600, 3600, 3600]
    make_due(connection)
    schedules.fire_schedules(connection)
    assert dispatch_all(connection, settings, None) is Status.IDLE
    healed = pipelines.get(connection, pipeline.id)
    assert (healed.postponed, healed.last_error, regular_due_at(connection)) == (0, None, None)
    fail_when_due(connection, settings)
    assert distance(connection) == 15


@pytest.mark.promise("D22", "S2")
@pytest.mark.parametrize("schedule", ["7m", "1d", "30 6 * * *"])
def test_a_postponed_schedule_keeps_its_phase(connection: Connection, settings: Settings, schedule: str) -> None:
    pipeline = scheduled(connection, settings, schedule)
    make_due(connection)
    schedules.fire_schedules(connection)
    regular = pipelines.get(connection, pipeline.id).next_due_at
    assert dispatch_all(connection, settings, DOWN) is Status.IDLE
    postponed = pipelines.get(connection, pipeline.id).next_due_at
    assert regular is not None
    assert postponed is not None
    assert postponed < regular == regular_due_at(connection)
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now()")
    assert schedules.fire_schedules(connection) == ["genres"]
    assert pipelines.get(connection, pipeline.id).next_due_at == regular


def test_a_regular_due_time_that_passes_while_the_run_is_postponed_causes_no_run_of_its_own(
    connection: Connection, settings: Settings
) -> None:
    pipeline = scheduled(connection, settings, "10s")
    for _ in range(3):
        fail_when_due(connection, settings)
    assert distance(connection) == 60
    connection.execute("UPDATE etl.etl_pipelines SET regular_due_at = date_trunc('second', now()) - interval '25 s'")
    regular = regular_due_at(connection)
    assert schedules.fire_schedules(connection) == []
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now()")
    assert schedules.fire_schedules(connection) == ["genres"]
    following = pipelines.get(connection, pipeline.id).next_due_at
    assert following is not None
    assert regular is not None
    assert following - regular == timedelta(seconds=30)


@pytest.mark.promise("D22")
def test_a_success_that_a_person_requested_ends_the_postponement(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    fail_when_due(connection, settings)
    regular = regular_due_at(connection)
    pipelines.request_run(connection, pipeline.id, trigger="api")
    assert dispatch_all(connection, settings, None) is Status.IDLE
    healed = pipelines.get(connection, pipeline.id)
    assert (healed.postponed, healed.last_error, healed.next_due_at) == (0, None, regular)


def test_another_schedule_replaces_a_postponed_due_time(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    fail_when_due(connection, settings)
    postponed = pipelines.get(connection, pipeline.id).next_due_at
    other = pipeline.definition.model_copy(update={"batch_size": 7})
    assert pipelines.update(connection, pipeline.id, other).next_due_at == postponed
    assert regular_due_at(connection) is not None
    other = pipeline.definition.model_copy(update={"schedule_interval": "2h"})
    assert pipelines.update(connection, pipeline.id, other).next_due_at != postponed
    assert regular_due_at(connection) is None


def test_a_rollback_that_is_refused_leaves_the_postponement(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    fail_when_due(connection, settings)
    before = pipelines.get(connection, pipeline.id)
    pipelines.request_run(connection, pipeline.id, trigger="api", kind=RequestKind.ROLLBACK)
    held = claim(connection, settings)
    assert held is not None
    executor = PipelineExecutor(settings, threading.Event(), waits=())
    executed, status = PipelineDispatcher(settings, executor).dispatch(held)
    assert (executed.error is not None, status) == (True, Status.IDLE)
    after = pipelines.get(connection, pipeline.id)
    assert (after.next_due_at, after.postponed, after.last_error) == (before.next_due_at, 1, before.last_error)


def test_a_release_and_a_pause_keep_the_count(connection: Connection, settings: Settings) -> None:
    pipeline = scheduled(connection, settings)
    fail_when_due(connection, settings)
    make_due(connection)
    schedules.fire_schedules(connection)
    held = claim(connection, settings)
    assert held is not None
    assert (held.scheduled, held.postponed) == (True, 1)
    queue.end_run(connection, held, Event.RELEASE, RunStatus.ABANDONED, error_code="RELEASED")
    held = claim(connection, settings)
    assert held is not None
    assert (held.scheduled, held.postponed) == (True, 1)
    left = pipelines.get(connection, pipeline.id)
    assert left.last_error is not None
    assert left.last_error.code == "TRANSIENT"


def test_an_account_that_the_source_refuses_is_not_postponed(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    scheduled(connection, settings)
    url = database_url.replace("//postgres@", "//no_such_role@")
    refused = settings.model_copy(update={"sources": {"default": SecretStr(url)}})
    make_due(connection)
    schedules.fire_schedules(connection)
    dispatcher = PipelineDispatcher(refused, PipelineExecutor(refused, threading.Event(), waits=()), delays=AT_ONCE)
    ended: list[tuple[str | None, Status | None]] = []
    while held := claim(connection, settings):
        executed, status = dispatcher.dispatch(held)
        ended.append((executed.error.code if executed.error else None, status))
    queued = ("ACCESS_REFUSED", Status.RUN_REQUESTED)
    assert ended == [queued, queued, ("ACCESS_REFUSED", Status.FAILED)]


# -- what is shown ----------------------------------------------------------------------------------------------------


@pytest.mark.promise("D22")
def test_the_last_error_is_shown_until_a_run_succeeds(
    connection: Connection, settings: Settings, client: TestClient
) -> None:
    scheduled(connection, settings)
    fail_when_due(connection, settings)
    for route in ("", "/status"):
        body = client.get(f"/api/v1/pipelines/genres{route}").json()
        assert (body["status"], body["postponed"], body["last_error"]["code"]) == ("IDLE", 1, "TRANSIENT")
        assert body["last_error"]["message"] == str(DOWN)
    found = parse(client.get("/metrics").text)
    assert found.value("vitrine_pipeline_postponed", pipeline="genres") == 1
    assert found.value("vitrine_pipeline_failed", pipeline="genres") == 0
    assert found.value("vitrine_pipeline_last_error", pipeline="genres", code="TRANSIENT") == 1
    make_due(connection)
    schedules.fire_schedules(connection)
    dispatch_all(connection, settings, None)
    body = client.get("/api/v1/pipelines/genres/status").json()
    assert (body["postponed"], body["last_error"]) == (0, None)
    found = parse(client.get("/metrics").text)
    assert found.value("vitrine_pipeline_postponed", pipeline="genres") == 0
    assert found.value("vitrine_pipeline_last_error", pipeline="genres", code="TRANSIENT") is None
