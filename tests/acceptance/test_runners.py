"""Runners as processes: several at once, killed, stopped, paused, and started before their database."""

import itertools
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from psycopg import sql

from tests.helpers import journal
from tests.helpers.databases import copy_of
from tests.helpers.observing import has_ticked, history, status, wait_for
from tests.helpers.processes import Started, free_port, runner
from tests.helpers.proxy import Proxy
from tests.helpers.running import create, differences
from tests.helpers.scraping import get
from tests.helpers.waiting import wait_until
from vitrine.connectors.postgres.sink import session
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import pipelines, state

RATINGS = 200_000
QUERY = "SELECT id, user_id, film_id, rating, created, modified FROM ugc.ratings"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def large_template(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    """The small cinema, grown to 200 000 ratings."""
    with copy_of(postgres, template, "vitrine_large") as name:
        with connect(postgres.url(name), name="tests") as connection:
            cinema.fill(connection, films=200, ratings=RATINGS)
        yield name


@pytest.fixture
def large(postgres: EmbeddedPostgres, large_template: str) -> Iterator[Connection]:
    """A separate database with 200 000 ratings, which records every status change."""
    with (
        copy_of(postgres, large_template, f"large_{next(_numbers)}") as name,
        connect(postgres.tcp_url(name), name="tests") as connection,
    ):
        journal.start(connection)
        yield connection
        journal.assert_legal(connection)


def url_of(connection: Connection) -> str:
    info = connection.info
    return f"postgresql://{info.user}@127.0.0.1:{info.port}/{info.dbname}"


def ratings(connection: Connection) -> Pipeline:
    """A full load in small batches, requested."""
    settings = Settings.model_validate({"database_url": url_of(connection)})
    pipeline = create(
        connection,
        settings,
        name="ratings",
        source_query=QUERY,
        target_table="analytics.ratings",
        key_columns=["id"],
        batch_size=500,
    )
    pipelines.request_run(connection, pipeline.id, trigger="api")
    return pipeline


@contextmanager
def held_in_the_middle(connection: Connection, pipeline: Pipeline) -> Generator[None]:
    """Inside, the run has committed some batches and waits for a lock on its staging table; it continues afterwards."""
    wait_until(lambda: [one for one in history(connection, pipeline) if one.rows_read > 0], what="the first batch")
    collecting = session.staging_name(pipeline.id, state.load_state(connection, pipeline.id).generation)
    waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with connect(url_of(connection), name="tests:hold") as other, other.transaction():
        other.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier("etl", collecting)))
        wait_until(lambda: connection.execute(waiting).fetchall(), what="a batch that waits")
        yield


def assert_right(connection: Connection, pipeline: Pipeline) -> None:
    assert differences(connection, QUERY, pipeline.definition.target_table, "id") == []
    counted = connection.execute("SELECT count(*) AS n, count(DISTINCT id) AS keys FROM analytics.ratings").fetchone()
    assert counted == {"n": RATINGS, "keys": RATINGS}
    left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'stage\\_%'").fetchall()
    assert left == []


def owner(connection: Connection, pipeline: Pipeline, *started: Started) -> tuple[Started, list[Started]]:
    """The process that holds the pipeline, and the other processes."""
    name = wait_until(lambda: pipelines.get(connection, pipeline.id).lease_owner, what="a holder")
    return next(one for one in started if one.name == name), [one for one in started if one.name != name]


