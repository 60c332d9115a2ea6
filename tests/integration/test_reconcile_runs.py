"""A reconcile as a run: under the lease, with its result in the history, and the pipeline as it was before."""

import threading

import psycopg
import pytest

from tests.helpers.events import create_filled
from tests.helpers.running import run, succeed
from tests.helpers.waiting import wait_until
from vitrine.core.protocols import Outcome
from vitrine.core.status import Event, RequestKind, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.runner.run import Executed
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    pipeline = create_filled(connection, settings, "incremental", 50)
    succeed(connection, settings, pipeline)
    return pipeline


def reconcile(connection: Connection, settings: Settings, pipeline: Pipeline, **given: object) -> Executed:
    return run(connection, settings, pipeline, kind=RequestKind.RECONCILE, **given)  # pyright: ignore[reportArgumentType]


def result(connection: Connection, pipeline: Pipeline) -> dict[str, object]:
    (newest, *_) = history.list_runs(connection, pipeline.id)
    assert (newest.kind, newest.status) == ("reconcile", RunStatus.SUCCESS)
    assert newest.result is not None
    return newest.result


@pytest.mark.promise("D25")
def test_the_result_is_stored_with_the_run(connection: Connection, settings: Settings, events: Pipeline) -> None:
    before = state.load_state(connection, events.id)
    assert reconcile(connection, settings, events).error is None
    found = result(connection, events)
    assert (found["equal"], found["sentence"], found["control"]) == (True, "source = target", "modified")
    assert state.load_state(connection, events.id) == before


@pytest.mark.promise("D25", "C13")
def test_a_change_that_did_not_move_the_cursor_is_reported_with_the_figures(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    connection.execute("UPDATE ugc.events SET note = 'changed' WHERE id = 7")
    connection.execute("DELETE FROM ugc.events WHERE id = 8")
    assert reconcile(connection, settings, events).error is None
    found = result(connection, events)
    assert (found["equal"], found["sentence"]) == (False, "source ≠ target: rows 49 ≠ 50")
    source, target = found["source"], found["target"]
    assert isinstance(source, dict)
    assert isinstance(target, dict)
    assert (source["rows"], target["rows"]) == (49, 50)
    assert source["hash"] != target["hash"]


@pytest.mark.promise("D23", "D25")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED, Status.FAILED])
def test_the_pipeline_has_the_status_and_the_error_that_it_had(
    connection: Connection, settings: Settings, events: Pipeline, status: Status, fails: bool
) -> None:
    if status is Status.PAUSED:
        pipelines.request_pause(connection, events.id)
    if status is Status.FAILED:
        pipelines.request_run(connection, events.id, trigger="api")
        held = queue.claim_next(connection, runner="w", ttl=settings.lease_ttl)
        assert held is not None
        queue.end_run(connection, held, Event.FAIL, RunStatus.FAILED, error_code="OLD", error_message="as before")
    if fails:
        connection.execute("DROP TABLE analytics.events")
    before = pipelines.get(connection, events.id)
    executed = reconcile(connection, settings, events)
    assert (executed.error is not None) is fails
    after = pipelines.get(connection, events.id)
    assert (after.status, after.last_error, after.fresh_as_of) == (status, before.last_error, before.fresh_as_of)
    (newest, *_) = history.list_runs(connection, events.id)
    assert newest.status is (RunStatus.FAILED if fails else RunStatus.SUCCESS)


def block(url: str) -> psycopg.Connection[tuple[object, ...]]:
    """Another session that makes the comparison wait, until it is closed."""
    blocker = psycopg.connect(url)
    blocker.execute("LOCK TABLE ugc.events IN ACCESS EXCLUSIVE MODE")
    return blocker


@pytest.mark.promise("D25")
@pytest.mark.parametrize("interruption", ["stop", "pause", "lost lease"])
def test_a_long_comparison_ends_soon_after_it_is_interrupted(
    connection: Connection, settings: Settings, events: Pipeline, database_url: str, interruption: str
) -> None:
    stop = threading.Event()
    ended: list[Executed] = []
    with block(database_url):
        worker = threading.Thread(target=lambda: ended.append(reconcile(connection, settings, events, stop=stop)))
        worker.start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'ugc.events'::regclass"
        with psycopg.connect(database_url, autocommit=True) as other:
            wait_until(lambda: other.execute(waiting).fetchone(), what="a comparison that waits")
            match interruption:
                case "stop":
                    stop.set()
                case "pause":
                    other.execute("UPDATE etl.etl_pipelines SET status = 'PAUSE_REQUESTED'")
                case _:
                    other.execute("UPDATE etl.etl_pipelines SET lease_token = lease_token + 1000")
            worker.join(20)
        assert not worker.is_alive()
    (executed,) = ended
    expected = {"stop": Outcome.RELEASED, "pause": Outcome.PAUSED}.get(interruption)
    assert executed.outcome is expected
    if interruption == "lost lease":
        assert executed.error is not None
        assert executed.error.code == "ETL01"
    (newest, *_) = history.list_runs(connection, events.id)
    assert newest.result is None


@pytest.mark.promise("D25")
def test_a_comparison_that_was_released_is_made_by_the_next_runner(
    connection: Connection, settings: Settings, events: Pipeline
) -> None:
    stop = threading.Event()
    stop.set()
    assert reconcile(connection, settings, events, stop=stop).outcome is Outcome.RELEASED
    assert pipelines.get(connection, events.id).status is Status.RUN_REQUESTED
    assert reconcile(connection, settings, events).error is None
    assert result(connection, events)["equal"] is True
    assert pipelines.get(connection, events.id).status is Status.IDLE
