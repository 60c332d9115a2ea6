"""Transient failures: a run retries from the stored state, then the pipeline is attempted again, then it fails."""

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from tests.helpers.events import both_modes, create_events, events_are_right, fill_events
from tests.helpers.running import allowing, once_read, run, succeed
from tests.helpers.waiting import wait_until
from vitrine import failpoints
from vitrine.connectors.postgres.sink import session
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import Pipeline, Run
from vitrine.errors import CheckpointMoved
from vitrine.postgres import Connection, connect, raw
from vitrine.runner.control import Watch
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state
from vitrine.store.checkpoint import StoreCheckpoint

AT_ONCE = (0.0, 0.0, 0.0)
EXECUTIONS_PER_RUN = 1 + len(AT_ONCE)  # the first execution and its retries
TARGET = "CREATE TABLE IF NOT EXISTS analytics.events (id integer PRIMARY KEY, note text, modified timestamptz)"


@pytest.fixture(autouse=True)
def disarmed() -> Generator[None]:
    yield
    failpoints.install("")


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def attempts(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    *,
    waits: Sequence[float] = AT_ONCE,
    watch: Watch | None = None,
    most: int = 9,
) -> list[Run]:
    """Runs every attempt as soon as the previous one has ended, until none is left; oldest first."""
    pipelines.request_run(connection, pipeline.id, trigger="api")
    executor = PipelineExecutor(settings, threading.Event(), waits=waits)
    dispatcher = PipelineDispatcher(settings, executor, delays=(timedelta(0), timedelta(0)))
    for _ in range(most):
        claim = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl, only=pipeline.id)
        if claim is None:
            return list(reversed(history.list_runs(connection, pipeline.id)))
        dispatcher.dispatch(claim, watch=watch)
    raise AssertionError(f"no end after {most} attempts")


def create_changes(connection: Connection, settings: Settings, mode: str = "incremental", **fields: Any) -> Pipeline:
    """A pipeline with an existing mart, so that an incremental one writes batch by batch."""
    connection.execute(TARGET)
    return create_events(connection, settings, mode, **fields)


def refuse(connection: Connection, sqlstate: str, times: int, when: str = "true") -> None:
    """The target refuses this many statements; a sequence counts them, because a rollback does not reset it."""
    connection.execute(TARGET)
    connection.execute("CREATE SEQUENCE public.refused")
    connection.execute(
        sql.SQL(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            "  IF ({when}) AND nextval('public.refused') <= {times} THEN"
            "    RAISE EXCEPTION 'not now' USING ERRCODE = {sqlstate};"
            "  END IF; RETURN NULL; END $$"
        ).format(when=raw(when), times=times, sqlstate=sqlstate)
    )
    connection.execute(
        "CREATE TRIGGER refuse AFTER INSERT OR UPDATE ON analytics.events"
        " FOR EACH STATEMENT EXECUTE FUNCTION public.refuse()"
    )


def refusals(connection: Connection) -> int:
    row = connection.execute("SELECT last_value FROM public.refused").fetchone()
    assert row is not None
    return row["last_value"]


def only_run(connection: Connection, pipeline: Pipeline) -> Run:
    (one,) = history.list_runs(connection, pipeline.id)
    return one


# -- inside a run -----------------------------------------------------------------------------------------------------


@pytest.mark.promise("B1")
@both_modes
@pytest.mark.parametrize("point", ["after_read", "after_sink_write", "before_commit", "after_commit"])
def test_a_run_continues_from_the_stored_state_and_counts_every_row_once(
    connection: Connection, settings: Settings, mode: str, point: str
) -> None:
    fill_events(connection, 500)
    events = create_changes(connection, settings, mode)
    failpoints.install(f"{point}=raise@3")
    executed = succeed(connection, settings, events, waits=AT_ONCE)
    one = only_run(connection, events)
    assert (one.status, one.rows_read, one.batches, one.attempt) == (RunStatus.SUCCESS, 500, 5, 1)
    assert (executed.counts.read, executed.batches) == (500, 5)
    assert state.load_state(connection, events.id).generation == (1 if mode == "full" else 0)
    assert events_are_right(connection)


@pytest.mark.parametrize("point", ["staging_built", "before_swap", "after_swap"])
def test_a_load_that_fails_near_its_end_is_neither_read_nor_applied_twice(
    connection: Connection, settings: Settings, point: str
) -> None:
    fill_events(connection, 500)
    events = create_events(connection, settings, "full", incremental_key="modified")
    failpoints.install(f"{point}=raise@1")
    executed = succeed(connection, settings, events, waits=AT_ONCE)
    assert (executed.counts.read, executed.counts.written) == (500, 500)
    assert state.load_state(connection, events.id).generation == 1
    assert only_run(connection, events).rows_written == 500
    assert events_are_right(connection)


