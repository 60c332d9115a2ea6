"""Rolls a pipeline back to the generation that was live before."""

from collections.abc import Callable

from vitrine.engine import plan, validation
from vitrine.engine.plan import Known
from vitrine.errors import RequestRefused, TransientError, TransitionRefused
from vitrine.flow.jobs import RunInfo
from vitrine.flow.protocols import Checkpoint, RunControl, Sink
from vitrine.flow.restore import generation_to_restore, kept_load, restore
from vitrine.flow.rows import KeptGeneration
from vitrine.pipeline import Claim, Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.status import LEASED, Status
from vitrine.store import generations, runs
from vitrine.store import state as states

Watch = Callable[[Sink], Sink]

WORKING = (Status.RUN_REQUESTED, *LEASED)
"""The statuses in which what will be visible, and what was before it, are not known yet."""


def roll_back(
    claim: Claim,
    settings: Settings,
    connection: Connection,
    checkpoint: Checkpoint,
    control: RunControl,
    watch: Watch = lambda sink: sink,
) -> None:
    """Carry out a claimed rollback; RequestRefused if there is nothing to go back to. The source is not needed.

    `watch` may wrap the sink.
    """
    context = runs.context(connection, claim.pipeline_id)
    known = Known(context.installation, context.open_rejects, context.facts)
    sink = watch(plan.build_sink(claim.definition, settings, plan.run_info(claim, settings, known), control, known))
    try:
        checkpoint.open("")
        known_generations = generations.load(connection, claim.pipeline_id)
        # guarantee: I15
        if claim.request_id is not None and known_generations.restored_by == claim.request_id:
            return  # an earlier attempt has saved it, and was not ended
        kept = generation_to_restore(sink, known_generations.live, known_generations.previous, checkpoint)
        restore(sink, kept, claim.definition.target_table, checkpoint, control)
    finally:
        sink.close()


def prepare_check(connection: Connection, settings: Settings, pipeline: Pipeline) -> Callable[[], None]:
    """A function that raises TransitionRefused if a rollback that starts now would find nothing to go back to.

    It asks the target, for a few seconds at most, and needs no connection to the store. Without an answer the request
    is accepted: the runner decides.
    """
    state, known_generations = states.load(connection, pipeline.id), generations.load(connection, pipeline.id)
    if pipeline.status in WORKING or state.generation_open:
        return lambda: None
    known = Known(runs.installation(connection), (), state.facts)
    run = RunInfo("vitrine:rollback", pipeline.id, known.installation)
    sink = plan.build_sink(pipeline.definition, settings, run, plan.NoLease(), known)
    return lambda: _refuse_in_vain(sink, known_generations.previous, pipeline.definition.target_table)


def _refuse_in_vain(sink: Sink, previous: KeptGeneration | None, target: str) -> None:
    def ask() -> None:
        try:
            kept_load(sink, previous, target)
        finally:
            sink.close()

    try:
        validation.within(validation.PREFLIGHT_SECONDS, ask)
    except RequestRefused as exc:
        raise TransitionRefused(str(exc), code=exc.code) from exc
    except TransientError:
        return
    except TimeoutError:
        sink.cancel()
