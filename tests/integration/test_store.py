"""The store on a real database: statuses, claims, leases, requests, schedules and migrations."""

import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.helpers import databases
from tests.helpers.chains import complete_wave
from tests.helpers.journal import assert_legal, start
from tests.helpers.processes import environment, free_port
from tests.helpers.waiting import wait_until
from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts, Entry, Position, Reject, Step, Written
from vitrine.core.status import LEASED, NEXT, RETURNS, Event, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import ConfigError, LeaseLost, NotFound, TransientError, TransitionRefused, VitrineError
from vitrine.postgres import Connection, connect
from vitrine.runner.run import Executed, PipelineDispatcher, PipelineExecutor
from vitrine.settings import Settings
from vitrine.store import checkpoint, database, pipelines, queue, schedules
from vitrine.store.checkpoint import StoreCheckpoint
from vitrine.store.database import Link
from vitrine.store.history import get_request, installation_id, list_runs, sink_facts
from vitrine.store.migrate import LOCK, migrate, newest_revision, present_revision, revisions
from vitrine.store.state import load_state

TTL = timedelta(seconds=30)
RUN_STATUS_AFTER = {
    Event.PAUSED: RunStatus.PAUSED,
    Event.FINISH: RunStatus.SUCCESS,
    Event.FINISH_PAUSED: RunStatus.SUCCESS,
    Event.FAIL: RunStatus.FAILED,
    Event.POSTPONE: RunStatus.FAILED,
    Event.RETRY: RunStatus.FAILED,
    Event.RELEASE: RunStatus.ABANDONED,
    Event.RETURN_IDLE: RunStatus.SUCCESS,
    Event.RETURN_PAUSED: RunStatus.SUCCESS,
    Event.RETURN_FAILED: RunStatus.SUCCESS,
}


def create(connection: Connection, name: str = "genres", **fields: Any) -> Pipeline:
    definition = {
        "name": name,
        "source_query": "SELECT id, name, modified FROM content.genre",
        "target_table": f"analytics.{name}",
        "key_columns": ["id"],
    }
    return pipelines.create(connection, Definition.model_validate(definition | fields))


def request(connection: Connection, pipeline: Pipeline) -> Any:
    return pipelines.request_run(connection, pipeline.id, trigger="api")[1]


def claim(connection: Connection, pipeline: Pipeline | None = None, runner: str = "worker-1") -> Claim:
    taken = queue.claim_next(connection, runner=runner, ttl=TTL, only=pipeline.id if pipeline else None)
    assert taken is not None
    return taken


def run(connection: Connection, pipeline: Pipeline) -> Claim:
    request(connection, pipeline)
    return claim(connection, pipeline)


def finish(connection: Connection, held: Claim) -> Status | None:
    return queue.end_run(connection, held, Event.FINISH, RunStatus.SUCCESS)


def kill(connection: Connection, pipeline: Pipeline) -> None:
    """The runner has died and its lease has expired."""
    changed = connection.execute(
        "UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 second'"
        " WHERE id = %s AND lease_token IS NOT NULL",
        [pipeline.id],
    )
    assert changed.rowcount == 1


def row(connection: Connection, pipeline: Pipeline) -> dict[str, Any]:
    found = connection.execute("SELECT * FROM etl.etl_pipelines WHERE id = %s", [pipeline.id]).fetchone()
    assert found is not None
    return found


def status(connection: Connection, pipeline: Pipeline) -> Status:
    return pipelines.get(connection, pipeline.id).status


def history(connection: Connection, pipeline: Pipeline) -> list[tuple[RunStatus, str | None]]:
    return [(one.status, one.error_code) for one in reversed(list_runs(connection, pipeline.id))]


def bring_to(connection: Connection, pipeline: Pipeline, wanted: Status) -> Claim:
    """Reach a status by legal events only; returns the last claim, whose lease may have ended."""
    held = run(connection, pipeline)
    match wanted:
        case Status.IDLE:
            finish(connection, held)
        case Status.RUN_REQUESTED:
            queue.end_run(connection, held, Event.RELEASE, RunStatus.ABANDONED)
        case Status.RUNNING:
            pass
        case Status.PAUSE_REQUESTED:
            pipelines.request_pause(connection, pipeline.id)
        case Status.PAUSED:
            pipelines.request_pause(connection, pipeline.id)
            queue.end_run(connection, held, Event.PAUSED, RunStatus.PAUSED)
        case Status.FAILED:
            queue.end_run(connection, held, Event.FAIL, RunStatus.FAILED)
    assert status(connection, pipeline) is wanted
    return held


# -- the matrix -------------------------------------------------------------------------------------------------------


def apply(connection: Connection, pipeline: Pipeline, held: Claim, event: Event) -> bool:
    """Apply the event with its own function; returns whether it was accepted."""
    match event:
        case Event.RUN:
            pipelines.request_run(connection, pipeline.id, trigger="api")
            return True
        case Event.SCHEDULE:
            schedules.fire_schedules(connection)
            return row(connection, pipeline)["requested_trigger"] == "schedule"
        case Event.CHAIN:
            return schedules.fire_chains(connection) == [pipeline.id]
        case Event.CLAIM:
            return queue.claim_next(connection, runner="w", ttl=TTL, only=pipeline.id) is not None
        case Event.PAUSE:
            try:
                pipelines.request_pause(connection, pipeline.id)
            except TransitionRefused:
                return False
            return True
        case Event.EXPIRE | Event.CRASH_LOOP:
            return [freed["id"] for freed in queue.expire_leases(connection)] == [pipeline.id]
        case _:
            return queue.end_run(connection, held, event, RUN_STATUS_AFTER[event]) is not None


@pytest.mark.promise("D19")
@pytest.mark.parametrize("event", Event)
def test_the_database_applies_every_event_to_every_status_as_the_table_does(
    connection: Connection, event: Event
) -> None:
    start(connection)
    for old in Status:
        pipeline = create(connection, f"p_{old.lower()}", schedule_interval="1h")
        held = bring_to(connection, pipeline, old)
        if event is Event.SCHEDULE:
            due = "UPDATE etl.etl_pipelines SET next_due_at = now() WHERE id = %s"
            connection.execute(due, [pipeline.id])
        if event is Event.CHAIN:
            complete_wave(connection, pipeline)
        if event in (Event.EXPIRE, Event.CRASH_LOOP) and old in LEASED:
            kill(connection, pipeline)
        if event is Event.CRASH_LOOP:
            connection.execute("UPDATE etl.etl_pipelines SET attempt = 3 WHERE id = %s", [pipeline.id])
        if event in RETURNS:
            before_request = event.removeprefix("return_").upper()
            connection.execute("UPDATE etl.etl_pipelines SET returns_to = %s", [before_request])
        before = row(connection, pipeline)
        accepted = apply(connection, pipeline, held, event)
        # a crash loop with a requested pause is an ordinary expiry: the pause is applied
        expected = NEXT.get((old, event))
        if (old, event) == (Status.PAUSE_REQUESTED, Event.CRASH_LOOP):
            expected = NEXT[old, Event.EXPIRE]
        assert accepted is (expected is not None), old
        after = row(connection, pipeline)
        assert after["status"] == (expected or old), old
        assert (after["lease_token"] is not None) == (Status(after["status"]) in LEASED), old
        if expected is None:
            # a due time is consumed even if it starts no run
            consumed = {"next_due_at"} if event is Event.SCHEDULE else set[str]()
            assert {name for name in before if before[name] != after[name]} == consumed, old
    assert_legal(connection)


