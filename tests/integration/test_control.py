"""Requests while a run is active or about to start: pauses, resumes, runs and deletions."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.helpers import journal
from tests.helpers.events import both_modes, count_events, create_filled, events_are_right
from tests.helpers.forked import Forked, claimed, dispatched, forked
from tests.helpers.processes import environment, free_port, started
from tests.helpers.running import sweep
from tests.helpers.waiting import wait_until
from vitrine.api.app import create_app
from vitrine.connectors.postgres.sink import session
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines, queue
from vitrine.store.history import get_run, list_runs

TTL = timedelta(seconds=30)
EVENTS, BATCH = 30, 10


@pytest.fixture(autouse=True)
def _watched(connection: Connection) -> Iterator[None]:
    """Asserts that every status change is legal."""
    journal.start(connection)
    yield
    journal.assert_legal(connection)


@pytest.fixture
def other(database_url: str) -> Iterator[Connection]:
    with connect(database_url, name="tests:other") as opened:
        yield opened


def status(connection: Connection, pipeline: Pipeline) -> Status:
    return pipelines.get(connection, pipeline.id).status


def history(connection: Connection, pipeline: Pipeline) -> list[tuple[RunStatus, str | None]]:
    return [(one.status, one.error_code) for one in reversed(list_runs(connection, pipeline.id))]


def request(connection: Connection, pipeline: Pipeline) -> Any:
    return pipelines.request_run(connection, pipeline.id, trigger="api")[1]


@dataclass
class Held:
    """A run in a process of its own that waits at a failpoint."""

    child: Forked
    claim: Claim
    file: Path

    def release(self) -> tuple[str | None, str | None]:
        """Lets the run continue; returns its error code and the status it leaves."""
        self.file.unlink()
        error, left = self.child.answer()
        return error, left


@contextmanager
def held(settings: Settings, connection: Connection, pipeline: Pipeline, point: str, folder: Path) -> Generator[Held]:
    """A run, requested and claimed, that has reached this failpoint for the first time."""
    request(connection, pipeline)
    claim, file = claimed(settings), folder / "held"
    with forked(lambda: dispatched(settings, claim), f"{point}=wait:{file}@1") as child:
        wait_until(file.exists, what=f"a run at {point}")
        yield Held(child, claim, file)


# -- pauses -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D2")
def test_a_pause_that_waits_for_a_claim_is_not_lost(
    connection: Connection, settings: Settings, other: Connection
) -> None:
    events = create_filled(connection, settings, "full", 1)
    request(connection, events)
    waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'tests:other' AND wait_event_type = 'Lock'"
    with ThreadPoolExecutor(1) as thread, connect(settings.store_url, name="tests:observer") as observer:
        with connection.transaction():
            claim = queue.claim_next(connection, runner="w", ttl=TTL)
            pausing = thread.submit(pipelines.request_pause, other, events.id)
            wait_until(lambda: observer.execute(waiting).fetchall(), what="a pause that waits")
        assert pausing.result(timeout=30) is Status.PAUSE_REQUESTED
    assert claim is not None
    assert queue.end_run(connection, claim, Event.PAUSED, RunStatus.PAUSED) is Status.PAUSED


@pytest.mark.promise("D2")
def test_a_pause_and_a_claim_at_the_same_time_are_both_applied(
    connection: Connection, settings: Settings, other: Connection
) -> None:
    events = create_filled(connection, settings, "full", 1)
    seen = set[Status]()
    with ThreadPoolExecutor(1) as thread:
        for _ in range(200):
            request(connection, events)
            ready = threading.Barrier(2)
            pausing = thread.submit(lambda: (ready.wait(), pipelines.request_pause(other, events.id))[1])  # noqa: B023
            ready.wait()
            claim = queue.claim_next(connection, runner="w", ttl=TTL)
            answer = pausing.result(timeout=30)
            assert answer is (Status.PAUSED if claim is None else Status.PAUSE_REQUESTED)
            if claim is not None:
                assert queue.end_run(connection, claim, Event.PAUSED, RunStatus.PAUSED) is Status.PAUSED
            assert status(connection, events) is Status.PAUSED
            seen.add(answer)
    assert Status.PAUSE_REQUESTED in seen


@pytest.mark.promise("D3")
def test_a_pause_between_two_attempts_takes_effect_at_once_and_drops_the_remaining_ones(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "incremental", EVENTS)
    request(connection, events)
    for attempt in (1, 2):
        delay = timedelta(hours=1) if attempt == 2 else timedelta(0)
        queue.end_run(
            connection, claimed(settings), Event.RETRY, RunStatus.FAILED, error_code="X", attempt=attempt, delay=delay
        )
    assert pipelines.get(connection, events.id).next_attempt_at is not None
    assert pipelines.request_pause(connection, events.id) is Status.PAUSED
    paused = pipelines.get(connection, events.id)
    assert (paused.attempt, paused.next_attempt_at) == (0, None)
    request(connection, events)
    # at once, and not after the delay of an hour
    assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
    assert events_are_right(connection)


@pytest.mark.promise("D4")
def test_a_runner_that_dies_before_a_requested_pause_leaves_a_paused_pipeline(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "incremental", EVENTS, batch_size=BATCH)
    with held(settings, connection, events, "after_commit", tmp_path):
        assert pipelines.request_pause(connection, events.id) is Status.PAUSE_REQUESTED
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s'")
    wait_until(lambda: queue.expire_leases(connection), what="the end of the expired lease")
    assert status(connection, events) is Status.PAUSED
    assert history(connection, events) == [(RunStatus.ABANDONED, "LEASE_EXPIRED")]
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None


@pytest.mark.promise("D6")
@pytest.mark.parametrize("point", ["staging_built", "before_swap"])
def test_a_pause_while_a_load_is_published_lets_it_finish(
    connection: Connection, settings: Settings, other: Connection, point: str, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    with held(settings, connection, events, point, tmp_path) as run, ThreadPoolExecutor(1) as thread:
        pausing = thread.submit(pipelines.request_pause, other, events.id)
        if point == "staging_built":
            assert pausing.result(timeout=30) is Status.PAUSE_REQUESTED
        error, _ = run.release()
        pausing.result(timeout=30)
    assert error is None
    assert status(connection, events) is Status.PAUSED
    assert history(connection, events) == [(RunStatus.SUCCESS, None)]
    assert events_are_right(connection)


@pytest.mark.promise("D7")
def test_a_pause_that_is_withdrawn_before_the_batch_ends_leaves_the_same_run_running(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "incremental", EVENTS, batch_size=BATCH)
    with held(settings, connection, events, "after_commit", tmp_path) as run:
        pipelines.request_pause(connection, events.id)
        wait_for_heartbeats(connection, events)
        pipelines.request_run(connection, events.id, trigger="api", resume=True)
        wait_for_heartbeats(connection, events)
        assert run.release() == (None, Status.IDLE)
    assert [one.rows_read for one in list_runs(connection, events.id)] == [EVENTS]
    assert events_are_right(connection)


def wait_for_heartbeats(connection: Connection, pipeline: Pipeline) -> None:
    """Wait for two heartbeats: the runner then knows every request made before the second."""
    for _ in range(2):
        before = pipelines.get(connection, pipeline.id).lease_expires_at
        wait_until(
            lambda: pipelines.get(connection, pipeline.id).lease_expires_at != before,  # noqa: B023
            what="a heartbeat",
        )


# -- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D8")
@both_modes
def test_a_request_while_running_is_followed_by_one_run_that_sees_everything_committed_before_it(
    connection: Connection, settings: Settings, mode: str, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, mode, EVENTS, batch_size=BATCH)
    with held(settings, connection, events, "after_commit", tmp_path) as run:
        connection.execute("INSERT INTO ugc.events VALUES (0, 'new', now())")
        asked = {request(connection, events) for _ in range(2)}
        assert run.release() == (None, Status.RUN_REQUESTED)
    assert not events_are_right(connection)  # the current run had opened its snapshot before
    again = claimed(settings)
    assert {get_run(connection, again.run_id).request_id} == asked
    assert dispatched(settings, again) == [None, Status.IDLE]
    assert events_are_right(connection)


@pytest.mark.promise("D20")
def test_a_client_that_dies_after_its_request_finds_the_same_run_again(
    connection: Connection, settings: Settings, database_url: str, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, name="events")
    port = free_port()
    with started(["api"], tmp_path, environment(database_url, VITRINE_API_PORT=str(port))):
        wait_until(lambda: answers(port), what="an API that answers")
        with dying_client(port):
            wait_until(lambda: status(connection, events) is Status.RUN_REQUESTED, what="the request")
        again = [ask(port, "POST", "/pipelines/events/run")["request_id"] for _ in range(2)]
        assert again == [str(pipelines.get(connection, events.id).request_id)] * 2
        watched = f"/requests/{again[0]}"
        assert ask(port, "GET", watched)["state"] == "pending"
        assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
        assert ask(port, "GET", watched)["state"] == "succeeded"
    assert history(connection, events) == [(RunStatus.SUCCESS, None)]


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def dying_client(port: int) -> Generator[None]:
    """A request whose client dies without reading the response: its connection is reset."""
    with socket.create_connection(("127.0.0.1", port)) as dying:
        dying.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        dying.sendall(b"POST /pipelines/events/run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        yield


def ask(port: int, method: str, path: str) -> Any:
    asking = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        asking.request(method, path)
        return json.loads(asking.getresponse().read())
    finally:
        asking.close()


# -- deletions --------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D10")
@both_modes
@pytest.mark.parametrize("point", ["after_read", "after_sink_write", "after_commit"])
def test_the_runner_of_a_pipeline_that_was_deleted_by_force_commits_nothing(
    connection: Connection, settings: Settings, mode: str, point: str, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, mode, EVENTS, batch_size=BATCH)
    with held(settings, connection, events, point, tmp_path) as run, TestClient(create_app(settings)) as client:
        assert client.delete(f"/pipelines/{events.name}").status_code == 409
        assert client.delete(f"/pipelines/{events.name}?force=true").status_code == 204
        assert client.get(f"/pipelines/{events.name}").status_code == 404
        assert run.release() == ("ETL01", None)
    written = BATCH if point == "after_commit" else 0
    if mode == "incremental":
        assert count_events(connection) == written
    else:
        assert connection.execute("SELECT to_regclass('analytics.events') AS t").fetchone() == {"t": None}
        assert sweep(connection, settings) == ([session.staging_name(events.id, 1)] if written else [])
    for table in (b"etl_pipelines", b"etl_runs", b"etl_state"):
        assert connection.execute(b"SELECT FROM etl." + table).fetchall() == []
