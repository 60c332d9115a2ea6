"""Traces one key of a pipeline: why is this row wrong?"""

from collections.abc import Sequence
from dataclasses import replace

from vitrine.engine import tracing
from vitrine.engine.standing import judge
from vitrine.pipeline import Pipeline
from vitrine.service import checks
from vitrine.service.bodies.checks import RejectBody
from vitrine.service.bodies.tracing import TraceBody
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.service.surroundings import surroundings_of
from vitrine.service.waiting import Surroundings, why_it_waits
from vitrine.status import Status
from vitrine.store import pipelines
from vitrine.store import rejects as quarantine
from vitrine.store import state as states


@allowed(Role.OPERATOR)
def trace(context: Context, pipeline_key: str, key: Sequence[str]) -> TraceBody:
    """The row of a key at the source, after each transform and in the target, and where it stands; nothing is written.

    `key`: the values of the key columns, in their order.
    """
    with context.connection() as connection:
        pipeline = pipelines.get(connection, pipeline_key)
        position = states.load(connection, pipeline.id).position
        around = surroundings_of(connection, pipeline, context.settings)
    found = checks.ask(context, pipeline.definition, lambda checked: tracing.look_up(checked, tuple(key), position))
    with context.connection() as connection:
        reject = quarantine.find(connection, pipeline.id, tracing.texts_of_reject(found))
    reason = reject.reason if reject else found.facts.quarantine
    facts = replace(found.facts, quarantine=reason, halted=_why_no_run_starts(pipeline, around))
    return TraceBody.of(
        pipeline,
        found,
        judge(facts),
        waiting=why_it_waits(pipeline, around),
        reject=RejectBody.of(reject) if reject else None,
        checkpoint=position.cursor,
    )


def _why_no_run_starts(pipeline: Pipeline, around: Surroundings) -> str | None:
    """None: the next run starts by itself, or when it is requested."""
    is_halted = pipeline.status in (Status.PAUSED, Status.FAILED) or not pipeline.definition.enabled
    return why_it_waits(pipeline, around) if is_halted or not around.runners else None