@pytest.mark.promise("A7")
@pytest.mark.parametrize("event", RUN_STATUS_AFTER)
@pytest.mark.parametrize("old", sorted(LEASED))
def test_only_the_holder_of_the_token_can_end_the_run(connection: Connection, event: Event, old: Status) -> None:
    pipeline = create(connection)
    held = bring_to(connection, pipeline, old)
    before = row(connection, pipeline)
    zombie = replace(held, token=held.token - 1)
    assert queue.end_run(connection, zombie, event, RUN_STATUS_AFTER[event]) is None
    assert row(connection, pipeline) == before
    assert history(connection, pipeline) == [(RunStatus.RUNNING, None)]


# -- constraints ------------------------------------------------------------------------------------------------------


@pytest.mark.promise("D19")
@pytest.mark.parametrize(
    ("old", "statement"),
    [
        (Status.IDLE, "SET status = 'RUNNING'"),
        (Status.IDLE, "SET status = 'PAUSE_REQUESTED'"),
        (Status.IDLE, "SET lease_token = 1"),
        (Status.IDLE, "SET lease_token = 1, lease_owner = 'me', lease_expires_at = now()"),
        (Status.IDLE, "SET status = 'RUNNING', lease_token = 1, lease_owner = 'me'"),
        (Status.IDLE, "SET status = 'RUNNING', lease_token = 1, lease_expires_at = now()"),
        (Status.IDLE, "SET status = 'RUNNING', lease_owner = 'me', lease_expires_at = now()"),
        (Status.RUNNING, "SET status = 'IDLE'"),
        (Status.RUNNING, "SET status = 'PAUSED'"),
        (Status.RUNNING, "SET status = 'FAILED'"),
        (Status.RUNNING, "SET status = 'RUN_REQUESTED'"),
        (Status.RUNNING, "SET lease_token = NULL"),
        (Status.PAUSE_REQUESTED, "SET lease_expires_at = NULL"),
    ],
)
def test_a_lease_that_does_not_match_the_status_is_refused(connection: Connection, old: Status, statement: str) -> None:
    pipeline = create(connection)
    bring_to(connection, pipeline, old)
    with pytest.raises(psycopg.errors.CheckViolation) as refused:
        connection.execute(b"UPDATE etl.etl_pipelines " + statement.encode())
    assert refused.value.diag.constraint_name == "lease_shape"
    assert status(connection, pipeline) is old


@pytest.mark.promise("D19")
@pytest.mark.parametrize(
    "statement",
    [
        b"SET status = 'SLEEPING'",
        b"SET status = 'RUN_REQUESTED', request_id = NULL",
        b"SET rerun = true",
        b"SET name = 'Genres'",
        b"SET batch_size = 0",
        b"SET mode = 'incremental', incremental_key = NULL",
        b"SET attempt = -1",
    ],
)
def test_other_illegal_rows_are_refused_too(connection: Connection, statement: bytes) -> None:
    create(connection)
    with pytest.raises(psycopg.errors.CheckViolation):
        connection.execute(b"UPDATE etl.etl_pipelines " + statement)


def test_a_pipeline_has_one_running_run_at_most(connection: Connection) -> None:
    held = run(connection, create(connection))
    copy = """INSERT INTO etl.etl_runs (pipeline_id, attempt, trigger, kind, config, runner, lease_token)
              SELECT pipeline_id, attempt, trigger, kind, config, runner, lease_token FROM etl.etl_runs WHERE id = %s"""
    with pytest.raises(psycopg.errors.UniqueViolation) as refused:
        connection.execute(copy, [held.run_id])
    assert refused.value.diag.constraint_name == "one_running_per_pipeline"
    finish(connection, held)
    connection.execute(copy, [held.run_id])


@pytest.mark.promise("D18")
def test_one_target_has_one_enabled_pipeline(connection: Connection) -> None:
    create(connection, "a", target_table="analytics.mart")
    with pytest.raises(VitrineError, match="one pipeline per target") as refused:
        create(connection, "b", target_table="analytics.mart")
    assert refused.value.code == "TARGET_TAKEN"
    second = create(connection, "b", target_table="analytics.mart", enabled=False)
    with pytest.raises(VitrineError, match="one pipeline per target"):
        pipelines.update(connection, second.id, second.definition.model_copy(update={"enabled": True}))


# -- claims, tokens, leases -------------------------------------------------------------------------------------------


@pytest.mark.promise("A5")
def test_sixteen_threads_claim_fifty_pipelines_once_each(database_url: str, connection: Connection) -> None:
    for number in range(50):
        request(connection, create(connection, f"p{number}"))
    gate = threading.Barrier(16)

    def take(number: int) -> list[Claim]:
        with connect(database_url, name="tests") as own:
            gate.wait()
            taken: list[Claim] = []
            while (found := queue.claim_next(own, runner=f"worker-{number}", ttl=TTL)) is not None:
                taken.append(found)
            return taken

    with ThreadPoolExecutor(16) as threads:
        claimed = [found for taken in threads.map(take, range(16)) for found in taken]
    assert len(claimed) == 50
    assert len({found.pipeline_id for found in claimed}) == 50
    assert len({found.token for found in claimed}) == 50
    assert len({found.run_id for found in claimed}) == 50


@pytest.mark.promise("A5")
def test_a_pipeline_that_is_being_claimed_is_skipped_without_waiting(database_url: str, connection: Connection) -> None:
    first, second = create(connection, "first"), create(connection, "second")
    request(connection, first)
    request(connection, second)
    with connect(database_url, name="tests") as other:
        other.execute("SET lock_timeout = '1s'")
        with connection.transaction():
            assert claim(connection).pipeline_id == first.id
            assert claim(other).pipeline_id == second.id
            assert queue.claim_next(other, runner="w", ttl=TTL) is None


def test_the_oldest_request_is_claimed_first(connection: Connection) -> None:
    made = [create(connection, name) for name in ("c", "a", "b")]
    for pipeline in made:
        request(connection, pipeline)
    assert [claim(connection).pipeline_id for _ in made] == [pipeline.id for pipeline in made]


