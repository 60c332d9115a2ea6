"""Status, state and history of pipelines, and what happened to them in one order."""

import time
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from vitrine import explain
from vitrine.core.status import RunId
from vitrine.definition.pipeline import Run
from vitrine.explain import surroundings_of, why_it_waits
from vitrine.operations.bodies.overview import TimelineChange, TimelineEntry, TimelinePage, TimelineRun
from vitrine.operations.bodies.pipelines import ReportPage, StoredReportBody
from vitrine.operations.bodies.runs import (
    LogLineBody,
    RequestBody,
    RunBody,
    RunLogBody,
    RunPage,
    StateBody,
    StateChange,
    Statistics,
    StatusBody,
)
from vitrine.operations.context import Context, Role, allowed, recorded
from vitrine.store import access, history, lists, pipelines
from vitrine.store.lists import Change
from vitrine.store.state import load_state

POLL_SECONDS = 0.25
"""How often a request is read while its end is awaited."""

MAX_RUNS = 1000
MAX_DAYS = 366


@allowed(Role.VIEWER)
def status(context: Context, key: str) -> StatusBody:
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        newest = history.list_runs(connection, pipeline.id, limit=1)
        surroundings = surroundings_of(connection, pipeline, context.settings)
        late = explain.late_causes(connection, context.settings, [pipeline])
    return StatusBody.of(
        pipeline,
        newest[0] if newest else None,
        zone=context.settings.zone,
        waiting=why_it_waits(pipeline, surroundings),
        late=late.get(pipeline.id),
        runners=surroundings.runners,
        upstreams=surroundings.upstreams,
    )


@allowed(Role.VIEWER)
def state(context: Context, key: str) -> StateBody:
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        return StateBody.of(pipeline, load_state(connection, pipeline.id))


@allowed(Role.OPERATOR)
def change_state(context: Context, key: str, body: StateChange, *, expected_batch_seq: int | None = None) -> StateBody:
    """Reset the state, or rewind the checkpoint to an earlier value; refused while a runner holds the pipeline."""
    from vitrine.operations import changes  # slow to import, and `vitrine status` must start quickly

    with context.connection() as connection, recorded(context, connection, f"state.{body.action}") as record:
        before = load_state(connection, pipelines.lock(connection, key).id)
        pipeline, stored = changes.change_state(
            connection, key, rewind_to=body.value, expected_batch_seq=expected_batch_seq
        )
        record.add(pipeline, before={"cursor": before.position.cursor}, after={"cursor": stored.position.cursor})
    return StateBody.of(pipeline, stored)


@allowed(Role.VIEWER)
def list_runs(context: Context, key: str, *, before: int | None = None, limit: int = 50) -> RunPage:
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = history.list_runs(connection, pipeline.id, limit=limit + 1, before=RunId(before or history.NEWEST_RUNS))
    items = [RunBody.of(run) for run in found[:limit]]
    return RunPage(items=items, next=items[-1].id if len(found) > limit else None)


@allowed(Role.VIEWER)
def list_reconciliations(context: Context, key: str, *, before: int | None = None, limit: int = 20) -> ReportPage:
    """One page of the reports of deep reconciles, newest first."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = history.list_reconciliations(
            connection, pipeline.id, before=before or history.NEWEST_RECONCILIATIONS, limit=limit + 1
        )
    items = [StoredReportBody.of(one) for one in found[:limit]]
    return ReportPage(items=items, next=items[-1].id if len(found) > limit else None)


@allowed(Role.VIEWER)
def run(context: Context, key: str, run_id: int) -> RunBody:
    """One run of the pipeline; NotFound if it belongs to another."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        return RunBody.of(history.get_run_of_pipeline(connection, pipeline, RunId(run_id)))


@allowed(Role.VIEWER)
def run_log(context: Context, key: str, run_id: int) -> RunLogBody:
    """The last log lines of a run; NotFound if the pipeline has no such run."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = history.get_run_of_pipeline(connection, pipeline, RunId(run_id))
        kept = history.load_log(connection, found.id)
    lines = [LogLineBody.model_validate(line) for line in kept.lines]
    return RunLogBody(run_id=found.id, pipeline=pipeline.name, lines=lines, dropped=kept.dropped)


@allowed(Role.VIEWER)
def statistics(context: Context, key: str, *, newest: int = 100, days: int | None = None) -> Statistics:
    """Figures over the newest runs of a pipeline; with `days`, over those that started within the last days."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        figures = history.read_statistics(connection, pipeline.id, limit=newest, days=days)
    return Statistics(pipeline=pipeline.name, **figures)


@allowed(Role.VIEWER)
def request(context: Context, request_id: UUID, wait: timedelta = timedelta(0)) -> RequestBody:
    """A request with its newest run. With `wait`, as soon as it has ended, or as it is after that time."""
    deadline = time.monotonic() + wait.total_seconds()
    while True:
        with context.connection() as connection:
            found = history.get_request(connection, request_id)
            pipeline = pipelines.get(connection, found.pipeline_id)
        remaining = deadline - time.monotonic()
        if found.has_ended or remaining <= 0:
            return RequestBody.of(found, pipeline)
        time.sleep(min(POLL_SECONDS, remaining))


@allowed(Role.VIEWER)
def open_requests(context: Context, request_ids: Iterable[UUID]) -> frozenset[UUID]:
    """Which of the requests have not ended."""
    with context.connection() as connection:
        return history.list_open_requests(connection, request_ids)


@allowed(Role.VIEWER)
def list_timeline(
    context: Context, key: str, *, before_run: int | None = None, before_change: int | None = None, limit: int = 30
) -> TimelinePage:
    """Newest first; the two positions of a page lead to the next one."""
    run_bound, change_bound = RunId(before_run or history.NEWEST_RUNS), before_change or access.NEWEST
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found_runs = history.list_runs(connection, pipeline.id, limit=limit + 1, before=run_bound)
        found_changes = lists.list_changes(connection, pipeline.name, before=change_bound, limit=limit + 1)
    return merge(found_runs, found_changes, limit)


def merge(found_runs: list[Run], found_changes: list[Change], limit: int) -> TimelinePage:
    """One page of both; each list has more than `limit` entries if there are more."""
    entries = [_of_run(one) for one in found_runs] + [_of_change(one) for one in found_changes]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    shown = entries[:limit]
    shown_runs = [entry.run.id for entry in shown if entry.run]
    shown_changes = [entry.change.id for entry in shown if entry.change]
    more = len(entries) > len(shown)
    return TimelinePage(
        items=shown,
        next_run=_next(shown_runs, [one.id for one in found_runs]) if more else None,
        next_change=_next(shown_changes, [one.id for one in found_changes]) if more else None,
    )


def _next(shown: list[int], found: list[int]) -> int | None:
    """Where the next page of one list begins: behind the last entry that is shown, or again at its beginning."""
    if shown:
        return min(shown)
    return found[0] + 1 if found else None


def _of_run(run: Run) -> TimelineEntry:
    short = TimelineRun.model_validate(run, from_attributes=True)
    return TimelineEntry(at=run.started_at, run=short, change=None)


def _of_change(change: Change) -> TimelineEntry:
    return TimelineEntry(at=change.at, run=None, change=TimelineChange.of(change))