@pytest.mark.promise("A5")
def test_two_runners_run_fifty_requested_pipelines_once_each(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    journal.start(connection)
    made: list[Pipeline] = []
    for number in range(50):
        fields = {"source_query": "SELECT id, name FROM content.genre", "key_columns": ["id"]}
        made.append(create(connection, settings, name=f"p{number}", target_table=f"analytics.t{number}", **fields))
        pipelines.request_run(connection, made[-1].id, trigger="api")
    with runner(database_url, tmp_path), runner(database_url, tmp_path):
        busy = "SELECT FROM etl.etl_pipelines WHERE status <> 'IDLE'"
        wait_until(lambda: not connection.execute(busy).fetchall(), 60, "every pipeline IDLE")
    for pipeline in made:
        assert [(one.status, one.attempt) for one in history(connection, pipeline)] == [(RunStatus.SUCCESS, 1)]
        assert journal.moves(connection, pipeline.name) == [
            (Status.IDLE, Status.RUN_REQUESTED),
            (Status.RUN_REQUESTED, Status.RUNNING),
            (Status.RUNNING, Status.IDLE),
        ]
    journal.assert_legal(connection)


@pytest.mark.promise("A1", "A2", "I1")
def test_a_load_whose_runner_is_killed_is_finished_by_another(large: Connection, tmp_path: Path) -> None:
    pipeline = ratings(large)
    with runner(url_of(large), tmp_path) as a, runner(url_of(large), tmp_path) as b:
        victim, (survivor,) = owner(large, pipeline, a, b)
        with held_in_the_middle(large, pipeline):
            victim.stop(signal.SIGKILL)
        wait_for(large, pipeline, Status.IDLE)
    first, second = history(large, pipeline)
    assert (first.status, first.error_code, first.runner) == (RunStatus.ABANDONED, "LEASE_EXPIRED", victim.name)
    assert (second.status, second.runner) == (RunStatus.SUCCESS, survivor.name)
    assert first.request_id == second.request_id
    assert 0 < first.rows_read < RATINGS
    assert first.rows_read + second.rows_read == RATINGS
    assert_right(large, pipeline)


@pytest.mark.promise("A14")
def test_a_runner_that_is_stopped_hands_its_load_over_at_once(large: Connection, tmp_path: Path) -> None:
    pipeline = ratings(large)
    with runner(url_of(large), tmp_path) as a, runner(url_of(large), tmp_path) as b:
        stopped, (successor,) = owner(large, pipeline, a, b)
        with held_in_the_middle(large, pipeline):
            stopped.process.terminate()
        assert stopped.process.wait(10) == 0
        wait_for(large, pipeline, Status.IDLE)
    first, second = history(large, pipeline)
    assert (first.status, first.error_code) == (RunStatus.ABANDONED, "RELEASED")
    assert (second.status, second.runner, second.attempt) == (RunStatus.SUCCESS, successor.name, 1)
    assert first.finished_at is not None
    assert (second.started_at - first.finished_at).total_seconds() < 1.5  # below the lease_ttl of 2 s: no lease expired
    assert 0 < second.rows_read < RATINGS
    assert first.rows_read + second.rows_read == RATINGS
    assert_right(large, pipeline)


@pytest.mark.promise("A14")
def test_a_stopped_runner_leaves_its_load_requested_when_there_is_no_other_runner(
    large: Connection, tmp_path: Path
) -> None:
    pipeline = ratings(large)
    with runner(url_of(large), tmp_path) as alone, held_in_the_middle(large, pipeline):
        alone.process.terminate()
    left = pipelines.get(large, pipeline.id)
    assert (left.status, left.attempt, left.lease_owner) == (Status.RUN_REQUESTED, 0, None)
    assert large.execute("SELECT FROM etl.etl_runners").fetchall() == []


@pytest.mark.promise("D5")
def test_a_paused_load_continues_where_it_stopped(large: Connection, tmp_path: Path) -> None:
    pipeline = ratings(large)
    with runner(url_of(large), tmp_path):
        with held_in_the_middle(large, pipeline):
            assert pipelines.request_pause(large, pipeline.id) is Status.PAUSE_REQUESTED
        wait_for(large, pipeline, Status.PAUSED)
        assert large.execute("SELECT to_regclass('analytics.ratings') AS target").fetchone() == {"target": None}
    # PAUSED survives a restart of every process
    with runner(url_of(large), tmp_path) as other:
        has_ticked(large, other)
        assert status(large, pipeline) is Status.PAUSED
        _, resumed = pipelines.request_run(large, pipeline.id, trigger="api", resume=True)
        wait_for(large, pipeline, Status.IDLE)
    first, second = history(large, pipeline)
    assert (first.status, second.status) == (RunStatus.PAUSED, RunStatus.SUCCESS)
    assert first.request_id == second.request_id == resumed
    assert 0 < first.rows_read < RATINGS
    assert first.rows_read + second.rows_read == RATINGS
    assert_right(large, pipeline)


@pytest.mark.promise("A6")
def test_a_runner_that_starts_does_not_touch_the_run_of_a_live_one(large: Connection, tmp_path: Path) -> None:
    pipeline = ratings(large)
    with runner(url_of(large), tmp_path) as first:
        with held_in_the_middle(large, pipeline):
            before = journal.moves(large)
            with runner(url_of(large), tmp_path) as second:
                has_ticked(large, second, over="2.5 s")  # longer than lease_ttl
                assert journal.moves(large) == before
                assert "lease" not in second.output()
        wait_for(large, pipeline, Status.IDLE)
        (only,) = history(large, pipeline)
        assert (only.status, only.runner) == (RunStatus.SUCCESS, first.name)
    assert_right(large, pipeline)


@pytest.mark.promise("D8")
def test_a_request_while_running_is_followed_by_exactly_one_more_run(
    database_url: str, settings: Settings, connection: Connection, tmp_path: Path
) -> None:
    journal.start(connection)
    pipeline = create(
        connection, settings, source_query=QUERY, target_table="analytics.r", key_columns=["id"], batch_size=2
    )
    pipelines.request_run(connection, pipeline.id, trigger="api")
    with runner(database_url, tmp_path):
        with held_in_the_middle(connection, pipeline):
            asked: set[UUID] = {pipelines.request_run(connection, pipeline.id, trigger="api")[1] for _ in range(3)}
        wait_for(connection, pipeline, Status.IDLE)
    first, second = history(connection, pipeline)
    assert {second.request_id} == asked != {first.request_id}
    assert (Status.RUNNING, Status.RUN_REQUESTED) in journal.moves(connection)
    journal.assert_legal(connection)


@pytest.mark.promise("A19")
def test_a_runner_started_before_its_database_waits_and_then_works(
    database_url: str, settings: Settings, postgres: EmbeddedPostgres, connection: Connection, tmp_path: Path
) -> None:
    assert postgres.port is not None
    gate = Proxy(postgres.port)
    pipeline = create(
        connection,
        settings,
        source_query="SELECT id, name FROM content.genre",
        target_table="analytics.genres",
        key_columns=["id"],
    )
    pipelines.request_run(connection, pipeline.id, trigger="api")
    try:
        port = free_port()
        with runner(gate.url(database_url), tmp_path, VITRINE_METRICS_PORT=str(port)) as early:
            wait_until(lambda: early.output().count("waiting for the database") >= 2, what="a runner that waits")
            assert early.process.poll() is None
            assert status(connection, pipeline) is Status.RUN_REQUESTED
            assert (get(port, "/live")[0], get(port, "/ready")[0]) == (200, 503)
            gate.open()
            wait_for(connection, pipeline, Status.IDLE)
            assert (get(port, "/live")[0], get(port, "/ready")[0]) == (200, 200)
            gate.close()
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'vitrine:runner'"
            )
            wait_until(lambda: get(port, "/ready")[0] == 503, what="a runner that reports that it is not ready")
            assert get(port, "/live")[0] == 200
            assert early.output().count("waiting for the database") < 10  # the waits grow
            assert early.stop() == 0
    finally:
        gate.close()
    assert [one.status for one in history(connection, pipeline)] == [RunStatus.SUCCESS]
