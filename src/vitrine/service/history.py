"""Status, state and history of pipelines."""

import time
from collections.abc import Iterable
from datetime import timedelta
from uuid import UUID

from vitrine.ids import RunId
from vitrine.service import audit, lateness
from vitrine.service.bodies.reconciliation import ReportPage, StoredReportBody
from vitrine.service.bodies.runs import LogLineBody, RequestBody, RunBody, RunLogBody, RunPage, StatusBody
from vitrine.service.bodies.state import StateBody, StateChange
from vitrine.service.bodies.statistics import Statistics
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.service.surroundings import surroundings_of
from vitrine.service.waiting import why_it_waits
from vitrine.store import pipelines, reconciliations, run_logs, runs
from vitrine.store import state as states

POLL_SECONDS = 0.25
"""How often a request is read while its end is awaited."""

MAX_RUNS = 1000
MAX_DAYS = 366


@allowed(Role.VIEWER)
def status(context: Context, key: str) -> StatusBody:
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        newest = runs.list_page(connection, pipeline.id, limit=1)
        surroundings = surroundings_of(connection, pipeline, context.settings)
        late = lateness.of_late(connection, context.settings, [pipeline])
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
        return StateBody.of(pipeline, states.load(connection, pipeline.id))


@allowed(Role.OPERATOR)
def change_state(context: Context, key: str, body: StateChange, *, expected_batch_seq: int | None = None) -> StateBody:
    """Reset the state, or rewind the checkpoint to an earlier value; refused while a runner holds the pipeline."""
    from vitrine import revisions  # slow to import, and `vitrine status` must start quickly

    with context.connection() as connection, audit.recorded(context, connection, f"state.{body.action}") as record:
        before = states.load(connection, pipelines.lock(connection, key).id)
        pipeline, stored = revisions.change_state(
            connection, key, rewind_to=body.value, expected_batch_seq=expected_batch_seq
        )
        record.add(pipeline, before={"cursor": before.position.cursor}, after={"cursor": stored.position.cursor})
    return StateBody.of(pipeline, stored)


@allowed(Role.VIEWER)
def list_runs(context: Context, key: str, *, before: int | None = None, limit: int = 50) -> RunPage:
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = runs.list_page(connection, pipeline.id, limit=limit + 1, before=RunId(before or runs.NEWEST))
    items = [RunBody.of(run) for run in found[:limit]]
    return RunPage(items=items, next=items[-1].id if len(found) > limit else None)


@allowed(Role.VIEWER)
def list_reconciliations(context: Context, key: str, *, before: int | None = None, limit: int = 20) -> ReportPage:
    """One page of the reports of deep reconciles, newest first."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = reconciliations.list_page(
            connection, pipeline.id, before=before or reconciliations.NEWEST, limit=limit + 1
        )
    items = [StoredReportBody.of(one) for one in found[:limit]]
    return ReportPage(items=items, next=items[-1].id if len(found) > limit else None)


@allowed(Role.VIEWER)
def run(context: Context, key: str, run_id: int) -> RunBody:
    """One run of the pipeline; NotFound if it belongs to another."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        return RunBody.of(runs.get_of_pipeline(connection, pipeline, RunId(run_id)))


@allowed(Role.VIEWER)
def run_log(context: Context, key: str, run_id: int) -> RunLogBody:
    """The last log lines of a run; NotFound if the pipeline has no such run."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        found = runs.get_of_pipeline(connection, pipeline, RunId(run_id))
        kept = run_logs.load(connection, found.id)
    lines = [LogLineBody.model_validate(line) for line in kept.lines]
    return RunLogBody(run_id=found.id, pipeline=pipeline.name, lines=lines, dropped=kept.dropped)


@allowed(Role.VIEWER)
def statistics(context: Context, key: str, *, newest: int = 100, days: int | None = None) -> Statistics:
    """Figures over the newest runs of a pipeline; with `days`, over those that started within the last days."""
    with context.connection() as connection:
        pipeline = pipelines.get(connection, key)
        figures = runs.statistics(connection, pipeline.id, limit=newest, days=days)
    return Statistics(pipeline=pipeline.name, **figures)


@allowed(Role.VIEWER)
def request(context: Context, request_id: UUID, wait: timedelta = timedelta(0)) -> RequestBody:
    """A request with its newest run. With `wait`, as soon as it has ended, or as it is after that time."""
    deadline = time.monotonic() + wait.total_seconds()
    while True:
        with context.connection() as connection:
            found = runs.get_request(connection, request_id)
            pipeline = pipelines.get(connection, found.pipeline_id)
        remaining = deadline - time.monotonic()
        if found.has_ended or remaining <= 0:
            return RequestBody.of(found, pipeline)
        time.sleep(min(POLL_SECONDS, remaining))


@allowed(Role.VIEWER)
def open_requests(context: Context, request_ids: Iterable[UUID]) -> frozenset[UUID]:
    """Which of the requests have not ended."""
    with context.connection() as connection:
        return runs.list_open_requests(connection, request_ids)
