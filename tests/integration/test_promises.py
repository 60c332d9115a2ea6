"""What the success of a request promises: every earlier change is in the mart, and every batch is durable."""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import journal
from tests.helpers.events import create_events, create_filled, events_are_right, fill_events
from tests.helpers.folders import server_folder
from tests.helpers.forked import claimed, dispatched, forked
from tests.helpers.processes import free_port
from tests.helpers.running import once_read, run, run_one_batch, succeed
from tests.helpers.waiting import wait_until
from vitrine import failpoints
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Entry, Step
from vitrine.core.status import RequestId, RunStatus, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store import history, pipelines, queue, state
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.migrate import migrate

EVENTS, BATCH = 30, 10
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _watched(connection: Connection) -> Iterator[None]:
    """Asserts that every status change is legal."""
    journal.start(connection)
    yield
    failpoints.install("")
    journal.assert_legal(connection)


def paused(connection: Connection, settings: Settings, pipeline: Pipeline) -> RequestId:
    """A run that is paused in the middle of its load; returns its request."""

    def pause() -> None:
        pipelines.request_pause(connection, pipeline.id)

    executed = run(connection, settings, pipeline, watch=once_read(BATCH, pause))
    assert executed.outcome is Outcome.PAUSED
    stored = pipelines.get(connection, pipeline.id)
    assert stored.request_id is not None
    assert state.load_state(connection, pipeline.id).generation_open
    return stored.request_id


def change_staged_rows(connection: Connection) -> None:
    """Change one row that is staged already, delete another, and insert one before both."""
    connection.execute("UPDATE ugc.events SET note = 'changed' WHERE id = 2")
    connection.execute("DELETE FROM ugc.events WHERE id = 3")
    connection.execute("INSERT INTO ugc.events VALUES (0, 'new', '2024-01-01')")


# -- full loads -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("J38")
@pytest.mark.parametrize("fields", [{}, {"incremental_key": "modified"}], ids=["plain", "with catch-up"])
def test_a_run_after_a_pause_in_a_full_load_includes_every_change_made_before_it(
    connection: Connection, settings: Settings, fields: dict[str, Any]
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH, **fields)
    asked = paused(connection, settings, events)
    change_staged_rows(connection)
    succeed(connection, settings, events)
    assert events_are_right(connection)
    request = history.get_request(connection, asked)
    assert request.state == "succeeded"
    stored = pipelines.get(connection, events.id)
    assert (stored.status, stored.requested_at) == (Status.IDLE, request.promised_at)
    assert stored.fresh_as_of is not None
    assert request.promised_at is not None
    assert stored.fresh_as_of >= request.promised_at