@pytest.mark.parametrize(("batch", "read"), [(6, 700), (7, 800)])  # the first batch of the catch-up, and the second
def test_a_catch_up_is_retried_without_the_load(
    connection: Connection, settings: Settings, batch: int, read: int
) -> None:
    fill_events(connection, 500)
    connection.execute("UPDATE ugc.events SET modified = now() WHERE id > 300")
    events = create_events(connection, settings, "full", incremental_key="modified")
    failpoints.install(f"after_sink_write=raise@{batch}")
    executed = succeed(connection, settings, events, waits=AT_ONCE)
    assert executed.counts == Counts(read=read, written=500)
    assert state.load_state(connection, events.id).generation == 1
    assert events_are_right(connection)


def fail_after_every_batch(counts: Counts, expected: int | None) -> None:
    """A watch: the next read fails once."""
    if counts.read and expected is None:
        failpoints.install("after_read=raise@1")


def test_a_run_that_makes_progress_may_fail_any_number_of_times(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 1000)
    events = create_changes(connection, settings)
    executed = succeed(connection, settings, events, waits=(0.0,), watch=fail_after_every_batch)
    assert (executed.counts.read, only_run(connection, events).rows_read) == (1000, 1000)
    assert events_are_right(connection)


@pytest.mark.promise("B6")
def test_reading_the_same_rows_again_is_no_progress(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 500)
    # an integer cursor does not move during its first run: every retry reads from the start
    events = create_changes(connection, settings, incremental_key="id")
    refuse(connection, "40001", times=10**6, when="EXISTS (SELECT FROM analytics.events WHERE id > 400)")
    stop = threading.Event()
    failed = run(connection, settings, events, waits=AT_ONCE, stop=stop, watch=once_read(5000, stop.set))
    assert failed.error is not None
    assert failed.batches == 4 * EXECUTIONS_PER_RUN
    assert [one.status for one in attempts(connection, settings, events)][1:] == [RunStatus.FAILED] * 3
    connection.execute("DROP TRIGGER refuse ON analytics.events")
    succeed(connection, settings, events)
    assert events_are_right(connection)


def test_a_checkpoint_that_was_moved_is_read_again(
    connection: Connection, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_events(connection, 500)
    events = create_changes(connection, settings)
    save = StoreCheckpoint.save
    moved: list[object] = []

    def move_checkpoint(checkpoint: Any, *arguments: Any) -> Any:
        if len(moved) < 2:
            moved.append(connection.execute("UPDATE etl.etl_state SET batch_seq = batch_seq + 1"))
        return save(checkpoint, *arguments)

    monkeypatch.setattr(StoreCheckpoint, "save", move_checkpoint)
    executed = succeed(connection, settings, events, waits=(60.0, 60.0, 60.0))  # without a wait
    assert (executed.counts.read, only_run(connection, events).rows_read) == (500, 500)
    assert events_are_right(connection)
    moved.clear()
    connection.execute("INSERT INTO ugc.events VALUES (501, 'new', now())")
    assert isinstance(run(connection, settings, events).error, CheckpointMoved)


# -- waiting ----------------------------------------------------------------------------------------------------------


@contextmanager
def waiting_run(
    connection: Connection,
    settings: Settings,
    pipeline: Pipeline,
    threads: ThreadPoolExecutor,
    folder: Path,
    stop: threading.Event | None = None,
) -> Generator[Future[Executed]]:
    """A run that has failed once; it starts to wait for a minute when the block ends."""
    held = folder / "held"
    failpoints.install(f"after_sink_write=raise@2,in_backoff=wait:{held}")

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, pipeline, stop=stop, waits=(60.0,))

    running = threads.submit(run_there)
    wait_until(held.exists, what="a run that waits")
    yield running
    held.unlink()


@pytest.fixture
def rare_heartbeats(settings: Settings) -> Settings:
    """Settings with heartbeats so rare that a run learns nothing from them."""
    return settings.model_copy(
        update={"lease_ttl": timedelta(seconds=120), "heartbeat_interval": timedelta(seconds=100)}
    )


