"""Runners whose database restarts, whose connections are cut, whose clock is wrong."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.helpers import journal
from tests.helpers.events import create_events, create_target, events_are_right, fill_events
from tests.helpers.folders import server_folder
from tests.helpers.observing import has_ticked, history, status, wait_for
from tests.helpers.processes import environment, free_port, runner
from tests.helpers.proxy import Proxy
from tests.helpers.waiting import wait_until
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines
from vitrine.store.migrate import migrate


@pytest.fixture
def events(connection: Connection, settings: Settings) -> Pipeline:
    """A pipeline that writes five batches into an existing mart."""
    journal.start(connection)
    fill_events(connection, 500)
    create_target(connection)
    return create_events(connection, settings, "incremental")


def held_at(file: Path, point: str = "after_sink_write", at: int = 2) -> dict[str, str]:
    """The environment of a runner that waits at a failpoint until the file is removed."""
    return {"VITRINE_TESTING": "1", "VITRINE_FAILPOINTS": f"{point}=wait:{file}@{at}"}


# -- an unavailable database ------------------------------------------------------------------------------------------


@pytest.fixture
def own(postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that may be restarted."""
    with (
        server_folder("vitrine-own-") as folder,
        EmbeddedPostgres(folder, version=postgres.version, port=free_port(), fast=True) as server,
    ):
        server.ensure_database("vitrine")
        migrate(server.url())
        with connect(server.url(), name="tests") as connection:
            cinema.create_schema(connection)
            journal.start(connection)
        yield server


@pytest.mark.promise("B1")
@pytest.mark.parametrize("mode", ["incremental", "full"])
def test_a_run_survives_a_crash_of_its_database_in_the_middle_of_a_batch(
    own: EmbeddedPostgres, mode: str, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    with connect(own.url(), name="tests") as connection:
        fill_events(connection, 500)
        create_target(connection)
        events = create_events(connection, Settings.model_validate({"database_url": own.tcp_url()}), mode)
        pipelines.request_run(connection, events.id, trigger="api")
    folder = tmp_path / "run"
    folder.mkdir()
    with runner(own.tcp_url(), folder, concurrency=4, VITRINE_LEASE_TTL="60s", **held_at(held)) as one:
        wait_until(held.exists, what="a run in the middle of a batch")
        own.restart("immediate")
        held.unlink()
        with connect(own.url(), name="tests") as connection:
            wait_for(connection, events, Status.IDLE)
            (only,) = history(connection, events)
            assert (only.status, only.attempt, only.rows_read) == (RunStatus.SUCCESS, 1, 500)
            assert events_are_right(connection)
            journal.assert_legal(connection)
        assert one.output().count("attempt failed, retrying") >= 1
        assert one.stop() == 0


@pytest.mark.promise("B11")
def test_connections_that_were_cut_while_idle_are_replaced_without_an_error(
    database_url: str, connection: Connection, events: Pipeline, proxy: Proxy, tmp_path: Path
) -> None:
    with runner(proxy.url(database_url), tmp_path) as one:
        has_ticked(connection, one)
        assert proxy.cut() >= 2  # one polls, one listens
        pipelines.request_run(connection, events.id, trigger="api")
        wait_for(connection, events, Status.IDLE)
        assert [run.status for run in history(connection, events)] == [RunStatus.SUCCESS]
        assert "waiting for the database" not in one.output()


# -- lost notifications -----------------------------------------------------------------------------------------------


@pytest.mark.promise("B12")
def test_a_run_request_without_a_notification_is_found_by_polling(
    database_url: str, connection: Connection, events: Pipeline, proxy: Proxy, tmp_path: Path
) -> None:
    proxy.drop_notifications = True
    with runner(proxy.url(database_url), tmp_path) as one:
        has_ticked(connection, one)
        for _ in range(2):
            pipelines.request_run(connection, events.id, trigger="api")
            wait_for(connection, events, Status.IDLE)
    assert [run.status for run in history(connection, events)] == [RunStatus.SUCCESS] * 2
    assert events_are_right(connection)


# -- a clock that is wrong --------------------------------------------------------------------------------------------

_CLOCK = """
import datetime, os, time

seconds = float(os.environ["SHIFTED_BY"])
true_time, true_datetime = time.time, datetime.datetime


class Alike(type):
    def __instancecheck__(cls, thing):
        return isinstance(thing, true_datetime)


class Shifted(true_datetime, metaclass=Alike):
    @classmethod
    def now(cls, tz=None):
        return true_datetime.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls):
        return true_datetime.utcfromtimestamp(time.time())


time.time = lambda: true_time() + seconds
time.time_ns = lambda: int(time.time() * 1e9)
datetime.datetime = Shifted
"""


def shifted(folder: Path, hours: int) -> dict[str, str]:
    """The environment of a process whose wall clock is wrong."""
    place = folder / "clock"
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_CLOCK, "utf-8")
    path = os.pathsep.join(filter(None, [str(place), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "SHIFTED_BY": str(hours * 3600)}


def clock_of(variables: dict[str, str]) -> datetime:
    code = "import datetime; print(datetime.datetime.now().isoformat())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(None, **variables), capture_output=True, check=True
    )
    return datetime.fromisoformat(done.stdout.decode().strip())


@pytest.mark.promise("B13")
def test_a_runner_whose_clock_is_an_hour_wrong_keeps_and_loses_its_lease_like_any_other(
    database_url: str, connection: Connection, events: Pipeline, tmp_path: Path
) -> None:
    fast, slow, held = shifted(tmp_path, +1), shifted(tmp_path, -1), tmp_path / "held"
    assert 1.9 * 3600 < (clock_of(fast) - clock_of(slow)).total_seconds() < 2.1 * 3600
    folder = tmp_path / "runs"
    folder.mkdir()
    pipelines.request_run(connection, events.id, trigger="api")
    with runner(database_url, folder, concurrency=4, **fast, **held_at(held)) as first:
        wait_until(held.exists, what="a run in the middle of a batch")
        with runner(database_url, folder, concurrency=4, **slow) as second:
            has_ticked(connection, second, over="2.5 s")  # longer than lease_ttl
            assert status(connection, events) is Status.RUNNING
            first.stop(signal.SIGKILL)
            wait_for(connection, events, Status.IDLE)
    abandoned, finished = history(connection, events)
    assert (abandoned.runner, abandoned.error_code) == (first.name, "LEASE_EXPIRED")
    assert (finished.runner, finished.status, finished.rows_read) == (second.name, RunStatus.SUCCESS, 400)
    assert abandoned.finished_at is not None
    assert 2 < (abandoned.finished_at - abandoned.started_at).total_seconds() < 30
    assert events_are_right(connection)
    journal.assert_legal(connection)