@pytest.mark.promise("J38")
def test_resume_continues_the_load_once_and_promises_the_time_of_the_old_request(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    asked = paused(connection, settings, events)
    promised = pipelines.get(connection, events.id).requested_at
    connection.execute("UPDATE ugc.events SET note = 'changed' WHERE id = 2")
    resumed = succeed(connection, settings, events, resume=True)
    assert resumed.counts.read < EVENTS
    assert not events_are_right(connection)
    request = history.get_request(connection, asked)
    assert (request.state, request.promised_at) == ("succeeded", promised)
    stored = pipelines.get(connection, events.id)
    assert stored.fresh_as_of is not None
    (row,) = connection.execute("SELECT max(started_at) AS resumed FROM etl.etl_runs").fetchall()
    assert request.promised_at is not None
    assert request.promised_at <= stored.fresh_as_of < row["resumed"]


@pytest.mark.promise("J38")
def test_a_run_after_a_failure_in_a_full_load_includes_every_change_made_before_it(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    failpoints.install("after_sink_write=raise@2")
    assert run(connection, settings, events).error is not None
    failpoints.install("")
    assert pipelines.get(connection, events.id).status is Status.FAILED
    change_staged_rows(connection)
    succeed(connection, settings, events)
    assert events_are_right(connection)


@pytest.mark.promise("J38")
def test_a_run_requested_while_a_half_done_one_waits_includes_every_change_made_before_it(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    run_one_batch(connection, settings, events)
    waiting = pipelines.get(connection, events.id)
    assert waiting.status is Status.RUN_REQUESTED
    change_staged_rows(connection)
    _, asked = pipelines.request_run(connection, events.id, trigger="api")
    assert asked == waiting.request_id
    assert pipelines.get(connection, events.id).requested_at == waiting.requested_at  # its place in the queue
    assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
    assert events_are_right(connection)


@pytest.mark.promise("J38")
def test_a_run_that_cancels_a_pause_is_followed_by_one_that_includes_every_change_made_before_it(
    connection: Connection, settings: Settings, tmp_path: Path
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    pipelines.request_run(connection, events.id, trigger="api")
    claim, file = claimed(settings), tmp_path / "held"
    with forked(lambda: dispatched(settings, claim), f"after_commit=wait:{file}@1") as child:
        wait_until(file.exists, what="a run after its first batch")
        pipelines.request_pause(connection, events.id)
        change_staged_rows(connection)
        status, asked = pipelines.request_run(connection, events.id, trigger="api")
        assert status is Status.RUNNING
        file.unlink()
        assert child.answer() == [None, Status.RUN_REQUESTED]
    while pipelines.get(connection, events.id).status is Status.RUN_REQUESTED:  # twice if the run had seen the pause
        assert dispatched(settings, claimed(settings))[0] is None
    assert history.get_request(connection, asked).state == "succeeded"
    assert events_are_right(connection)


@pytest.mark.promise("J38")
@pytest.mark.parametrize("fault", ["after_swap=kill@1", "after_commit=kill@4", "before_swap=kill@2"])
def test_a_runner_that_dies_between_the_two_loads_of_a_request_leaves_the_second_to_its_successor(
    connection: Connection, settings: Settings, fault: str
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    asked = paused(connection, settings, events)
    change_staged_rows(connection)
    pipelines.request_run(connection, events.id, trigger="api")
    claim = claimed(settings)
    with forked(lambda: dispatched(settings, claim), fault) as child:
        assert child.ended() == -signal.SIGKILL
    assert history.get_request(connection, asked).state == "running"
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s'")
    wait_until(lambda: queue.expire_leases(connection), what="the end of the expired lease")
    assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
    assert events_are_right(connection)
    request = history.get_request(connection, asked)
    assert request.state == "succeeded"
    stored = pipelines.get(connection, events.id)
    assert stored.fresh_as_of is not None
    assert request.promised_at is not None
    assert stored.fresh_as_of >= request.promised_at


@pytest.mark.promise("J38", "A1")
def test_a_load_that_began_after_its_request_is_taken_over_and_not_repeated(
    connection: Connection, settings: Settings
) -> None:
    events = create_filled(connection, settings, "full", EVENTS, batch_size=BATCH)
    pipelines.request_run(connection, events.id, trigger="api")
    claim = claimed(settings)
    with forked(lambda: dispatched(settings, claim), "after_commit=kill@1") as child:
        assert child.ended() == -signal.SIGKILL
    connection.execute("UPDATE etl.etl_pipelines SET lease_expires_at = clock_timestamp() - interval '1 s'")
    wait_until(lambda: queue.expire_leases(connection), what="the end of the expired lease")
    assert dispatched(settings, claimed(settings)) == [None, Status.IDLE]
    assert sum(one.rows_read for one in history.list_runs(connection, events.id)) == EVENTS
    assert events_are_right(connection)


# -- first loads of incremental pipelines -----------------------------------------------------------------------------


@pytest.mark.promise("J38")
def test_a_resumed_first_load_includes_rows_that_committed_late_below_its_cursor(
    connection: Connection, settings: Settings, database_url: str
) -> None:
    fill_events(connection, EVENTS, modified="(n * interval '1 s' + (now() - '2024-01-01'::timestamptz))")
    events = create_events(connection, settings, "incremental", batch_size=BATCH)
    with connect(database_url, name="tests:late") as late:
        with late.transaction():
            late.execute("INSERT INTO ugc.events VALUES (99, 'late', now())")
            paused(connection, settings, events)
        succeed(connection, settings, events)
    assert events_are_right(connection)


# -- durability -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server of its own, which a test may crash; commits that need not wait reach the disk late."""
    with (
        server_folder("vitrine-tests-") as folder,
        EmbeddedPostgres(folder, port=free_port(), fast=True) as own,
    ):
        with connect(own.url("postgres"), name="tests") as connection:
            connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
            connection.execute("ALTER SYSTEM SET wal_writer_flush_after = '1GB'")
            connection.execute("SELECT pg_reload_conf()")
        yield own


@pytest.fixture(params=["incremental", "full with catch-up"])
def durable(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Settings:
    """A requested run in a new database of that server."""
    name = f"durable_{next(_numbers)}"
    server.ensure_database(name)
    migrate(server.url(name))
    settings = Settings.model_validate({"database_url": server.tcp_url(name), "lease_ttl": "60s"})
    mode = request.param.split()[0]
    with connect(settings.store_url, name="tests") as connection:
        connection.execute("CREATE SCHEMA ugc")
        fields = {"incremental_key": "modified"} if mode == "full" else {}
        events = create_filled(connection, settings, mode, EVENTS, batch_size=BATCH, **fields)
        pipelines.request_run(connection, events.id, trigger="api")
    return settings


def batch_seq(settings: Settings) -> int:
    """Of the only pipeline."""
    with connect(settings.store_url, name="tests") as connection:
        rows = connection.execute("SELECT batch_seq FROM etl.etl_state").fetchall()
    return rows[0]["batch_seq"] if rows else 0


@pytest.mark.promise("J12")
def test_a_run_whose_last_batches_a_crashed_server_has_lost_does_not_succeed(
    server: EmbeddedPostgres, durable: Settings, tmp_path: Path
) -> None:
    claim, file = claimed(durable), tmp_path / "held"
    with forked(lambda: dispatched(durable, claim), f"before_finish=wait:{file}") as child:
        wait_until(file.exists, what="a run that is about to end")
        saved = batch_seq(durable)
        server.restart("immediate")
        assert batch_seq(durable) < saved, "the server lost no batch"
        file.unlink()
        assert child.answer() == ["BATCHES_LOST", Status.RUN_REQUESTED]
    with connect(durable.store_url, name="tests") as connection:
        one = history.get_run(connection, claim.run_id)
        assert (one.status, one.error_code) == (RunStatus.ABANDONED, "BATCHES_LOST")
        assert pipelines.get(connection, claim.pipeline_id).fresh_as_of is None
        assert dispatched(durable, claimed(durable)) == [None, Status.IDLE]
        assert one.request_id is not None
        assert history.get_request(connection, one.request_id).state == "succeeded"
        assert events_are_right(connection)


@pytest.mark.promise("J12")
def test_a_crash_of_the_server_after_a_success_loses_nothing_of_it(server: EmbeddedPostgres, durable: Settings) -> None:
    claim = claimed(durable)
    assert dispatched(durable, claim) == [None, Status.IDLE]
    saved = batch_seq(durable)
    server.restart("immediate")
    assert batch_seq(durable) == saved
    with connect(durable.store_url, name="tests") as connection:
        assert history.get_run(connection, claim.run_id).status is RunStatus.SUCCESS
        assert events_are_right(connection)


@pytest.mark.promise("J12")
def test_a_publish_that_a_crashed_server_has_lost_is_not_taken_for_done(
    connection: Connection, settings: Settings
) -> None:
    pipeline = create_filled(connection, settings, "full", EVENTS)
    pipelines.request_run(connection, pipeline.id, trigger="api")
    with Link(settings.store_url, name="tests:run") as link:
        checkpoint = StoreCheckpoint(claimed(settings), link)
        checkpoint.open("id integer")
        load = checkpoint.open_generation("query", None)
        checkpoint.save(Entry(Step.PUBLISHED), None)
        assert checkpoint.open("id integer").published == load
        connection.execute("UPDATE etl.etl_state SET generation_open = true, batch_seq = batch_seq - 1")
        state = checkpoint.open("id integer")
    assert state.published is None
    assert state.generation is not None
    assert state.generation.number == load.number