@pytest.mark.promise("D3")
def test_a_pause_ends_the_wait_before_a_retry(
    connection: Connection, rare_heartbeats: Settings, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    fill_events(connection, 500)
    events = create_changes(connection, rare_heartbeats)
    with waiting_run(connection, rare_heartbeats, events, threads, tmp_path) as running:
        assert pipelines.request_pause(connection, events.id) is Status.PAUSE_REQUESTED
    assert running.result(1).outcome is Outcome.PAUSED
    left = pipelines.get(connection, events.id)
    assert (left.status, left.attempt, left.next_attempt_at) == (Status.PAUSED, 0, None)
    assert (only_run(connection, events).status, only_run(connection, events).rows_read) == (RunStatus.PAUSED, 100)
    failpoints.install("")
    assert succeed(connection, rare_heartbeats, events).counts.read == 400
    assert events_are_right(connection)


def test_a_stop_ends_the_wait_before_a_retry(
    connection: Connection, rare_heartbeats: Settings, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    fill_events(connection, 500)
    events = create_changes(connection, rare_heartbeats)
    stop = threading.Event()
    with waiting_run(connection, rare_heartbeats, events, threads, tmp_path, stop) as running:
        pass
    stop.set()
    assert running.result(1).outcome is Outcome.RELEASED
    left = pipelines.get(connection, events.id)
    assert (left.status, left.attempt, left.next_attempt_at) == (Status.RUN_REQUESTED, 0, None)


def test_a_lost_lease_ends_the_wait_before_a_retry(
    connection: Connection, rare_heartbeats: Settings, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    fill_events(connection, 500)
    events = create_changes(connection, rare_heartbeats)
    with waiting_run(connection, rare_heartbeats, events, threads, tmp_path) as running:
        connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s'")
        queue.expire_leases(connection)
    ended = running.result(1).error
    assert ended is not None
    assert ended.code == "ETL01"
    assert only_run(connection, events).error_code == "LEASE_EXPIRED"


# -- attempts ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("B6")
def test_a_pipeline_fails_after_three_attempts_with_three_retries_each(
    connection: Connection, settings: Settings
) -> None:
    fill_events(connection, 10)
    refuse(connection, "53100", times=10**6)
    events = create_changes(connection, settings)
    made = attempts(connection, settings, events)
    assert [(one.status, one.attempt, one.error_code) for one in made] == [
        (RunStatus.FAILED, number, "TRANSIENT") for number in (1, 2, 3)
    ]
    assert pipelines.get(connection, events.id).status is Status.FAILED
    assert "DiskFull (53100)" in (made[-1].error_message or "")


@pytest.mark.promise("B7", "B13")
def test_the_next_attempt_waits_by_the_clock_of_the_database(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 10)
    refuse(connection, "53100", times=10**6)
    events = create_changes(connection, settings)
    pipelines.request_run(connection, events.id, trigger="api")
    claim = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl)
    assert claim is not None
    dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event(), waits=()))
    assert dispatcher.dispatch(claim)[1] is Status.RUN_REQUESTED
    due = connection.execute("SELECT next_attempt_at - clock_timestamp() AS wait FROM etl.etl_pipelines").fetchone()
    assert due is not None
    assert timedelta(seconds=10) < due["wait"] <= timedelta(seconds=15)
    assert queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl) is None
    connection.execute("UPDATE etl.etl_pipelines SET next_attempt_at = now()")
    again = queue.claim_next(connection, runner="tests", ttl=settings.lease_ttl)
    assert again is not None
    assert again.attempt == 2


@pytest.mark.promise("B6")
def test_progress_resets_the_attempt_counter(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 600)
    events = create_changes(connection, settings)
    made = attempts(connection, settings, events, waits=(), watch=fail_after_every_batch)
    assert [one.rows_read for one in made] == [100] * 6
    assert [one.status for one in made] == [RunStatus.FAILED] * 5 + [RunStatus.SUCCESS]
    assert events_are_right(connection)


# -- by kind of error -------------------------------------------------------------------------------------------------


@pytest.mark.promise("B5", "B7")
@pytest.mark.parametrize("sqlstate", ["40P01", "40001", "53100", "53300", "08006", "55006"])
def test_a_transient_error_of_the_target_is_not_reported_as_a_data_error(
    connection: Connection, settings: Settings, sqlstate: str
) -> None:
    fill_events(connection, 200)
    refuse(connection, sqlstate, times=len(AT_ONCE))
    events = create_changes(connection, settings, options={"on_reject": "quarantine"})
    executed = succeed(connection, settings, events, waits=AT_ONCE)
    assert executed.counts == Counts(read=200, written=200)
    assert refusals(connection) > len(AT_ONCE)
    assert events_are_right(connection)


@pytest.mark.promise("B5")
def test_a_deadlock_with_another_session_repeats_the_whole_batch(
    connection: Connection, settings: Settings, threads: ThreadPoolExecutor
) -> None:
    fill_events(connection, 200)
    events = create_changes(connection, settings)
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET note = 'new', modified = now()")

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, events, waits=AT_ONCE)

    blocked = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    change = "UPDATE analytics.events SET note = 'by hand' WHERE id = %s"
    with connect(settings.store_url, name="tests:other") as other:
        other.execute(
            "SET deadlock_timeout = '60s'"
        )  # the writer detects the deadlock, and is the one that is cancelled
        with other.transaction():
            other.execute(change, [100])
            running = threads.submit(run_there)
            wait_until(lambda: connection.execute(blocked).fetchall(), what="a writer that waits")
            other.execute(change, [1])
    executed = running.result(20)
    assert (executed.outcome, executed.counts.read, executed.counts.rejected) == (Outcome.FINISHED, 200, 0)
    assert only_run_after(connection, events).rows_read == 200
    assert events_are_right(connection)


