"""How soon another runner takes a run over, and how a process with a hung run ends."""

import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import journal
from tests.helpers.events import EVENTS, create_target, events_are_right, fill_events
from tests.helpers.processes import QUICK, Started, environment, runner, vitrine
from tests.helpers.ratings import SLOW_QUERY
from tests.helpers.waiting import wait_until
from vitrine.core.status import RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Pipeline, Run
from vitrine.postgres import Connection
from vitrine.settings import parse_duration
from vitrine.store import pipelines, state
from vitrine.store.history import list_runs

TTL, POLL = (parse_duration(QUICK[name]) for name in ("VITRINE_LEASE_TTL", "VITRINE_POLL_INTERVAL"))
TOLERANCE = timedelta(milliseconds=800)
"""Time that a busy machine may add."""

HANGING = """
from vitrine.definition import registry

@registry.transforms.register("hanging")
def hanging(rows):
    while True:
        pass
"""


@pytest.fixture(autouse=True)
def _watched(connection: Connection) -> Iterator[None]:
    """Asserts that every status change is legal."""
    journal.start(connection)
    yield
    journal.assert_legal(connection)


def requested(connection: Connection, name: str, **fields: Any) -> Pipeline:
    """A pipeline with a run request."""
    defaults: dict[str, Any] = {"name": name, "target_table": f"analytics.{name}", "key_columns": ["id"]}
    pipeline = pipelines.create(connection, Definition.model_validate(defaults | fields))
    pipelines.request_run(connection, pipeline.id, trigger="api")
    return pipeline


def requested_events(connection: Connection, **fields: Any) -> Pipeline:
    """Thirty events in three batches."""
    fill_events(connection, 30)
    create_target(connection)
    cursor = {"mode": "incremental", "incremental_key": "modified"}
    return requested(connection, "events", source_query=EVENTS, batch_size=10, **cursor | fields)


def history(connection: Connection, pipeline: Pipeline) -> list[Run]:
    return list(reversed(list_runs(connection, pipeline.id)))


def wait_for(connection: Connection, pipeline: Pipeline, wanted: Status) -> None:
    wait_until(lambda: pipelines.get(connection, pipeline.id).status is wanted, 30, f"{pipeline.name} {wanted}")


def now(connection: Connection) -> datetime:
    """The clock of the database, which also times runs."""
    row = connection.execute("SELECT clock_timestamp() AS now").fetchone()
    assert row is not None
    return row["now"]


def wait_until_polling(connection: Connection, one: Started) -> None:
    """Wait until the runner polls for work."""
    seen = "SELECT FROM etl.etl_runners WHERE name = %s"
    wait_until(lambda: connection.execute(seen, [one.name]).fetchall(), what="a runner that polls for work")


@pytest.mark.promise("A1")
def test_a_run_whose_runner_is_killed_is_taken_over_within_a_lease_and_a_poll(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    events = requested_events(connection)
    held = tmp_path / "held"
    with runner(
        database_url, tmp_path, VITRINE_TESTING="1", VITRINE_FAILPOINTS=f"before_commit=wait:{held}@2"
    ) as victim:
        wait_until(held.exists, what="a run in its second batch")
        with runner(database_url, tmp_path) as successor:
            wait_until_polling(connection, successor)
            killed = now(connection)
            victim.stop(signal.SIGKILL)
            wait_for(connection, events, Status.IDLE)
    first, second = history(connection, events)
    assert (first.status, first.error_code, first.rows_read) == (RunStatus.ABANDONED, "LEASE_EXPIRED", 10)
    assert (second.status, second.runner, second.rows_read) == (RunStatus.SUCCESS, successor.name, 20)
    assert second.started_at - killed < TTL + POLL + TOLERANCE
    assert events_are_right(connection)


@pytest.mark.promise("A14")
def test_a_runner_that_is_stopped_during_a_slow_query_hands_over_within_a_second(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    slow = requested(connection, "slow", source_query=SLOW_QUERY)
    # it polls so rarely that only the notification of the stopped runner can wake the other
    with runner(database_url, tmp_path) as stopped:
        reading = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%%CROSS JOIN%%'"
        wait_until(lambda: connection.execute(reading).fetchall(), what="a query that runs")
        with runner(database_url, tmp_path, VITRINE_POLL_INTERVAL="20s") as successor:
            wait_until_polling(connection, successor)
            asked = now(connection)
            stopped.process.terminate()
            first, second = wait_until(lambda: two(history(connection, slow)), what="the next run")
            assert stopped.process.wait(5) == 0
    assert (first.status, first.error_code, second.runner) == (RunStatus.ABANDONED, "RELEASED", successor.name)
    assert second.attempt == 1
    assert second.started_at - asked < timedelta(seconds=1)
    assert pipelines.get(connection, slow.id).attempt == 0  # the second runner was stopped as well


def two(found: list[Run]) -> tuple[Run, Run] | None:
    return (found[0], found[1]) if len(found) == 2 else None


@pytest.mark.promise("A15")
def test_a_runner_killed_during_its_shutdown_leaves_nothing_of_its_batch(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    events = requested_events(connection)
    held = tmp_path / "held"
    points = f"before_commit=wait:{held}@2"
    with runner(database_url, tmp_path, VITRINE_TESTING="1", VITRINE_FAILPOINTS=points) as stubborn:
        wait_until(held.exists, what="a run in its second batch")
        stubborn.process.terminate()
        stubborn.stop(signal.SIGKILL)
    counted = connection.execute("SELECT count(*) AS n FROM analytics.events").fetchone()
    cursor = state.load_state(connection, events.id).position.cursor
    assert (counted, cursor and cursor[1]) == ({"n": 10}, "10")
    with runner(database_url, tmp_path):
        wait_for(connection, events, Status.IDLE)
    assert [one.rows_read for one in history(connection, events)] == [10, 20]
    assert events_are_right(connection)


@pytest.mark.promise("A16")
def test_a_runner_with_a_hung_run_fails_it_releases_the_others_and_exits(
    database_url: str, connection: Connection, tmp_path: Path
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    slow = requested(connection, "slow", source_query=SLOW_QUERY)
    events = requested_events(connection, python_task="hanging", options={"batch_timeout": "1s"})
    with runner(database_url, tmp_path, VITRINE_TRANSFORM_MODULES="hanging") as hanging:
        assert hanging.process.wait(20) == 1
    (failed,) = history(connection, events)
    assert (failed.status, failed.error_code) == (RunStatus.FAILED, "BATCH_TIMEOUT")
    assert "options.batch_timeout (1s)" in (failed.error_message or "")
    assert failed.elapsed < 6
    assert pipelines.get(connection, events.id).status is Status.FAILED
    (released,) = history(connection, slow)
    assert (released.status, released.error_code) == (RunStatus.ABANDONED, "RELEASED")
    assert pipelines.get(connection, slow.id).attempt == 0
    assert "run hangs" in hanging.output()


@pytest.mark.promise("A16")
def test_a_hung_foreground_run_exits_with_the_reason(database_url: str, connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    events = requested_events(connection, python_task="hanging", options={"batch_timeout": "1s"})
    env = environment(database_url, VITRINE_TRANSFORM_MODULES="hanging", **QUICK)
    ended = vitrine("run", "events", folder=tmp_path, env=env)
    assert ended.returncode == 1
    assert "'events' failed (BATCH_TIMEOUT): a batch of 'events' took longer" in ended.stderr
    assert pipelines.get(connection, events.id).status is Status.FAILED
