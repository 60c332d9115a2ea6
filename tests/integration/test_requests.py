"""Requests of several kinds in the store: every status with every event and every kind."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from tests.helpers.chains import complete_wave
from tests.helpers.databases import copy_of
from vitrine.core.status import (
    LEASED,
    NEXT,
    RETURNING,
    RETURNS,
    STARTS_RERUN,
    Event,
    RequestId,
    RequestKind,
    RunOptions,
    RunStatus,
    Status,
)
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.embedded import EmbeddedPostgres
from vitrine.errors import TransitionRefused
from vitrine.postgres import Connection, connect
from vitrine.store import history, pipelines, queue, schedules

TTL = timedelta(seconds=30)
SHRINK = RunOptions(allow_shrink=True)
ENDINGS = {
    Event.FINISH: RunStatus.SUCCESS,
    Event.FINISH_PAUSED: RunStatus.SUCCESS,
    Event.FAIL: RunStatus.FAILED,
    Event.POSTPONE: RunStatus.FAILED,
    Event.RETRY: RunStatus.FAILED,
    Event.RELEASE: RunStatus.ABANDONED,
    Event.PAUSED: RunStatus.PAUSED,
    Event.RETURN_IDLE: RunStatus.SUCCESS,
    Event.RETURN_PAUSED: RunStatus.SUCCESS,
    Event.RETURN_FAILED: RunStatus.FAILED,
}
ENDS_REQUEST = (Event.FINISH, Event.FINISH_PAUSED, Event.FAIL, Event.POSTPONE, Event.CRASH_LOOP, *RETURNS)

Kept = tuple[RequestId, str, RunOptions] | None


# one database for all tests: each of these many tests has statements on one pipeline only, and then deletes it


@pytest.fixture(scope="module")
def database_url(postgres: EmbeddedPostgres, template: str) -> Iterator[str]:
    with copy_of(postgres, template, "requests") as name:
        yield postgres.tcp_url(name)


@pytest.fixture(scope="module")
def connection(database_url: str) -> Iterator[Connection]:
    with connect(database_url, name="tests") as opened:
        yield opened


@pytest.fixture
def genres(connection: Connection) -> Iterator[Pipeline]:
    definition = {
        "name": "genres",
        "source_query": "SELECT id, name, modified FROM content.genre",
        "target_table": "analytics.genres",
        "mode": "incremental",
        "incremental_key": "modified",
        "key_columns": ["id"],
        "schedule_interval": "1h",
    }
    yield pipelines.create(connection, Definition.model_validate(definition))
    connection.execute("DELETE FROM etl.etl_pipelines")


def ask(connection: Connection, kind: RequestKind = RequestKind.RUN, **given: Any) -> RequestId:
    return pipelines.request_run(connection, "genres", trigger="api", kind=kind, **given)[1]


def claim(connection: Connection) -> Claim:
    taken = queue.claim_next(connection, runner="worker-1", ttl=TTL)
    assert taken is not None
    return taken


def end(connection: Connection, held: Claim, event: Event) -> Status | None:
    return queue.end_run(connection, held, event, ENDINGS[event])


def requests_of(connection: Connection) -> tuple[Kept, Kept]:
    pipeline = pipelines.get(connection, "genres")
    current, rerun = [(one.id, one.kind, one.options) if one else None for one in (pipeline.request, pipeline.rerun)]
    return current, rerun


def bring_to(connection: Connection, status: Status, kind: RequestKind) -> Claim | None:
    """A request of this kind in the status; in IDLE and FAILED it has ended."""
    if status is Status.RUN_REQUESTED:
        ask(connection, kind)
        return None
    ask(connection, kind)
    held = claim(connection)
    match status:
        case Status.IDLE:
            end(connection, held, Event.FINISH)
        case Status.FAILED:
            end(connection, held, Event.FAIL)
        case Status.PAUSED:
            pipelines.request_pause(connection, "genres")
            end(connection, held, Event.PAUSED)
        case Status.PAUSE_REQUESTED:
            pipelines.request_pause(connection, "genres")
        case _:
            pass
    assert pipelines.get(connection, "genres").status is status
    return held


def apply(connection: Connection, held: Claim | None, event: Event) -> None:
    match event:
        case Event.SCHEDULE:
            connection.execute("UPDATE etl.etl_pipelines SET next_due_at = now()")
            schedules.fire_schedules(connection)
        case Event.CHAIN:
            complete_wave(connection, pipelines.get(connection, "genres"))
            schedules.fire_chains(connection)
        case Event.CLAIM:
            queue.claim_next(connection, runner="worker-2", ttl=TTL)
        case Event.PAUSE:
            pipelines.request_pause(connection, "genres")
        case Event.EXPIRE | Event.CRASH_LOOP:
            lost = "UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s', attempt = %s"
            connection.execute(lost, [3 if event is Event.CRASH_LOOP else 1])
            queue.expire_leases(connection)
        case _:
            assert held is not None
            end(connection, held, event)


@pytest.mark.promise("D9")
@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize(("status", "event"), [step for step in NEXT if step[1] is not Event.RUN])
def test_an_event_moves_each_request_with_its_own_kind_and_options(
    connection: Connection, genres: Pipeline, status: Status, event: Event, kind: RequestKind
) -> None:
    held = bring_to(connection, status, kind)
    # what follows has other options, so that a mixture would show
    if status in (Status.RUNNING, Status.RUN_REQUESTED):
        ask(connection, options=SHRINK)
    before = requests_of(connection)
    apply(connection, held, event)
    after, now = requests_of(connection), pipelines.get(connection, "genres").status
    if now is Status.RUN_REQUESTED and (event in STARTS_RERUN or (event is Event.CRASH_LOOP and kind in RETURNING)):
        assert after == (before[1], None)
    elif event in (Event.SCHEDULE, Event.CHAIN):
        assert after[0] is not None
        assert (after[0][1:], after[1]) == ((RequestKind.RUN, RunOptions()), None)
    elif event in ENDS_REQUEST:
        assert after == (None, before[1])
    else:
        assert after == before


@pytest.mark.promise("D9")
@pytest.mark.parametrize("second", [*RequestKind, "shrinking run"])
@pytest.mark.parametrize("first", RequestKind)
@pytest.mark.parametrize("status", Status)
def test_the_event_run_merges_only_requests_that_ask_for_the_same(
    connection: Connection, genres: Pipeline, status: Status, first: RequestKind, second: RequestKind | str
) -> None:
    bring_to(connection, status, first)
    before = [one for one in requests_of(connection) if one]
    kind = RequestKind.RUN if second == "shrinking run" else RequestKind(second)
    options = SHRINK if second == "shrinking run" else RunOptions()
    try:
        asked = ask(connection, kind, options=options)
    except TransitionRefused:
        assert [one for one in requests_of(connection) if one] == before
        assert pipelines.get(connection, "genres").status is status
        return
    after = [one for one in requests_of(connection) if one]
    assert (asked, kind, options) in after
    assert set(before) <= set(after)
    now = pipelines.get(connection, "genres").status
    assert now is NEXT[status, Event.RUN]
    expected = "running" if now in LEASED and after[0][0] == asked else "pending"
    assert history.get_request(connection, asked).state == expected


@pytest.mark.promise("D8")
def test_a_request_while_running_does_not_change_the_options_of_the_run_under_way(
    connection: Connection, genres: Pipeline
) -> None:
    ask(connection)
    first = claim(connection)
    ask(connection, options=SHRINK)
    end(connection, first, Event.RELEASE)
    again = claim(connection)
    assert (again.request_id, again.options) == (first.request_id, RunOptions())
    assert end(connection, again, Event.FINISH) is Status.RUN_REQUESTED
    assert claim(connection).options == SHRINK


@pytest.mark.promise("D9")
def test_a_third_unequal_request_is_refused_and_changes_nothing(connection: Connection, genres: Pipeline) -> None:
    ask(connection)
    claim(connection)
    second = ask(connection, RequestKind.ROLLBACK)
    before = requests_of(connection)
    with pytest.raises(TransitionRefused, match="RUNNING with a run and a rollback requested") as refused:
        ask(connection)
    assert refused.value.code == "REQUEST_CONFLICT"
    assert ask(connection, RequestKind.ROLLBACK) == second
    assert requests_of(connection) == before


def test_a_rollback_of_a_paused_run_goes_first_and_the_run_continues_after_it(
    connection: Connection, genres: Pipeline
) -> None:
    paused = bring_to(connection, Status.PAUSED, RequestKind.RUN)
    assert paused is not None
    asked = ask(connection, RequestKind.ROLLBACK)
    held = claim(connection)
    assert (held.request_id, held.kind) == (asked, RequestKind.ROLLBACK)
    assert end(connection, held, Event.FINISH_PAUSED) is Status.PAUSED
    assert ask(connection, resume=True) == paused.request_id
    assert claim(connection).kind is RequestKind.RUN


def test_resume_keeps_the_options_of_a_paused_request(connection: Connection, genres: Pipeline) -> None:
    ask(connection, options=SHRINK)
    pipelines.request_pause(connection, "genres")
    ask(connection, resume=True)
    assert claim(connection).options == SHRINK


def test_the_history_shows_the_kind_of_a_request_and_the_mode_of_a_run(
    connection: Connection, genres: Pipeline
) -> None:
    ask(connection)
    end(connection, claim(connection), Event.FINISH)
    ask(connection, RequestKind.ROLLBACK)
    end(connection, claim(connection), Event.FINISH_PAUSED)
    ask(connection, RequestKind.FULL)
    end(connection, claim(connection), Event.FINISH)
    assert [one.kind for one in history.list_runs(connection, genres.id)] == ["full", "rollback", "incremental"]


@pytest.mark.parametrize("unknown", ["requested_kind = 'repair'", """requested_options = '{"from": "2025-01-01"}'"""])
def test_a_request_that_only_a_newer_release_knows_fails_and_stops_no_runner(
    connection: Connection, genres: Pipeline, unknown: str
) -> None:
    asked = ask(connection)
    connection.execute(f"UPDATE etl.etl_pipelines SET {unknown}".encode())
    assert pipelines.get(connection, "genres").status is Status.RUN_REQUESTED
    assert queue.claim_next(connection, runner="worker-1", ttl=TTL) is None
    assert pipelines.get(connection, "genres").status is Status.FAILED
    run = history.get_request(connection, asked).run
    assert run is not None
    assert "upgrade it" in (run.error_message or "")


def test_a_rollback_behind_a_run_that_failed_is_carried_out_when_it_is_asked_for_again(
    connection: Connection, genres: Pipeline
) -> None:
    ask(connection)
    held = claim(connection)
    asked = ask(connection, RequestKind.ROLLBACK)
    assert end(connection, held, Event.FAIL) is Status.FAILED
    assert history.get_request(connection, asked).state == "failed"
    with pytest.raises(TransitionRefused, match=r"FAILED with a rollback requested, .* resume that first"):
        ask(connection)
    assert ask(connection, RequestKind.ROLLBACK) == asked
    again = claim(connection)
    assert (again.kind, again.request_id) == (RequestKind.ROLLBACK, asked)
    assert requests_of(connection)[1] is None


# -- kinds that leave the checkpoint alone ----------------------------------------------------------------------------

RANGE = RunOptions(backfill_from="2025-01-01", backfill_to="2025-02-01")


def ask_returning(connection: Connection, kind: RequestKind, **given: Any) -> RequestId:
    return ask(connection, kind, options=RANGE if kind is RequestKind.BACKFILL else None, **given)


def expire(connection: Connection, attempt: int) -> None:
    lost = "UPDATE etl.etl_pipelines SET lease_expires_at = now() - interval '1 s', attempt = %s"
    connection.execute(lost, [attempt])
    queue.expire_leases(connection)


def claim_now(connection: Connection) -> Claim:
    connection.execute("UPDATE etl.etl_pipelines SET next_attempt_at = NULL")
    return claim(connection)


def interrupt(connection: Connection, held: Claim, how: str) -> None:
    """An end of the first attempt after which the request continues, up to its last claim."""
    match how:
        case "released":
            end(connection, held, Event.RELEASE)
        case "retried":
            end(connection, held, Event.RETRY)
        case "taken over":
            expire(connection, 1)
        case "paused":
            pipelines.request_pause(connection, "genres")
            end(connection, held, Event.PAUSED)
            ask(connection, resume=True)
        case _:
            raise AssertionError(how)


@pytest.mark.promise("D23")
@pytest.mark.parametrize("ending", ["success", "failure", "crash loop"])
@pytest.mark.parametrize("interruption", [None, "released", "retried", "taken over", "paused"])
@pytest.mark.parametrize("kind", sorted(RETURNING))
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED, Status.FAILED])
def test_a_kind_that_leaves_the_checkpoint_alone_returns_the_pipeline_to_the_status_it_had(
    connection: Connection, genres: Pipeline, status: Status, kind: RequestKind, interruption: str | None, ending: str
) -> None:
    bring_to(connection, status, RequestKind.RUN)
    # a reason of an earlier failure, and a postponed run
    connection.execute(
        "UPDATE etl.etl_pipelines SET last_error_code = 'OLD', last_error_message = 'as before', last_error_at = now(),"
        " postponed = 2, regular_due_at = next_due_at + interval '1 h'"
    )
    before = pipelines.get(connection, "genres")
    asked = ask_returning(connection, kind)
    held = claim(connection)
    if interruption is not None:
        interrupt(connection, held, interruption)
        held = claim_now(connection)
    assert (held.kind, held.request_id) == (kind, asked)
    if ending == "crash loop":
        expire(connection, 3)
    else:
        failed = None if ending == "success" else "BROKEN"
        run_status = RunStatus.FAILED if failed else RunStatus.SUCCESS
        queue.end_run(connection, held, Event.RETURN_IDLE, run_status, error_code=failed, error_message=failed)
    after = pipelines.get(connection, "genres")
    assert after.status is status
    assert (after.last_error, after.postponed, after.next_due_at) == (
        before.last_error,
        before.postponed,
        before.next_due_at,
    )
    assert after.fresh_as_of == before.fresh_as_of
    assert history.get_request(connection, asked).state == ("succeeded" if ending == "success" else "failed")
    # what was paused before is paused still, and continues when it is asked for
    assert (after.request, after.rerun) == (None, before.request)
    if before.request is not None:
        assert ask(connection, resume=True) == before.request.id
        assert claim(connection).kind is RequestKind.RUN


@pytest.mark.promise("D23")
@pytest.mark.parametrize("second", sorted(RequestKind))
@pytest.mark.parametrize("kind", sorted(RETURNING))
@pytest.mark.parametrize("status", [Status.IDLE, Status.PAUSED, Status.FAILED])
def test_a_request_made_during_such_a_kind_starts_after_it(
    connection: Connection, genres: Pipeline, status: Status, kind: RequestKind, second: RequestKind
) -> None:
    """Even if the pipeline was PAUSED or FAILED: the request was made by a person afterwards."""
    if status is not Status.IDLE:
        connection.execute("UPDATE etl.etl_pipelines SET status = %s", [status])
    ask_returning(connection, kind)
    held = claim(connection)
    asked = ask_returning(connection, second)
    assert end(connection, held, Event.RETURN_IDLE) is Status.RUN_REQUESTED
    following = claim(connection)
    assert (following.request_id, following.kind) == (asked, second)
    # one that leaves the checkpoint alone still returns to the status before the first
    assert end(connection, following, Event.RETURN_IDLE) is status


@pytest.mark.promise("D23")
def test_a_paused_run_that_is_asked_for_during_a_reconcile_starts_after_it(
    connection: Connection, genres: Pipeline
) -> None:
    paused = bring_to(connection, Status.PAUSED, RequestKind.RUN)
    assert paused is not None
    ask(connection, RequestKind.RECONCILE)
    held = claim(connection)
    assert ask(connection) == paused.request_id
    assert end(connection, held, Event.RETURN_IDLE) is Status.RUN_REQUESTED
    assert claim(connection).request_id == paused.request_id


@pytest.mark.promise("D23")
def test_a_refused_request_leaves_a_paused_run_paused(connection: Connection, genres: Pipeline) -> None:
    paused = bring_to(connection, Status.PAUSED, RequestKind.RUN)
    assert paused is not None
    ask(connection, RequestKind.FULL)
    held = claim(connection)
    assert queue.end_run(connection, held, Event.RETURN_IDLE, RunStatus.FAILED, error_code="PARAM") is Status.PAUSED
    assert ask(connection, resume=True) == paused.request_id


@pytest.mark.promise("D23")
@pytest.mark.parametrize("kind", sorted(RETURNING))
def test_such_a_kind_promises_no_changes(connection: Connection, genres: Pipeline, kind: RequestKind) -> None:
    asked = ask_returning(connection, kind)
    assert history.get_request(connection, asked).promised_at is None
    end(connection, claim(connection), Event.RETURN_IDLE)
    ended = history.get_request(connection, asked)
    assert (ended.promised_at, ended.run.kind if ended.run else None) == (None, kind)