def only_run_after(connection: Connection, pipeline: Pipeline) -> Run:
    latest, _ = history.list_runs(connection, pipeline.id)
    return latest


@pytest.mark.promise("B6")
@both_modes
def test_a_locked_target_fails_with_its_own_code_and_the_checkpoint_is_unchanged(
    connection: Connection, settings: Settings, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorter = session._BEGIN.replace("lock_timeout = '10s'", "lock_timeout = '50ms'")  # pyright: ignore[reportPrivateUsage]
    assert shorter != session._BEGIN  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(session, "_BEGIN", shorter)
    fill_events(connection, 200)
    events = create_changes(connection, settings, mode)
    before = state.load_state(connection, events.id)
    with connect(settings.store_url, name="tests:other") as other, other.transaction():
        other.execute("LOCK TABLE analytics.events IN ACCESS EXCLUSIVE MODE")
        made = attempts(connection, settings, events)
    last = made[-1]
    assert (last.status, last.error_code) == (RunStatus.FAILED, "SINK_LOCKED")
    assert "analytics.events" in (last.error_message or "")
    assert pipelines.get(connection, events.id).status is Status.FAILED
    assert state.load_state(connection, events.id).position == before.position
    read = sum(one.rows_read for one in made) + succeed(connection, settings, events).counts.read
    assert read == (200 if mode == "incremental" else 2 * 200)  # the load is published, and another follows
    assert events_are_right(connection)


def limit_statements(connection: Connection, limit: str) -> None:
    """Set statement_timeout for every new session."""
    name = sql.Identifier(connection.info.dbname)
    connection.execute(sql.SQL("ALTER DATABASE {} SET statement_timeout = {}").format(name, limit))


@pytest.mark.promise("B8")
def test_a_statement_limit_is_named_after_all_retries(connection: Connection, settings: Settings) -> None:
    fill_events(connection, 200)
    refuse(connection, "57014", times=0, when="pg_sleep(1) IS NOT NULL")
    limit_statements(connection, "100ms")
    events = create_changes(connection, settings)
    made = attempts(connection, settings, events)
    assert [(one.status, one.error_code) for one in made] == [(RunStatus.FAILED, "QUERY_CANCELED")] * 3
    assert "statement timeout (57014); raise that limit" in (made[-1].error_message or "")


@pytest.mark.promise("B8")
def test_a_query_that_is_cancelled_before_its_first_row_is_retried(
    connection: Connection, settings: Settings, threads: ThreadPoolExecutor
) -> None:
    fill_events(connection, 5)
    settings = allowing(settings, "ugc.slow")
    connection.execute("CREATE VIEW ugc.slow AS SELECT e.*, pg_sleep(60) IS NULL AS slept FROM ugc.events e")
    events = create_events(
        connection, settings, "incremental", source_query="SELECT id, note, modified, slept FROM ugc.slow"
    )
    cancel = (
        "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND state = 'active' AND query LIKE 'COPY (SELECT%'"
    )

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, events, waits=AT_ONCE)

    running = threads.submit(run_there)
    cancelled = 0
    while not running.done():
        cancelled += len(connection.execute(cancel).fetchall())
    assert cancelled >= EXECUTIONS_PER_RUN
    error = running.result().error
    assert error is not None
    assert (error.code, "user request (57014)" in str(error)) == ("QUERY_CANCELED", True)


@pytest.mark.promise("B9")
@both_modes
def test_reading_continues_from_the_checkpoint_after_a_lost_source_connection(
    connection: Connection, settings: Settings, mode: str, threads: ThreadPoolExecutor, tmp_path: Path
) -> None:
    rows = 20_000
    fill_events(connection, rows, note="repeat('x', 1000)")
    events = create_events(connection, settings, mode, batch_size=1000)
    held = tmp_path / "held"
    failpoints.install(f"after_read=wait:{held}@3")

    def run_there() -> Executed:
        with connect(settings.store_url, name="tests:thread") as own:
            return run(own, settings, events, waits=AT_ONCE)

    running = threads.submit(run_there)
    wait_until(held.exists, what="a run in the middle")
    ended = connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'COPY (SELECT%'"
    ).fetchall()
    held.unlink()
    executed = running.result(20)
    assert (len(ended), executed.outcome, executed.counts.read) == (1, Outcome.FINISHED, rows)
    assert only_run(connection, events).rows_read == rows
    assert events_are_right(connection)
