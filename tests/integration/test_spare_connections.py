"""Runs of one process use connections to the store one after another."""

import threading
from collections.abc import Iterator

import pytest

from tests.helpers.events import create_events, fill_events
from vitrine.core.status import Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.runner.run import PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import pipelines, queue
from vitrine.store.database import SPARE_SECONDS, Link, Spares


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def spares(clock: Clock) -> Iterator[Spares]:
    spares = Spares(clock)
    yield spares
    spares.close()


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    fill_events(connection, 5)
    return create_events(connection, settings, "incremental")


def session(link: Link) -> tuple[int, str]:
    """Number and name of the session, as the server knows them."""
    statement = "SELECT pid, application_name AS name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    row = link.connection().execute(statement).fetchone()
    assert row is not None
    return row["pid"], row["name"]


def left(settings: Settings, spares: Spares, name: str = "vitrine:tag:1:run") -> int:
    """The number of a session that was left for the next run."""
    with Link(settings.store_url, name=name, spares=spares) as link:
        pid, _ = session(link)
        link.leave()
    return pid


def test_the_next_run_takes_the_session_under_its_own_name(settings: Settings, spares: Spares) -> None:
    pid = left(settings, spares)
    with Link(settings.store_url, name="vitrine:tag:2:run", spares=spares) as link:
        assert session(link) == (pid, "vitrine:tag:2:run")
        with Link(settings.store_url, name="vitrine:tag:3:run", spares=spares) as another:
            assert session(another)[0] != pid


def test_a_session_that_the_server_has_ended_is_not_used_again(
    connection: Connection, settings: Settings, spares: Spares
) -> None:
    pid = left(settings, spares)
    connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
    with Link(settings.store_url, name="vitrine:tag:2:run", spares=spares) as link:
        assert session(link)[0] != pid


def test_a_session_with_an_open_transaction_is_not_left(settings: Settings, spares: Spares) -> None:
    with Link(settings.store_url, name="vitrine:tag:1:run", spares=spares) as link:
        link.connection().execute("BEGIN")
        link.leave()
    assert spares.take("vitrine:tag:2:run") is None


def test_a_session_that_no_run_takes_is_closed(settings: Settings, spares: Spares, clock: Clock) -> None:
    left(settings, spares)
    clock.now += SPARE_SECONDS / 2
    spares.close_old()
    connection = spares.take("vitrine:tag:2:run")
    assert connection is not None
    spares.leave(connection)
    clock.now += SPARE_SECONDS
    spares.close_old()
    assert (connection.closed, spares.take("vitrine:tag:3:run")) == (True, None)


@pytest.mark.parametrize("lost", [False, True])
def test_only_a_run_that_kept_its_lease_leaves_its_session(
    connection: Connection, settings: Settings, events: Pipeline, spares: Spares, lost: bool
) -> None:
    pipelines.request_run(connection, events.id, trigger="api")
    claim = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl)
    assert claim is not None
    if lost:
        connection.execute("UPDATE etl.etl_pipelines SET lease_token = lease_token + 1")
    dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event()))
    _, status = dispatcher.dispatch(claim, spares=spares)
    assert status is (None if lost else Status.IDLE)
    spare = spares.take("vitrine:tag:2:run")
    assert (spare is None) == lost
    if spare is not None:
        spares.leave(spare)