def test_a_token_is_never_issued_again_after_delete_and_recreate(connection: Connection) -> None:
    tokens: list[int] = []
    for _ in range(3):
        pipeline = create(connection)
        held = run(connection, pipeline)
        tokens.append(held.token)
        finish(connection, held)
        pipelines.delete(connection, pipeline.id)
    assert tokens == sorted(set(tokens))


@pytest.mark.promise("D12")
def test_a_claim_captures_the_configuration_it_runs_with(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    pipelines.update(connection, pipeline.id, pipeline.definition.model_copy(update={"batch_size": 7}))
    captured = connection.execute("SELECT config FROM etl.etl_runs WHERE id = %s", [held.run_id]).fetchone()
    assert held.definition == pipeline.definition
    assert captured is not None
    assert Definition.model_validate(captured["config"]) == pipeline.definition


def test_a_heartbeat_extends_the_lease_and_returns_the_status(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    before = row(connection, pipeline)["lease_expires_at"]
    assert queue.heartbeat(connection, held, 2 * TTL) is Status.RUNNING
    assert row(connection, pipeline)["lease_expires_at"] > before + TTL / 2
    pipelines.request_pause(connection, pipeline.id)
    assert queue.heartbeat(connection, held, TTL) is Status.PAUSE_REQUESTED


@pytest.mark.promise("A11")
def test_an_expired_lease_never_becomes_valid_again(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    kill(connection, pipeline)
    before = row(connection, pipeline)
    assert queue.heartbeat(connection, held, TTL) is None
    assert row(connection, pipeline) == before
    queue.expire_leases(connection)
    second = claim(connection, pipeline)
    assert (second.token > held.token, second.run_id != held.run_id) == (True, True)
    assert queue.heartbeat(connection, held, TTL) is None
    assert queue.heartbeat(connection, second, TTL) is Status.RUNNING


def checkpoint_of(store: Link, held: Claim, *, full: bool = False) -> StoreCheckpoint:
    """The opened checkpoint of a claim; with `full`, a load has begun."""
    checkpoint = StoreCheckpoint(held, store)
    checkpoint.open("id uuid")
    if full:
        checkpoint.open_generation("fingerprint", None)
    return checkpoint


ZOMBIE = Position(("zombie",))
SAVED = Entry(Step.CHECKPOINT, ("zombie",), ZOMBIE, read=1)
STAGED = Entry(Step.STAGED, ("zombie",), ZOMBIE, read=1)
PUBLISHED = Entry(Step.PUBLISHED, written=Written(Counts(written=1)))


@pytest.fixture
def store(database_url: str) -> Iterator[Link]:
    with Link(database_url, name="tests") as link:
        yield link


@pytest.mark.promise("A7")
@pytest.mark.parametrize(("full", "entry"), [(False, SAVED), (True, STAGED), (True, PUBLISHED)])
def test_a_zombie_can_save_nothing_and_its_rows_are_rolled_back(
    connection: Connection, store: Link, full: bool, entry: Entry
) -> None:
    pipeline = create(connection)
    zombie = run(connection, pipeline)
    stale = checkpoint_of(store, zombie, full=full)
    before = load_state(connection, pipeline.id)
    connection.execute("CREATE TABLE analytics.written (id integer)")
    kill(connection, pipeline)
    queue.expire_leases(connection)
    claim(connection, pipeline, "worker-2")

    def write_a_batch() -> None:
        with connection.transaction():
            connection.execute("INSERT INTO analytics.written VALUES (1)")
            stale.save(entry, connection)

    with pytest.raises(LeaseLost):
        write_a_batch()
    assert connection.execute("SELECT * FROM analytics.written").fetchall() == []
    with pytest.raises(LeaseLost):
        stale.save(entry, None)
    with pytest.raises(LeaseLost):
        stale.open("id uuid")
    with pytest.raises(LeaseLost):
        stale.open_generation("fingerprint", None)
    assert load_state(connection, pipeline.id) == before
    assert finish(connection, zombie) is None
    assert status(connection, pipeline) is Status.RUNNING


@pytest.mark.promise("A17")
def test_no_runner_takes_a_pipeline_over_while_its_batch_commits(
    database_url: str, connection: Connection, store: Link
) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    checkpoint = checkpoint_of(store, held)
    with connect(database_url, name="tests") as other:
        other.execute("SET lock_timeout = '1s'")
        kill(other, pipeline)
        with connection.transaction():
            checkpoint.save(Entry(Step.CHECKPOINT, ("7",), Position(("7",)), read=1), connection)
            assert queue.expire_leases(other) == []
        assert len(queue.expire_leases(other)) == 1
        assert load_state(other, pipeline.id).position == Position(("7",))


@pytest.mark.promise("A22")
def test_every_unit_that_begins_has_a_higher_version_than_all_before_it(connection: Connection, store: Link) -> None:
    pipeline = create(connection)
    first = checkpoint_of(store, run(connection, pipeline))
    unsaved, repeated = first.stamp(), first.stamp()
    assert (unsaved.token, unsaved.sequence) == (repeated.token, repeated.sequence)
    first.save(Entry(Step.CHECKPOINT, ("7",), Position(("7",)), read=1), None)
    saved = first.stamp()
    assert saved.sequence == repeated.sequence + 1
    kill(connection, pipeline)
    queue.expire_leases(connection)
    after_takeover = checkpoint_of(store, claim(connection, pipeline, "worker-2")).stamp()
    assert after_takeover.sequence == saved.sequence
    versions = [one.version for one in (unsaved, repeated, saved, after_takeover)]
    assert versions == sorted(set(versions))


# -- expiry -----------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A6")
def test_a_valid_lease_is_not_changed(connection: Connection) -> None:
    pipeline = create(connection)
    run(connection, pipeline)
    before = row(connection, pipeline)
    assert queue.expire_leases(connection) == []
    assert row(connection, pipeline) == before


@pytest.mark.promise("A1")
def test_an_expired_lease_returns_to_the_queue_under_the_same_request(connection: Connection) -> None:
    pipeline = create(connection)
    asked = request(connection, pipeline)
    claim(connection, pipeline)
    kill(connection, pipeline)
    queue.expire_leases(connection)
    after = pipelines.get(connection, pipeline.id)
    assert (after.status, after.request_id, after.attempt) == (Status.RUN_REQUESTED, asked, 1)
    assert history(connection, pipeline) == [(RunStatus.ABANDONED, "LEASE_EXPIRED")]
    second = claim(connection, pipeline)
    assert (second.attempt, second.taken_over) == (2, True)
    finish(connection, second)
    assert not run(connection, pipeline).taken_over


def test_the_lease_of_a_disabled_pipeline_expires_too(connection: Connection) -> None:
    pipeline = create(connection)
    run(connection, pipeline)
    connection.execute("UPDATE etl.etl_pipelines SET enabled = false")
    kill(connection, pipeline)
    queue.expire_leases(connection)
    assert status(connection, pipeline) is Status.RUN_REQUESTED


@pytest.mark.promise("D4")
def test_a_runner_that_dies_after_a_pause_leaves_a_paused_pipeline(connection: Connection) -> None:
    pipeline = create(connection)
    bring_to(connection, pipeline, Status.PAUSE_REQUESTED)
    kill(connection, pipeline)
    queue.expire_leases(connection)
    assert status(connection, pipeline) is Status.PAUSED
    assert history(connection, pipeline) == [(RunStatus.ABANDONED, "LEASE_EXPIRED")]
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None


@pytest.mark.promise("A13")
def test_three_crashes_without_progress_are_a_crash_loop(connection: Connection) -> None:
    start(connection)
    pipeline = create(connection)
    asked = request(connection, pipeline)
    for _ in range(3):
        claim(connection, pipeline)
        kill(connection, pipeline)
        queue.expire_leases(connection)
    assert status(connection, pipeline) is Status.FAILED
    expired = (RunStatus.ABANDONED, "LEASE_EXPIRED")
    assert history(connection, pipeline) == [expired, expired, (RunStatus.ABANDONED, "CRASH_LOOP")]
    assert get_request(connection, asked).state == "failed"
    assert request(connection, pipeline) != asked
    assert claim(connection, pipeline).attempt == 1
    assert_legal(connection)


@pytest.mark.promise("A13")
def test_progress_of_one_batch_resets_the_count_of_crashes(connection: Connection, store: Link) -> None:
    pipeline = create(connection)
    request(connection, pipeline)
    for attempt in (1, 2, 3):
        held = claim(connection, pipeline)
        assert held.attempt == attempt
        if attempt == 3:
            entry = Entry(Step.CHECKPOINT, ("1",), Position(("1",)), read=1)
            checkpoint_of(store, held).save(entry, None)
        kill(connection, pipeline)
        queue.expire_leases(connection)
    assert (status(connection, pipeline), claim(connection, pipeline).attempt) == (Status.RUN_REQUESTED, 1)


@pytest.mark.promise("A18")
def test_the_sessions_of_an_expired_lease_are_terminated(database_url: str, connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    with connect(database_url, name=held.session) as stuck:
        kill(connection, pipeline)
        queue.expire_leases(connection)
        with pytest.raises(psycopg.errors.AdminShutdown):
            stuck.execute("SELECT 1")


# -- attempts ---------------------------------------------------------------------------------------------------------


@pytest.mark.promise("A14")
def test_a_release_costs_no_attempt(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    queue.end_run(connection, held, Event.RELEASE, RunStatus.ABANDONED)
    again = claim(connection, pipeline)
    assert (held.attempt, again.attempt) == (1, 1)


def test_a_retry_is_not_claimed_before_its_time(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    queue.end_run(connection, held, Event.RETRY, RunStatus.FAILED, attempt=1, delay=timedelta(hours=1))
    assert status(connection, pipeline) is Status.RUN_REQUESTED
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None
    connection.execute("UPDATE etl.etl_pipelines SET next_attempt_at = now() - interval '1 second'")
    assert claim(connection, pipeline).attempt == 2


@pytest.mark.promise("D16")
def test_a_failed_pipeline_starts_again_with_attempt_one(connection: Connection) -> None:
    pipeline = create(connection)
    bring_to(connection, pipeline, Status.FAILED)
    assert run(connection, pipeline).attempt == 1


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_keeps_its_id_until_its_run_starts(connection: Connection) -> None:
    pipeline = create(connection)
    first = request(connection, pipeline)
    assert request(connection, pipeline) == first
    assert get_request(connection, first).state == "pending"
    held = claim(connection, pipeline)
    assert get_request(connection, first).state == "running"
    finish(connection, held)
    done = get_request(connection, first)
    assert (done.state, done.run and done.run.id) == ("succeeded", held.run_id)
    assert request(connection, pipeline) != first


@pytest.mark.promise("D9")
def test_two_requests_at_once_get_one_id(database_url: str, connection: Connection) -> None:
    pipeline = create(connection)
    gate = threading.Barrier(8)

    def ask(_: int) -> Any:
        with connect(database_url, name="tests") as own:
            gate.wait()
            return request(own, pipeline)

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    claim(connection, pipeline)
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None


@pytest.mark.promise("D8")
def test_a_request_while_running_is_one_more_run_under_an_id_of_its_own(connection: Connection) -> None:
    start(connection)
    pipeline = create(connection)
    first = request(connection, pipeline)
    held = claim(connection, pipeline)
    second = request(connection, pipeline)
    assert second != first
    assert request(connection, pipeline) == second
    assert get_request(connection, second).state == "pending"
    assert finish(connection, held) is Status.RUN_REQUESTED
    assert get_request(connection, first).state == "succeeded"
    again = claim(connection, pipeline)
    assert get_request(connection, second).state == "running"
    assert finish(connection, again) is Status.IDLE
    assert get_request(connection, second).state == "succeeded"
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None
    assert_legal(connection)


@pytest.mark.promise("D8")
def test_a_resumed_pipeline_continues_its_request(connection: Connection) -> None:
    pipeline = create(connection)
    asked = request(connection, pipeline)
    held = claim(connection, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    queue.end_run(connection, held, Event.PAUSED, RunStatus.PAUSED)
    assert get_request(connection, asked).state == "paused"
    assert request(connection, pipeline) == asked
    finish(connection, claim(connection, pipeline))
    assert get_request(connection, asked).state == "succeeded"


def test_a_requested_rerun_survives_a_pause_and_a_success(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    second = request(connection, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    assert finish(connection, held) is Status.PAUSED
    assert get_request(connection, second).state == "paused"
    assert request(connection, pipeline) == second
    assert finish(connection, claim(connection, pipeline)) is Status.IDLE


@pytest.mark.promise("D7")
def test_a_withdrawn_pause_leaves_the_same_run_running(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    pipelines.request_pause(connection, pipeline.id)
    _, resumed = pipelines.request_run(connection, pipeline.id, trigger="api", resume=True)
    assert resumed == pipelines.get(connection, pipeline.id).request_id
    assert queue.heartbeat(connection, held, TTL) is Status.RUNNING
    assert finish(connection, held) is Status.IDLE


@pytest.mark.promise("D7")
def test_a_pause_withdrawn_after_the_run_has_ended_for_it_costs_only_a_new_claim(
    settings: Settings, connection: Connection
) -> None:
    class Paused(PipelineExecutor):
        def execute(self, *_: object, **__: object) -> Executed:
            pipelines.request_pause(connection, pipeline.id)
            request(connection, pipeline)
            return Executed(Outcome.PAUSED, None, Counts(), 1, 0.0)

    pipeline = create(connection)
    dispatcher = PipelineDispatcher(settings, Paused(settings, threading.Event()))
    _, left = dispatcher.dispatch(run(connection, pipeline))
    assert left is Status.RUN_REQUESTED
    assert claim(connection, pipeline).attempt == 1


def test_an_unknown_request_or_pipeline_is_not_found(connection: Connection) -> None:
    for key in ("unknown", "no\0body", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(NotFound):
            pipelines.get(connection, key)
    pipeline = create(connection)
    with pytest.raises(NotFound):
        get_request(connection, pipeline.id)


# -- schedules --------------------------------------------------------------------------------------------------------


def make_due(connection: Connection, since: str = "1 second") -> None:
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now() - %s::interval", [since])


def test_a_new_schedule_is_due_one_interval_from_now(connection: Connection) -> None:
    create(connection, schedule_interval="1h")
    assert schedules.fire_schedules(connection) == []
    make_due(connection)
    assert schedules.fire_schedules(connection) == ["genres"]


@pytest.mark.promise("S1")
def test_two_runners_at_once_fire_a_due_time_once(database_url: str, connection: Connection) -> None:
    create(connection, schedule_interval="1h")
    make_due(connection)
    with connect(database_url, name="tests") as other:
        other.execute("SET lock_timeout = '1s'")
        with connection.transaction():
            assert schedules.fire_schedules(connection) == ["genres"]
            assert schedules.fire_schedules(other) == []
        assert schedules.fire_schedules(other) == []


@pytest.mark.promise("S1")
def test_eight_threads_fire_twenty_due_times_once_each(database_url: str, connection: Connection) -> None:
    for number in range(20):
        create(connection, f"p{number}", schedule_interval="1h")
    make_due(connection)
    gate = threading.Barrier(8)

    def fire(_: int) -> list[str]:
        with connect(database_url, name="tests") as own:
            gate.wait()
            return schedules.fire_schedules(own)

    with ThreadPoolExecutor(8) as threads:
        fired = [name for names in threads.map(fire, range(8)) for name in names]
    assert sorted(fired) == sorted(f"p{number}" for number in range(20))


def test_missed_due_times_cause_one_run(connection: Connection) -> None:
    pipeline = create(connection, schedule_interval="30s")
    make_due(connection, "1 day")
    assert schedules.fire_schedules(connection) == ["genres"]
    finish(connection, claim(connection, pipeline))
    assert schedules.fire_schedules(connection) == []
    late = connection.execute("SELECT next_due_at > now() AS ahead FROM etl.etl_pipelines").fetchone()
    assert late == {"ahead": True}


def test_the_next_due_time_is_one_interval_after_the_last(connection: Connection) -> None:
    pipeline = create(connection, schedule_interval="1h")
    make_due(connection, "10 minutes")
    before = row(connection, pipeline)["next_due_at"]
    schedules.fire_schedules(connection)
    assert row(connection, pipeline)["next_due_at"] == before + timedelta(hours=1)


def test_a_disabled_pipeline_is_never_due(connection: Connection) -> None:
    create(connection, schedule_interval="1h", enabled=False)
    make_due(connection)
    assert schedules.fire_schedules(connection) == []


@pytest.mark.promise("D1")
def test_a_due_time_does_not_run_a_paused_pipeline(connection: Connection) -> None:
    pipeline = create(connection, schedule_interval="1h")
    pipelines.request_pause(connection, pipeline.id)
    make_due(connection)
    assert schedules.fire_schedules(connection) == []
    assert status(connection, pipeline) is Status.PAUSED


# -- enabled ----------------------------------------------------------------------------------------------------------


def enable(connection: Connection, pipeline: Pipeline, yes: bool) -> Status:
    definition = pipeline.definition.model_copy(update={"enabled": yes})
    return pipelines.update(connection, pipeline.id, definition).status


@pytest.mark.promise("D14")
@pytest.mark.parametrize("old", Status)
def test_disabling_a_pipeline_is_a_pause_only_while_it_runs(connection: Connection, old: Status) -> None:
    start(connection)
    pipeline = create(connection)
    bring_to(connection, pipeline, old)
    before = row(connection, pipeline)
    assert enable(connection, pipeline, False) is (NEXT[old, Event.PAUSE] if old is Status.RUNNING else old)
    after = row(connection, pipeline)
    changed = {name for name in before if before[name] != after[name]}
    moved = {"status", "status_since"} if old is Status.RUNNING else set[str]()
    assert changed == {"enabled", "config_version", "updated_at"} | moved
    assert after["config_version"] == before["config_version"] + 1
    assert_legal(connection)


def test_disabling_a_pipeline_that_is_being_claimed_pauses_its_run(database_url: str, connection: Connection) -> None:
    pipeline = create(connection)
    request(connection, pipeline)
    with (
        connect(database_url, name="tests:other") as other,
        connect(database_url, name="tests:observer") as observer,
        ThreadPoolExecutor(1) as thread,
    ):
        with connection.transaction():
            held = claim(connection, pipeline)
            disabling = thread.submit(enable, other, pipeline, False)
            waiting = "SELECT FROM pg_stat_activity WHERE application_name = 'tests:other' AND wait_event_type = 'Lock'"
            wait_until(lambda: observer.execute(waiting).fetchall(), what="an update that waits for the claim")
        assert disabling.result(timeout=30) is Status.PAUSE_REQUESTED
    assert queue.end_run(connection, held, Event.PAUSED, RunStatus.PAUSED) is Status.PAUSED
    assert pipelines.get(connection, pipeline.id).definition.enabled is False


def test_disabling_a_running_pipeline_pauses_it(connection: Connection) -> None:
    start(connection)
    pipeline = create(connection)
    held = run(connection, pipeline)
    assert enable(connection, pipeline, False) is Status.PAUSE_REQUESTED
    assert queue.heartbeat(connection, held, TTL) is Status.PAUSE_REQUESTED
    assert queue.end_run(connection, held, Event.PAUSED, RunStatus.PAUSED) is Status.PAUSED
    assert_legal(connection)


@pytest.mark.promise("D14")
def test_a_disabled_pipeline_keeps_its_request_but_is_not_claimed(connection: Connection) -> None:
    pipeline = create(connection)
    asked = request(connection, pipeline)
    assert enable(connection, pipeline, False) is Status.RUN_REQUESTED
    assert queue.claim_next(connection, runner="w", ttl=TTL) is None
    with pytest.raises(TransitionRefused, match="disabled"):
        request(connection, pipeline)
    assert enable(connection, pipeline, True) is Status.RUN_REQUESTED
    claim(connection, pipeline)
    assert pipelines.get(connection, pipeline.id).request_id == asked


@pytest.mark.promise("D10")
def test_a_pipeline_that_a_runner_holds_is_not_deleted(connection: Connection) -> None:
    pipeline = create(connection)
    held = run(connection, pipeline)
    with pytest.raises(TransitionRefused, match="is being run by worker-1"):
        pipelines.delete(connection, pipeline.id)
    finish(connection, held)
    pipelines.delete(connection, pipeline.id)
    assert connection.execute("SELECT FROM etl.etl_runs").fetchall() == []


# -- quarantine -------------------------------------------------------------------------------------------------------


def rejected(key: str, reason: str, column: str | None = "name") -> Reject:
    return Reject(key, column, "22001", reason, f'{{"id": "{key}", "reason": "{reason}"}}')


def test_the_newest_reject_of_a_key_replaces_the_older_ones(connection: Connection) -> None:
    held = run(connection, create(connection))
    checkpoint.store_rejects(connection, held, [rejected("1", "older"), rejected("2", "other", None)], [])
    batch = [rejected("3", "first"), rejected("1", "newer"), rejected("3", "second"), rejected("1", "newest")]
    checkpoint.store_rejects(connection, held, batch, [])
    stored = checkpoint.list_open(connection, held.pipeline_id)
    assert [(one["key"], one["column_name"], one["reason"], one["row"]["reason"]) for one in stored] == [
        ("1", "name", "newest", "newest"),
        ("2", None, "other", "other"),
        ("3", "name", "second", "second"),
    ]


def test_a_key_that_is_written_leaves_the_quarantine(connection: Connection) -> None:
    held = run(connection, create(connection))
    checkpoint.store_rejects(connection, held, [rejected("1", "a"), rejected("2", "b")], [])
    checkpoint.store_rejects(connection, held, [], ["1", "9"])
    assert sink_facts(connection, held.pipeline_id).open_rejects == ["2"]
    checkpoint.store_rejects(connection, held, [rejected("1", "rejected again")], [])
    assert [one["key"] for one in checkpoint.list_open(connection, held.pipeline_id)] == ["2", "1"]


def test_a_thousand_rejects_are_stored_by_one_statement(connection: Connection) -> None:
    held = run(connection, create(connection))
    connection.execute(
        """
        CREATE TABLE public.inserts (id integer);
        CREATE FUNCTION public.count_inserts() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.inserts VALUES (1); RETURN NULL; END $$;
        CREATE TRIGGER count_inserts AFTER INSERT ON etl.etl_rejects
            FOR EACH STATEMENT EXECUTE FUNCTION public.count_inserts();
        """
    )
    checkpoint.store_rejects(connection, held, [rejected(str(number), "no") for number in range(1000)], [])
    assert len(sink_facts(connection, held.pipeline_id).open_rejects) == 1000
    assert len(connection.execute("SELECT FROM public.inserts").fetchall()) == 1


# -- migrations and statements ----------------------------------------------------------------------------------------


def test_migrating_twice_changes_nothing(database_url: str, connection: Connection) -> None:
    pipeline = create(connection)
    assert migrate(database_url) == migrate(database_url)
    assert pipelines.get(connection, pipeline.id) == pipeline


@pytest.fixture
def empty_url(postgres: EmbeddedPostgres) -> Iterator[str]:
    """A database without a store."""
    with databases.copy_of(postgres, "template1", "without_a_store") as name:
        yield postgres.tcp_url(name)


@pytest.fixture
def url_at_0006(empty_url: str) -> str:
    """A database at migration 0006, the last one before connectors."""
    assert migrate(empty_url, to="0006") == "0006"
    return empty_url


ROWS_AT_0006 = """
    INSERT INTO etl.etl_pipelines (name, type, source_type, source_query, target_table, mode, incremental_key,
                                   incremental_id_key, key_columns, batch_size, options)
    VALUES ('auto', 'SQL', 'postgres', 'SELECT id, modified FROM ugc.ratings', 'analytics.ratings', 'incremental',
            'modified', 'id', '{id}', 5000, '{"on_reject": "quarantine"}'),
           ('small', 'SQL', 'postgres', 'SELECT id FROM content.genre', 'analytics.genres', 'full', NULL, NULL,
            '{id}', 100, '{}');
    INSERT INTO etl.etl_pipeline_tasks (pipeline_id, order_index, task_type, body)
    SELECT id, 1, 'SQL', source_query FROM etl.etl_pipelines WHERE name = 'small';
    INSERT INTO etl.etl_state (pipeline_id, cursor, cursor_fingerprint, generation, batch_seq)
    SELECT id, '{"2024-01-01 00:00:00+00",7}', 'modified timestamptz, id integer', 3, 9
      FROM etl.etl_pipelines WHERE name = 'auto';
    INSERT INTO etl.etl_runs (pipeline_id, request_id, attempt, trigger, kind, config, runner, lease_token, status,
                              finished_at, rows_read, lane)
    SELECT id, gen_random_uuid(), 1, 'api', 'incremental', '{}', 'runner-1', 1, 'SUCCESS', now(), 42, 'copy'
      FROM etl.etl_pipelines WHERE name = 'auto';
    INSERT INTO etl.etl_rejects (pipeline_id, run_id, key, column_name, sqlstate, reason, row)
    SELECT pipeline_id, id, '7', 'note', '22001', 'too long', '{"id": 7}' FROM etl.etl_runs;
"""


def test_rows_stored_at_migration_0006_are_readable_after_0007(url_at_0006: str) -> None:
    with connect(url_at_0006, name="tests") as old:
        old.execute(ROWS_AT_0006)
        assert migrate(url_at_0006) > "0006"
        auto, small = pipelines.get(old, "auto"), pipelines.get(old, "small")
        assert (auto.definition.batch_size, auto.definition.options.on_reject) == ("auto", "quarantine")
        assert (small.definition.batch_size, len(small.definition.tasks)) == (100, 1)
        state = load_state(old, auto.id)
        assert state.position == Position(("2024-01-01 00:00:00+00", "7"))
        assert (state.cursor_types, state.generation, state.batch_seq) == ("modified timestamptz, id integer", 3, 9)
        assert (state.identity, state.facts, state.generation_position) == (None, {}, None)
        (one,) = list_runs(old, auto.id)
        assert (one.status, one.rows_read, one.lane) == (RunStatus.SUCCESS, 42, "copy")
        (reject,) = checkpoint.list_open(old, auto.id)
        assert (reject["key"], reject["code"], reject["row"]) == ("7", "22001", {"id": 7})
        assert installation_id(old)
        held = run(old, auto)
        assert (held.definition, held.attempt) == (auto.definition, 1)


def test_a_batch_size_of_5000_of_an_older_release_is_read_as_auto_and_an_explicit_one_stays(
    connection: Connection,
) -> None:
    # releases before migration 0007 stored 5000 for a definition without a batch_size
    older = create(connection)
    assert older.definition.batch_size == "auto"
    stored = row(connection, older)
    assert (stored["batch_size"], stored["batch_size_exact"]) == (5000, False)
    explicit = create(connection, "explicit", batch_size=5000)
    assert pipelines.get(connection, explicit.id).definition.batch_size == 5000
    assert run(connection, explicit).definition.batch_size == 5000
    assert run(connection, older).definition.batch_size == "auto"
    auto = explicit.definition.model_copy(update={"batch_size": "auto"})
    assert pipelines.update(connection, explicit.id, auto).definition.batch_size == "auto"


def test_two_processes_may_migrate_a_new_database_at_once(empty_url: str) -> None:
    arguments = [sys.executable, "-m", "vitrine", "migrate"]
    processes = [
        subprocess.Popen(
            arguments, env=environment(empty_url), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs == [f"The store is at revision {newest_revision()}.\n"] * 2
    with connect(empty_url, name="tests") as new:
        create(new)


WAITING = """
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def test_a_migration_that_had_to_wait_sees_what_the_other_one_has_done(empty_url: str) -> None:
    migrate(empty_url, to="0006")
    with connect(empty_url, name="tests") as other, ThreadPoolExecutor(1) as threads:
        databases.set_for_database(other, default_transaction_isolation="serializable")
        with other.transaction():
            other.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
            waiting = threads.submit(migrate, empty_url)
            wait_until(lambda: other.execute(WAITING).rowcount == 1)
            other.execute("UPDATE etl.alembic_version SET version_num = %s", [newest_revision()])
        assert waiting.result() == newest_revision()
        # it had nothing left to do
        assert present_column(other, "etl.etl_pipelines", "tags") is False


def present_column(connection: Connection, table: str, name: str) -> bool:
    found = connection.execute(
        "SELECT FROM pg_attribute WHERE attrelid = %s::regclass AND attname = %s", [table, name]
    ).fetchone()
    return found is not None


CATALOG = """
    SELECT 'relation', c.relname::text, concat_ws(' ', c.relkind, c.relacl, obj_description(c.oid))
      FROM pg_class c WHERE c.relnamespace = 'etl'::regnamespace
    UNION ALL
    SELECT 'column', c.relname || '.' || a.attname,
           concat_ws(' ', a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                     pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum))
      FROM pg_class c
      JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
      LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
     WHERE c.relnamespace = 'etl'::regnamespace
    UNION ALL
    SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'etl'
    UNION ALL
    SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
      FROM pg_constraint WHERE connamespace = 'etl'::regnamespace
    UNION ALL
    SELECT 'function', oid::regprocedure::text, pg_get_functiondef(oid)
      FROM pg_proc WHERE pronamespace = 'etl'::regnamespace
    UNION ALL
    SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL
    SELECT 'revision', version_num, NULL FROM etl.alembic_version
"""


def catalog(url: str) -> set[tuple[str, str, str | None]]:
    """Everything in the schema of the store, with the revision, but no rows."""
    with psycopg.connect(url) as connection:
        return {(kind, name, text) for kind, name, text in connection.execute(CATALOG)}


@pytest.fixture(scope="module")
def fresh(postgres: EmbeddedPostgres) -> set[tuple[str, str, str | None]]:
    """What a new store has, which was created at once."""
    with databases.copy_of(postgres, "template1", "fresh_store") as name:
        migrate(postgres.tcp_url(name))
        return catalog(postgres.tcp_url(name))


@pytest.mark.parametrize("older", revisions()[:0:-1])
def test_an_upgraded_store_has_the_schema_of_a_new_one(
    empty_url: str, fresh: set[tuple[str, str, str | None]], older: str
) -> None:
    assert migrate(empty_url, to=older) == older
    assert ("revision", older, None) in catalog(empty_url)
    assert migrate(empty_url) == newest_revision()
    assert catalog(empty_url) == fresh


# the statements of Alembic, with which earlier releases kept the revision
TABLE_OF_ALEMBIC = """
    DROP TABLE etl.alembic_version;
    CREATE TABLE etl.alembic_version (
        version_num VARCHAR(32) NOT NULL,
        CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
    );
    INSERT INTO etl.alembic_version (version_num) VALUES ('0006') RETURNING etl.alembic_version.version_num
"""


def test_the_revision_that_an_earlier_release_has_recorded_is_continued(
    url_at_0006: str, fresh: set[tuple[str, str, str | None]]
) -> None:
    with connect(url_at_0006, name="tests") as old:
        old.execute(TABLE_OF_ALEMBIC)
        assert present_revision(old) == "0006"
        assert migrate(url_at_0006) == present_revision(old) == newest_revision()
    assert catalog(url_at_0006) == fresh


def test_a_failed_migration_of_a_new_database_leaves_nothing_behind(empty_url: str) -> None:
    with connect(empty_url, name="tests") as own:
        # a table of the same name stands in the way of one of the last migrations
        own.execute("CREATE SCHEMA etl; CREATE TABLE etl.etl_sessions (mine text)")
        with pytest.raises(ConfigError, match=r'cannot migrate: relation "etl_sessions" already exists') as refused:
            migrate(empty_url)
        assert refused.value.code == "MIGRATION"
        left = own.execute("SELECT relname FROM pg_class WHERE relnamespace = 'etl'::regnamespace AND relkind = 'r'")
        assert left.fetchall() == [{"relname": "etl_sessions"}]
        assert own.execute("SELECT to_regnamespace('analytics') AS found").fetchone() == {"found": None}
        own.execute("DROP TABLE etl.etl_sessions")
        assert migrate(empty_url) == newest_revision()


DISABLED_BUT_RUNNING = """
    INSERT INTO etl.etl_pipelines (name, target_table, enabled, status, lease_token, lease_owner, lease_expires_at)
    VALUES ('old', 'analytics.genres', false, 'RUNNING', 1, 'runner-1', now()),
           ('new', 'analytics.genres', true, 'IDLE', NULL, NULL, NULL)
"""


def test_a_failed_upgrade_leaves_the_store_as_it_was(url_at_0006: str) -> None:
    before = catalog(url_at_0006)
    with connect(url_at_0006, name="tests") as old:
        old.execute(DISABLED_BUT_RUNNING)
        with pytest.raises(ConfigError, match="cannot migrate: ") as refused:
            migrate(url_at_0006)
        assert refused.value.code == "MIGRATION"
        assert "pipeline old is disabled but still runs" in str(refused.value.__cause__)
        assert catalog(url_at_0006) == before
        old.execute("DELETE FROM etl.etl_pipelines WHERE name = 'old'")
        assert migrate(url_at_0006) == newest_revision()


def test_a_store_of_a_newer_release_is_refused_and_not_changed(database_url: str, connection: Connection) -> None:
    connection.execute("UPDATE etl.alembic_version SET version_num = '9999'")
    before = catalog(database_url)
    with pytest.raises(ConfigError) as refused:
        migrate(database_url)
    assert refused.value.code == "MIGRATION"
    assert str(refused.value) == (
        "cannot migrate: the store is at revision 9999, which this release does not know: its newest is"
        f" {newest_revision()}; install the release that has migrated the store"
    )
    assert catalog(database_url) == before


def test_an_older_revision_than_that_of_the_store_changes_nothing(database_url: str) -> None:
    before = catalog(database_url)
    assert migrate(database_url, to="0006") == newest_revision()
    assert catalog(database_url) == before


def test_an_account_without_rights_learns_what_the_owner_of_the_database_must_run(
    empty_url: str,
) -> None:
    with connect(empty_url, name="tests") as admin:
        admin.execute("CREATE ROLE no_owner LOGIN")
        try:
            with pytest.raises(ConfigError, match="CREATE SCHEMA etl AUTHORIZATION <this account>") as refused:
                migrate(empty_url.replace("postgres@", "no_owner@"))
            assert refused.value.code == "DATABASE_RIGHTS"
            admin.execute("CREATE SCHEMA etl AUTHORIZATION no_owner; CREATE SCHEMA analytics AUTHORIZATION no_owner")
            assert migrate(empty_url.replace("postgres@", "no_owner@")) == newest_revision()
        finally:
            admin.execute("DROP OWNED BY no_owner CASCADE; DROP ROLE no_owner")


def test_a_server_that_is_down_is_a_transient_error() -> None:
    with pytest.raises(TransientError, match=r"cannot migrate: .*; start the server") as refused:
        migrate(f"postgresql://vitrine@127.0.0.1:{free_port()}/cinema")
    assert refused.value.code == "DATABASE_DOWN"


def test_a_database_without_an_encoding_is_migrated_twice(postgres: EmbeddedPostgres) -> None:
    with databases.database(postgres, encoding="SQL_ASCII") as url:
        assert migrate(url) == migrate(url) == newest_revision()


def test_the_error_of_a_store_that_was_never_migrated_names_the_remedy(postgres: EmbeddedPostgres) -> None:
    with connect(postgres.url("postgres"), name="tests") as bare, pytest.raises(VitrineError) as refused:
        pipelines.get(bare, "genres")
    assert refused.value.code == "NOT_MIGRATED"
    assert "vitrine migrate" in str(refused.value)


@pytest.mark.parametrize("name", database.statement_names())
def test_every_stored_statement_can_be_planned(postgres: EmbeddedPostgres, template: str, name: str) -> None:
    text = database.statement(name)
    arguments = dict.fromkeys(re.findall(r"%\((\w+)\)s", text))
    with connect(postgres.url(template), name="tests") as connection:
        connection.execute(sql.SQL("EXPLAIN {}").format(sql.SQL(text)), arguments)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://cinema:S3CR3T@127.0.0.1:1/cinema",
        "postgresql://cinema:S3CR3T@127.0.0.1:{port}/no_such_database",
        "postgresql://no_such_role:S3CR3T@127.0.0.1:{port}/postgres",
        "postgresql://cinema:S3CR3T@host.invalid/cinema",
        "postgresql://cinema:half@S3CR3T@127.0.0.1:{port}/cinema",
        "postgresql://cinema:S3CR3T/half@127.0.0.1:{port}/cinema",
        "postgresql://cinema:S3CR3T%zz@127.0.0.1:{port}/cinema",
        "postgresql://cinema:S3CR3T@[::1/cinema",
        "postgresql://cinema:S3CR3T@127.0.0.1:{port}/cinema?no_such_option=1",
        "postgresql://127.0.0.1:{port}/cinema?password=S3CR3T&no_such_option=1",
    ],
)
def test_a_connection_that_fails_never_shows_the_password(postgres: EmbeddedPostgres, url: str) -> None:
    address = url.format(port=postgres.port)
    for attempt in (lambda: connect(address, name="tests"), lambda: migrate(address)):
        with pytest.raises(VitrineError) as refused:
            attempt()
        assert "S3CR3T" not in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.promise("H8")
def test_a_definition_stored_without_validation_ends_failed_and_stops_no_runner(
    connection: Connection,
) -> None:
    broken, healthy = create(connection, "broken"), create(connection, "healthy", target_table="analytics.healthy")
    connection.execute("UPDATE etl.etl_pipelines SET options = '{\"no_such_option\": 1}' WHERE id = %s", [broken.id])
    connection.execute(
        "UPDATE etl.etl_pipelines SET status = 'RUN_REQUESTED', request_id = gen_random_uuid(), requested_at = now()"
    )
    connection.execute("UPDATE etl.etl_pipelines SET requested_at = now() - interval '1 h' WHERE id = %s", [broken.id])
    assert claim(connection).pipeline_id == healthy.id
    row = connection.execute("SELECT status FROM etl.etl_pipelines WHERE id = %s", [broken.id]).fetchone()
    assert row == {"status": "FAILED"}
    ended = connection.execute("SELECT status, error_code FROM etl.etl_runs WHERE pipeline_id = %s", [broken.id])
    assert ended.fetchall() == [{"status": "FAILED", "error_code": "CONFIG"}]


@pytest.mark.promise("B1")
def test_a_run_whose_own_connection_died_is_still_ended(settings: Settings, connection: Connection) -> None:
    class Cut(PipelineExecutor):
        def execute(self, *_: object, **__: object) -> Executed:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE application_name LIKE 'vitrine:%:run' AND datname = current_database()"
            )
            return Executed(Outcome.FINISHED, None, Counts(), 1, 0.0)

    pipeline = create(connection)
    request(connection, pipeline)
    held = claim(connection, pipeline)
    _, status_after = PipelineDispatcher(settings, Cut(settings, threading.Event())).dispatch(held)
    assert status_after is Status.IDLE


@pytest.mark.parametrize(("default", "inside"), [("off", "on"), ("remote_apply", "remote_apply")])
def test_commits_of_the_store_are_durable_whatever_the_default_of_the_server(
    connection: Connection, default: str, inside: str
) -> None:
    connection.execute("SELECT set_config('synchronous_commit', %s, false)", [default])
    with database.transaction(connection):
        row = connection.execute("SELECT current_setting('synchronous_commit') AS setting").fetchone()
    assert row == {"setting": inside}


def test_a_poll_asks_first_what_is_due(connection: Connection) -> None:
    def due() -> tuple[bool, bool, bool]:
        found = schedules.get_due(connection)
        return found.schedules, found.reconciles, found.leases

    pipeline = create(connection)
    assert due() == (False, False, False)
    connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now()")
    assert due() == (True, False, False)
    connection.execute(
        "UPDATE etl.etl_pipelines SET next_due_at = NULL, fresh_as_of = now(),"
        ' options = options || \'{"reconcile_interval": "1h"}\''
    )
    assert due() == (False, True, False)
    run(connection, pipeline)
    assert due() == (False, False, False)
    kill(connection, pipeline)
    assert due() == (False, False, True)
