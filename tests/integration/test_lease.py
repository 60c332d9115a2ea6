"""Processes that die, freeze, resume and hang: other runners take over, and no row is lost or written twice."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import journal
from tests.helpers.events import count_events, create_events, create_filled, events_are_right, fill_events
from tests.helpers.forked import claimed, dispatched, forked
from tests.helpers.ratings import SLOW_QUERY
from tests.helpers.running import create, run, succeed
from tests.helpers.waiting import wait_until
from vitrine import failpoints
from vitrine.connectors.postgres.sink import session
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Row
from vitrine.core.status import RunStatus, Status
from vitrine.definition import registry
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.errors import LeaseLost
from vitrine.postgres import Connection, connect
from vitrine.runner import control
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.runner.worker import PipelineManager
from vitrine.settings import Settings
from vitrine.store import pipelines, queue
from vitrine.store.database import transaction
from vitrine.store.history import get_run, list_runs
from vitrine.store.state import load_state, reset_state

EVENTS, BATCH = 30, 10


@pytest.fixture(autouse=True)
def _watched(connection: Connection) -> Iterator[None]:
    """Asserts that every status change is legal."""
    journal.start(connection)
    yield
    failpoints.install("")
    journal.assert_legal(connection)


def request(connection: Connection, pipeline: Pipeline) -> None:
    pipelines.request_run(connection, pipeline.id, trigger="api")


def history(connection: Connection, pipeline: Pipeline) -> list[tuple[RunStatus, str | None]]:
    return [(one.status, one.error_code) for one in reversed(list_runs(connection, pipeline.id))]


def found(connection: Connection, pipeline: Pipeline) -> tuple[Status, int]:
    """Status and attempt."""
    stored = pipelines.get(connection, pipeline.id)
    return stored.status, stored.attempt


def let_expire(connection: Connection) -> None:
    """Let every lease expire, as if its holder had died."""
    ended = "clock_timestamp() - interval '1 s'"
    connection.execute(f"UPDATE etl.etl_pipelines SET lease_expires_at = {ended} WHERE lease_token > 0".encode())


def expire_all_leases(connection: Connection) -> None:
    """Expire leases as runners do, repeatedly: a row that a dying session still locks is skipped."""
    dead = "SELECT FROM etl.etl_pipelines WHERE lease_expires_at < clock_timestamp()"

    def none_left() -> bool:
        queue.expire_leases(connection)
        return not connection.execute(dead).fetchall()

    wait_until(none_left, what="the end of every expired lease")


def sessions_of(connection: Connection, claim: Claim) -> list[Any]:
    names = "SELECT application_name FROM pg_stat_activity WHERE application_name ~ ('^' || %s || '(:|$)')"
    return connection.execute(names, [claim.session]).fetchall()


# -- killed at any point ----------------------------------------------------------------------------------------------

ONCE = [("after_claim", 0), ("after_horizon", 0), ("before_finish", EVENTS)]
"""Failpoints that a run reaches once, and how many rows its batches have written by then."""
EVERY_BATCH = ["after_read", "after_sink_write", "before_commit"]
FAULTS = [
    *((f"{point}=kill", rows) for point, rows in ONCE),
    *((f"{point}=kill@{n}", (n - 1) * BATCH) for point in EVERY_BATCH for n in (1, 2)),
    *((f"in_copy=kill@{n}", (n - 1) // 3 * BATCH) for n in (1, 5)),  # header, rows and trailer of each batch
    *((f"after_commit=kill@{n}", n * BATCH) for n in (1, 2)),
]
PUBLISHING = [("staging_built=kill", EVENTS), ("before_swap=kill", EVENTS), ("after_swap=kill", None)]


def staged_rows(connection: Connection, pipeline: Pipeline) -> int | None:
    """Rows in the staging table while there is no mart; None once the load is published."""
    state = load_state(connection, pipeline.id)
    if connection.execute("SELECT to_regclass('analytics.events') AS t").fetchone() != {"t": None}:
        assert not state.generation_open
        return None
    name = session.staging_name(pipeline.id, state.generation)
    found = connection.execute("SELECT to_regclass('etl.' || %s) IS NOT NULL AS there", [name]).fetchone()
    if found == {"there": False}:
        assert state.generation_rows == 0
        return 0
    counted = connection.execute(f"SELECT count(*) AS n FROM etl.{name}".encode()).fetchone()
    assert counted == {"n": state.generation_rows}
    return state.generation_rows


def covered_rows(connection: Connection, pipeline: Pipeline) -> int:
    """Number of rows up to the checkpoint; asserts that exactly these are in the target."""
    cursor = load_state(connection, pipeline.id).position.cursor
    rows = connection.execute("SELECT id FROM analytics.events ORDER BY id").fetchall()
    assert [row["id"] for row in rows] == list(range(1, (int(cursor[1]) if cursor else 0) + 1))
    return len(rows)


def start_over(connection: Connection, pipeline: Pipeline, *, staged: bool) -> None:
    connection.execute("DROP TABLE analytics.events" if staged else "TRUNCATE analytics.events")
    reset_state(connection, pipeline.id)


@pytest.mark.promise("A1", "A2", "A3")
@pytest.mark.parametrize("mode", ["full", "incremental", "first load"])
def test_a_process_killed_at_any_point_leaves_rows_and_checkpoint_consistent(
    connection: Connection, settings: Settings, mode: str
) -> None:
    staged = mode != "incremental"
    if mode == "first load":  # of an incremental pipeline
        fill_events(connection, EVENTS)
        events = create_events(connection, settings, "incremental", batch_size=BATCH)
    else:
        events = create_filled(connection, settings, mode, EVENTS, batch_size=BATCH)
    for fault, expected in [*FAULTS, *(PUBLISHING if staged else [])]:
        request(connection, events)
        claim = claimed(settings)
        with forked(lambda: dispatched(settings, claim), fault) as child:  # noqa: B023  it is done with in this turn
            assert child.ended() == -signal.SIGKILL, fault
        assert found(connection, events) == (Status.RUNNING, 1), fault
        left = staged_rows(connection, events) if staged else covered_rows(connection, events)
        assert left == (None if staged and fault.startswith("before_finish") else expected), fault
        moved = get_run(connection, claim.run_id).rows_read
        assert moved == (EVENTS if expected is None else expected), fault
        let_expire(connection)
        expire_all_leases(connection)
        assert history(connection, events)[-1] == (RunStatus.ABANDONED, "LEASE_EXPIRED"), fault
        if left is None:
            assert events_are_right(connection), fault  # the whole mart was written by one commit
        remaining = succeed(connection, settings, events, resume=True).counts
        if mode == "full" and left is None:
            assert remaining.read == EVENTS, fault  # this is the next load
        else:
            assert remaining.read == EVENTS - (EVENTS if left is None else left), fault
        assert events_are_right(connection), fault
        start_over(connection, events, staged=staged)


# -- frozen and resumed -----------------------------------------------------------------------------------------------


@pytest.mark.promise("A7", "A17", "A18")
@pytest.mark.parametrize(
    ("point", "mode"),
    [
        ("after_sink_write", "full"),
        ("after_sink_write", "incremental"),
        ("in_copy", "full"),
        ("in_copy", "incremental"),
        ("before_commit", "incremental"),
    ],
)
def test_a_process_that_resumes_after_its_pipeline_was_taken_over_changes_nothing(
    connection: Connection, settings: Settings, mode: str, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = session._BEGIN.replace("session_timeout = '10s'", "session_timeout = '4s'")  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(session, "_BEGIN", quick)
    events = create_filled(connection, settings, mode, EVENTS, batch_size=BATCH)
    request(connection, events)
    claim = claimed(settings)
    with forked(lambda: dispatched(settings, claim), f"{point}=stop@{5 if point == 'in_copy' else 2}") as zombie:
        zombie.stopped()
        assert sessions_of(connection, claim)
        if point != "before_commit":
            let_expire(connection)
        expired = "SELECT FROM etl.etl_pipelines WHERE lease_expires_at < clock_timestamp()"
        wait_until(lambda: connection.execute(expired).fetchall(), what="a lease that expires")
        take_over(connection, holds_the_row=point == "before_commit")
        wait_until(lambda: not sessions_of(connection, claim), what="the end of the zombie's sessions")
        successor = claimed(settings)
        assert successor.token > claim.token
        assert dispatched(settings, successor) == [None, Status.IDLE]
        assert events_are_right(connection)
        before = journal.moves(connection)
        zombie.wake()
        error, left = zombie.answer()
        assert (error is not None, left) == (True, None)
    assert journal.moves(connection) == before
    assert events_are_right(connection)
    assert history(connection, events) == [(RunStatus.ABANDONED, "LEASE_EXPIRED"), (RunStatus.SUCCESS, None)]
    assert sum(one.rows_read for one in list_runs(connection, events.id)) == EVENTS


def take_over(connection: Connection, *, holds_the_row: bool) -> None:
    """Expire the lease; while a transaction of its holder locks the row, it is skipped without waiting."""
    began = time.monotonic()
    freed = queue.expire_leases(connection)
    assert time.monotonic() - began < 0.5
    assert bool(freed) != holds_the_row
    # the server ends the session that is idle in its transaction
    wait_until(lambda: freed or queue.expire_leases(connection), what="a lease that can be expired")


@pytest.mark.promise("A18")
def test_idle_transactions_of_the_writer_and_the_store_end_before_a_lease_expires(
    connection: Connection, settings: Settings
) -> None:
    with transaction(connection):
        limit = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
    assert limit == {"idle_in_transaction_session_timeout": "10s"}
    assert "idle_in_transaction_session_timeout = '10s'" in session._BEGIN  # pyright: ignore[reportPrivateUsage]
    assert Settings.model_fields["lease_ttl"].default > timedelta(seconds=10)


# -- leases that expire -----------------------------------------------------------------------------------------------


@pytest.mark.promise("A9", "A11")
@pytest.mark.parametrize(("fault", "mode"), [("raise", "incremental"), ("wait", "full")])
def test_a_run_whose_heartbeats_fail_stops_before_its_next_write(
    connection: Connection, settings: Settings, mode: str, fault: str, tmp_path: Path
) -> None:
    brief = settings.model_copy(
        update={"lease_ttl": timedelta(milliseconds=1500), "heartbeat_interval": timedelta(milliseconds=100)}
    )
    events = create_filled(connection, brief, mode, EVENTS, batch_size=BATCH)
    held, silent = tmp_path / "held", tmp_path / "silent"
    action = "raise" if fault == "raise" else f"wait:{silent}@1"
    failpoints.install(f"heartbeat={action},after_commit=wait:{held}@1")
    freeing = threading.Thread(target=release_once_expired, args=(connection, held, silent))
    freeing.start()
    executed = run_through(connection, brief, events)
    freeing.join()
    assert isinstance(executed.error, LeaseLost)
    assert executed.batches == 1
    # no runner has taken it over, and the lease does not become valid again
    assert found(connection, events) == (Status.RUNNING, 1)
    with connect(brief.store_url, name="tests") as other:
        (freed,) = queue.expire_leases(other)
    assert freed["status"] == Status.RUN_REQUESTED
    assert history(connection, events) == [(RunStatus.ABANDONED, "LEASE_EXPIRED")]
    failpoints.install("")
    assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
    assert events_are_right(connection)


@pytest.mark.promise("A9")
def test_a_run_that_begins_after_its_lease_has_expired_writes_nothing(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    brief = settings.model_copy(update={"lease_ttl": timedelta(milliseconds=500)})
    events = create_filled(connection, settings, "incremental", EVENTS)
    failpoints.install(f"after_claim=wait:{tmp_path / 'held'}")
    freeing = threading.Thread(target=release_once_expired, args=(connection, tmp_path / "held"))
    freeing.start()
    executed = run_through(connection, brief, events)
    freeing.join()
    assert isinstance(executed.error, LeaseLost)
    assert count_events(connection) == 0


def run_through(connection: Connection, settings: Settings, pipeline: Pipeline) -> Executed:
    request(connection, pipeline)
    dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, threading.Event()))
    return dispatcher.dispatch(claimed(settings))[0]


def release_once_expired(connection: Connection, *files: Path) -> None:
    wait_until(lambda: any(file.exists() for file in files), what="a run that is held")
    expired = "SELECT FROM etl.etl_pipelines WHERE lease_expires_at < clock_timestamp() - interval '300 ms'"
    wait_until(lambda: connection.execute(expired).fetchall(), what="a lease that expires")
    for file in files:
        file.unlink(missing_ok=True)


# -- crash loops ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A13")
def test_a_batch_that_kills_its_process_three_times_fails_the_pipeline(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "incremental", EVENTS, batch_size=BATCH)
    request(connection, events)
    die(connection, settings, "after_read=kill@2")
    assert found(connection, events) == (Status.RUN_REQUESTED, 0)  # one batch was written: the counter is reset
    for attempt in (1, 2):
        die(connection, settings, "after_read=kill")
        assert found(connection, events) == (Status.RUN_REQUESTED, attempt)
    die(connection, settings, "after_read=kill")
    assert found(connection, events) == (Status.FAILED, 0)
    assert history(connection, events)[-1] == (RunStatus.ABANDONED, "CRASH_LOOP")
    assert count_events(connection) == BATCH
    assert succeed(connection, settings, events).counts.read == EVENTS - BATCH
    assert events_are_right(connection)


@pytest.mark.promise("A13")
def test_reading_the_same_rows_again_before_each_crash_is_no_progress(
    connection: Connection, settings: Settings
) -> None:
    # an integer cursor has no checkpoint before its first run has ended: each attempt starts with the first batch
    events = create_filled(
        connection, settings, "incremental", EVENTS, batch_size=BATCH, incremental_key="id", incremental_id_key="id"
    )
    request(connection, events)
    die(connection, settings, "after_read=kill@2")
    assert found(connection, events) == (Status.RUN_REQUESTED, 0)  # its first batch was new
    for attempt in (1, 2):
        die(connection, settings, "after_read=kill@2")
        assert found(connection, events) == (Status.RUN_REQUESTED, attempt)
    die(connection, settings, "after_read=kill@2")
    assert found(connection, events) == (Status.FAILED, 0)


def die(connection: Connection, settings: Settings, fault: str) -> None:
    claim = claimed(settings)
    with forked(lambda: dispatched(settings, claim), fault) as child:
        assert child.ended() == -signal.SIGKILL
    let_expire(connection)
    expire_all_leases(connection)


@registry.transforms.register("deadly_in_company")
def deadly_in_company(rows: Sequence[Row]) -> Sequence[Row]:
    """Kills the process once all three runs that should die with it have begun to read."""
    with connect(os.environ["VITRINE_TEST_STORE"], name="tests:deadly") as store:
        reading = "SELECT FROM etl.etl_runs WHERE status = 'RUNNING' AND lane IS NOT NULL"
        wait_until(lambda: len(store.execute(reading).fetchall()) == 3, what="the other runs")
    os.kill(os.getpid(), signal.SIGKILL)
    return rows


@registry.transforms.register("harmless")
def harmless(rows: Sequence[Row]) -> Sequence[Row]:
    return rows


def managed(settings: Settings) -> bool:
    """A runner with three slots, in this process."""
    stop = threading.Event()
    dispatcher = PipelineDispatcher(settings, PipelineExecutor(settings, stop))
    return PipelineManager(settings, dispatcher, name=f"forked:{os.getpid()}", concurrency=3, stop=stop).run()


def create_slow(connection: Connection, settings: Settings, **fields: Any) -> Pipeline:
    """A pipeline whose query takes minutes to return its first row."""
    defaults: dict[str, Any] = {
        "name": "slow",
        "source_query": SLOW_QUERY,
        "key_columns": ["id"],
        "target_table": "analytics.slow",
    }
    return create(connection, settings, **defaults | fields)


@pytest.mark.promise("A13")
@pytest.mark.parametrize("order", ["together", "culprit first", "culprit last"])
def test_a_crash_is_charged_to_the_run_in_user_code_and_not_to_other_runs_of_the_process(
    connection: Connection, settings: Settings, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRINE_TEST_STORE", settings.store_url)
    culprit = create_filled(connection, settings, "incremental", EVENTS, python_task="deadly_in_company")
    beside = [
        create_slow(connection, settings),
        create_slow(connection, settings, name="patient", target_table="analytics.patient", python_task="harmless"),
    ]
    for pipeline in (culprit, *beside):
        request(connection, pipeline)
    for death in (1, 2, 3) if order == "together" else (1,):
        with forked(lambda: managed(settings)) as child:
            assert child.ended() == -signal.SIGKILL
        expire_in(connection, order, culprit)
        assert found(connection, culprit) == ((Status.RUN_REQUESTED, death) if death < 3 else (Status.FAILED, 0))
        assert [found(connection, one) for one in beside] == [(Status.RUN_REQUESTED, 0)] * 2


def expire_in(connection: Connection, order: str, culprit: Pipeline) -> None:
    """The leases of a dead process expire in this order, because heartbeats are sent one after the other."""
    if order == "together":
        let_expire(connection)
    else:
        ends = "UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s' WHERE (id = %s) = %s"
        connection.execute(ends, [culprit.id, order == "culprit first"])
        expire_all_leases(connection)
        let_expire(connection)
    expire_all_leases(connection)


@pytest.mark.promise("A13")
def test_a_run_without_user_code_that_crashes_alone_is_charged(connection: Connection, settings: Settings) -> None:
    deadly = create_filled(connection, settings, "incremental", EVENTS, batch_size=BATCH, python_task="harmless")
    request(connection, deadly)
    die(connection, settings, "after_read=kill")  # an earlier crash in user code, of a runner with the same name
    connection.execute("UPDATE etl.etl_pipelines SET enabled = false")
    plain = create_events(connection, settings, "incremental", name="plain", target_table="analytics.plain")
    request(connection, plain)
    for _ in range(3):
        die(connection, settings, "in_copy=kill")
    assert found(connection, plain) == (Status.FAILED, 0)


# -- batches that take too long ---------------------------------------------------------------------------------------


@pytest.mark.promise("A16")
def test_a_query_that_takes_too_long_is_cancelled_and_fails_its_run(connection: Connection, settings: Settings) -> None:
    slow = create_slow(connection, settings, options={"batch_timeout": "1s"})
    failed = run(connection, settings, slow)
    assert failed.error is not None
    assert (failed.error.code, "options.batch_timeout (1s)" in str(failed.error)) == ("BATCH_TIMEOUT", True)
    assert failed.seconds < 1 + control.CHECK_SECONDS + 2
    assert found(connection, slow) == (Status.FAILED, 0)  # no second attempt: it would take as long
    assert_nothing_reads(connection)


def assert_nothing_reads(connection: Connection) -> None:
    reading = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%%CROSS JOIN%%'"
    wait_until(lambda: not connection.execute(reading).fetchall(), what="the end of the query")


@pytest.mark.promise("A16")
def test_a_write_that_takes_too_long_is_cancelled_and_fails_its_run(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    events = create_filled(connection, settings, "incremental", EVENTS, options={"batch_timeout": "1s"})
    succeed(connection, settings, events)
    connection.execute("UPDATE ugc.events SET note = 'new', modified = now() WHERE id = 7")
    with connect(database_url, name="tests:lock") as other, other.transaction():
        other.execute("SELECT FROM analytics.events WHERE id = 7 FOR UPDATE")
        failed = run(connection, settings, events)
    assert failed.error is not None
    assert failed.error.code == "BATCH_TIMEOUT"
    assert succeed(connection, settings, events).counts.written == 1


@pytest.mark.promise("A16")
def test_batch_timeout_applies_to_batches_and_not_to_the_run_or_its_publish(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH, options={"batch_timeout": "1s"})
    held = tmp_path / "held"
    failpoints.install(f"staging_built=wait:{held}")
    request(connection, events)
    claim = claimed(settings)
    freeing = threading.Thread(target=release_after, args=(connection, claim, held, timedelta(seconds=2)))
    freeing.start()
    assert dispatched(settings, claim) == [None, Status.IDLE]
    freeing.join()
    assert events_are_right(connection)


@pytest.mark.promise("A16")
def test_a_wait_between_two_batches_does_not_count_towards_batch_timeout(
    connection: Connection, settings: Settings
) -> None:
    slowly = {"batch_timeout": "1s", "pause_between_batches": "1500ms"}
    events = create_filled(connection, settings, "incremental", EVENTS, batch_size=BATCH, options=slowly)
    assert succeed(connection, settings, events).seconds > 3
    assert events_are_right(connection)


def release_after(connection: Connection, claim: Claim, file: Path, least: timedelta) -> None:
    wait_until(file.exists, what="a run that is held")
    wait_until(lambda: get_run(connection, claim.run_id).elapsed > least.total_seconds(), what="a long run")
    file.unlink()


# -- pauses and stops during a slow query -----------------------------------------------------------------------------


@pytest.mark.promise("A14", "D5")
@pytest.mark.parametrize("how", ["pause", "stop"])
def test_a_pause_and_a_stop_do_not_wait_for_a_slow_query(
    connection: Connection, settings: Settings, database_url: str, how: str
) -> None:
    rare = settings.model_copy(update={"lease_ttl": timedelta(seconds=30), "heartbeat_interval": timedelta(seconds=10)})
    slow = create_slow(connection, rare)
    request(connection, slow)
    claim = claimed(rare)
    stop, asked = threading.Event(), list[float]()

    def interrupt() -> None:
        with connect(database_url, name="tests:interrupt") as other:
            reading = "SELECT FROM pg_stat_activity WHERE state = 'active' AND query LIKE 'COPY%%CROSS JOIN%%'"
            wait_until(lambda: other.execute(reading).fetchall(), what="a query that runs")
            asked.append(time.monotonic())
            if how == "pause":
                assert pipelines.request_pause(other, slow.id) is Status.PAUSE_REQUESTED
            else:
                stop.set()

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    executed, left = PipelineDispatcher(rare, PipelineExecutor(rare, stop)).dispatch(claim)
    took = time.monotonic() - asked[0]
    interrupting.join()
    assert executed.outcome is (Outcome.PAUSED if how == "pause" else Outcome.RELEASED)
    assert (left, found(connection, slow)[1]) == (Status.PAUSED if how == "pause" else Status.RUN_REQUESTED, 0)
    assert took < (2.5 if how == "pause" else 1)  # the runner polls for a pause once a second
    assert_nothing_reads(connection)
