"""What the requests of a pipeline wait for, as the store has it."""

from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.service.waiting import Surroundings
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import chains, claims, lateness, runs


def surroundings_of(connection: Connection, pipeline: Pipeline, settings: Settings) -> Surroundings:
    paused = pipeline.status is Status.PAUSED
    halt = lateness.list_facts(connection, [pipeline.id]).get(pipeline.id) if paused else None
    return Surroundings(
        runners=runs.count_live_runners(connection),
        source_is_full=pipeline.status is Status.RUN_REQUESTED
        and claims.is_source_full(connection, pipeline.definition.source, settings.runs_per_source()),
        upstreams=chains.list_upstreams(connection, pipeline.id) if pipeline.definition.after else (),
        paused_by=halt.halted_by if halt else None,
        paused_at=halt.halted_at if halt else None,
    )
