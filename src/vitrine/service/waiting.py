"""Why nothing happens to a pipeline at the moment."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from vitrine.pipeline import Pipeline
from vitrine.status import Status
from vitrine.store.chains import Upstream


@dataclass(frozen=True)
class Surroundings:
    """What a request of a pipeline waits for."""

    runners: int  # that are alive
    source_is_full: bool  # the runs of its source have all connections that the settings allow
    upstreams: Sequence[Upstream] = ()
    paused_by: str | None = None  # None: it is not paused, or that is not recorded
    paused_at: datetime | None = None


def why_it_waits(pipeline: Pipeline, around: Surroundings) -> str | None:
    """One sentence; None if a runner is at work, or if nothing is expected to happen."""
    match pipeline.status:
        case Status.RUNNING:
            return _lost(pipeline, around)
        case Status.PAUSE_REQUESTED:
            return _lost(pipeline, around) or "the run stops after its current batch, as a pause was requested"
        case _ if not pipeline.definition.enabled:
            return "the pipeline is disabled; enable it, and it can run again"
        case Status.PAUSED:
            return f"the pipeline is paused{_paused(pipeline, around)}; resume it to continue"
        case Status.FAILED:
            return f"{_failure(pipeline)}; correct the cause, then run it again"
        case Status.RUN_REQUESTED:
            return _queued(pipeline, around)
        case Status.IDLE:
            return _idle(pipeline, around)


def _lost(pipeline: Pipeline, around: Surroundings) -> str | None:
    if pipeline.lease_expires_at is None or pipeline.lease_expires_at > pipeline.read_at:
        return None
    lost = f"runner {pipeline.lease_owner} stopped sending heartbeats"
    if not around.runners:
        return f"{lost}, and {_NO_RUNNER}"
    return f"{lost}; another runner takes over"


def _queued(pipeline: Pipeline, around: Surroundings) -> str:
    if not around.runners:
        return _NO_RUNNER
    if pipeline.next_attempt_at is not None and pipeline.next_attempt_at > pipeline.read_at:
        return f"{_failure(pipeline)}; the next attempt is at {_shown(pipeline.next_attempt_at)}"
    if around.source_is_full:
        return (
            f"source '{pipeline.definition.source}' has as many runs as its limit of connections allows; the run starts"
            " when one of them has ended"
        )
    return "the run waits for a free runner"


def _idle(pipeline: Pipeline, around: Surroundings) -> str | None:
    if pipeline.next_due_at is None:
        return _chained(around)
    if not around.runners:
        return _NO_RUNNER
    if pipeline.postponed:
        return f"{_failure(pipeline)} and was postponed; the next attempt is at {_shown(pipeline.next_due_at)}"
    return f"the next run is due at {_shown(pipeline.next_due_at)}"


def _chained(around: Surroundings) -> str | None:
    """Once a wave has begun: which successes it waits for."""
    missing = [one.name for one in around.upstreams if one.succeeded_at is None]
    if not around.upstreams or len(missing) == len(around.upstreams):
        return None
    if missing:
        return f"the run starts when {', '.join(missing)} {'has' if len(missing) == 1 else 'have'} succeeded, too"
    return None if around.runners else _NO_RUNNER


_NO_RUNNER = "no runner is alive; start one with `vitrine runner`"


def _failure(pipeline: Pipeline) -> str:
    error = pipeline.last_error
    return f"the last run failed with {error.code} at {_shown(error.at)}" if error else "the last run failed"


def _paused(pipeline: Pipeline, around: Surroundings) -> str:
    """Not only `status_since`: that of a pipeline which was compared under its pause is the end of the comparison."""
    by = f" by {around.paused_by}" if around.paused_by else ""
    at = around.paused_at or pipeline.status_since
    return f"{by} since {_shown(at)}" if at else by


def _shown(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
