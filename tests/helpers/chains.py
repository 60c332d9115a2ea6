"""Chains of pipelines whose runs move no rows."""

from datetime import timedelta

from tests.helpers import pipelines as stored
from vitrine.core.status import Event, RunStatus, Status
from vitrine.definition.pipeline import Claim, Pipeline
from vitrine.postgres import Connection
from vitrine.store import pipelines, queue, schedules

TTL = timedelta(seconds=30)


def link(connection: Connection, name: str, *after: str) -> Pipeline:
    """A pipeline that runs after others."""
    pipeline = stored.create(connection, name)
    schedules.set_upstreams(connection, {pipeline.id: after})
    return pipelines.get(connection, pipeline.id)


def complete_wave(connection: Connection, pipeline: Pipeline) -> None:
    """Let the pipeline run after a new one, which has succeeded since."""
    upstream = stored.create(connection, f"before_{pipeline.name}")
    schedules.set_upstreams(connection, {pipeline.id: [upstream.name]})
    schedules.record_success(connection, upstream.id)


def start(connection: Connection, pipeline: Pipeline) -> Claim:
    """Claim the pipeline, which is requested if nothing has requested it."""
    if status(connection, pipeline) is not Status.RUN_REQUESTED:
        pipelines.request_run(connection, pipeline.id, trigger="api")
    held = queue.claim_next(connection, runner="tests", ttl=TTL, only=pipeline.id)
    assert held is not None
    return held


def finish(connection: Connection, pipeline: Pipeline) -> Status | None:
    """A successful run; the status after it."""
    return queue.end_run(connection, start(connection, pipeline), Event.FINISH, RunStatus.SUCCESS)


def status(connection: Connection, pipeline: Pipeline) -> Status:
    return pipelines.get(connection, pipeline.id).status
