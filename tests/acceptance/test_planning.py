"""A runner whose source plans for long: a stop, a pause and a delete by force end its run within their promises."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.helpers.observing import history, status
from tests.helpers.planning import BOMB, create_bomb, planning
from tests.helpers.processes import QUICK, Started, environment, free_port, runner, started
from tests.helpers.running import allowing, create
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines

PROMISED_SECONDS = 3.0
"""One second by design, with a reserve for a loaded machine; the plan takes longer."""


@pytest.fixture
def bomb(connection: Connection, settings: Settings) -> Pipeline:
    create_bomb(connection)
    return create(
        connection,
        allowing(settings, BOMB),
        name="bomb",
        source_query=f"SELECT id, n FROM {BOMB}",
        target_table="analytics.bomb",
        key_columns=["id"],
    )


@contextmanager
def planning_runner(
    connection: Connection, pipeline: Pipeline, database_url: str, folder: Path
) -> Generator[tuple[Started, set[int]]]:
    """A runner in the middle of a plan, and the sessions of the server that plan."""
    with runner(database_url, folder, VITRINE_ALLOWED_RELATIONS=BOMB) as one:
        pipelines.request_run(connection, pipeline.id, trigger="api")
        yield one, wait_until(lambda: planning(connection), 60, "a plan that takes long")


def gone(connection: Connection, sessions: set[int]) -> bool:
    row = connection.execute("SELECT FROM pg_stat_activity WHERE pid = ANY(%s)", [list(sessions)]).fetchone()
    return row is None


@pytest.mark.promise("K4", "A14")
def test_a_runner_that_is_stopped_does_not_wait_for_a_plan(
    database_url: str, connection: Connection, bomb: Pipeline, tmp_path: Path
) -> None:
    with planning_runner(connection, bomb, database_url, tmp_path) as (one, sessions):
        begin = time.monotonic()
        assert one.stop() == 0
        assert time.monotonic() - begin < PROMISED_SECONDS
    # released, and without the cost of an attempt: the next runner continues at once
    assert status(connection, bomb) is Status.RUN_REQUESTED
    (run,) = history(connection, bomb)
    assert (run.status, run.error_code) == (RunStatus.ABANDONED, "RELEASED")
    assert pipelines.get(connection, bomb.id).attempt == 0
    assert "Traceback" not in one.output()
    wait_until(lambda: gone(connection, sessions), 60, "the end of the session that was left behind")


@pytest.mark.promise("K4")
def test_a_pause_does_not_wait_for_a_plan(
    database_url: str, connection: Connection, bomb: Pipeline, tmp_path: Path
) -> None:
    with planning_runner(connection, bomb, database_url, tmp_path) as (one, sessions):
        begin = time.monotonic()
        pipelines.request_pause(connection, bomb.id)
        wait_until(lambda: status(connection, bomb) is Status.PAUSED, 60, "the pause")
        # the runner notices it within a second
        assert time.monotonic() - begin < 1 + PROMISED_SECONDS
        wait_until(lambda: gone(connection, sessions), 60, "the end of the session that was left behind")
        assert one.process.poll() is None


@pytest.mark.promise("K4", "D10")
def test_a_delete_by_force_does_not_wait_for_a_plan(
    database_url: str, connection: Connection, bomb: Pipeline, tmp_path: Path
) -> None:
    port = free_port()
    env = environment(database_url, **QUICK, VITRINE_API_PORT=str(port), VITRINE_ALLOWED_RELATIONS=BOMB)
    with started(["api"], tmp_path, env):
        wait_until(lambda: get(port, "/health/live")[0] == 200, 60, "the start of the API")
        with planning_runner(connection, bomb, database_url, tmp_path) as (one, sessions):
            begin = time.monotonic()
            request = Request(f"http://127.0.0.1:{port}/pipelines/bomb?force=true", method="DELETE")
            with urlopen(request, timeout=30) as answer:
                assert answer.status == 204
            assert time.monotonic() - begin < PROMISED_SECONDS
            assert pipelines.list_all(connection) == []
            wait_until(lambda: "lease_lost" in one.output(), 60, "the runner leaves the run")
            assert time.monotonic() - begin < 1 + PROMISED_SECONDS
            wait_until(lambda: gone(connection, sessions), 60, "the end of the session that was left behind")
            assert one.stop() == 0
            assert "Traceback" not in one.output()
