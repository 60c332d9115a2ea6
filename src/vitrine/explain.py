"""Why a pipeline waits, and why a mart is older than it may be."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from vitrine.core.status import PipelineId, Status
from vitrine.definition.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import history, lists, queue, schedules
from vitrine.store.lists import LateFacts
from vitrine.store.schedules import Upstream


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
            return f"{_waits_failed(pipeline)}; correct the cause, then run it again"
        case Status.RUN_REQUESTED:
            return _queued(pipeline, around)
        case Status.IDLE:
            return _waits_idle(pipeline, around)


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
        return f"{_waits_failed(pipeline)}; the next attempt is at {_shown(pipeline.next_attempt_at)}"
    if around.source_is_full:
        return (
            f"source '{pipeline.definition.source}' has as many runs as its limit of connections allows; the run starts"
            " when one of them has ended"
        )
    return "the run waits for a free runner"


def _waits_idle(pipeline: Pipeline, around: Surroundings) -> str | None:
    if pipeline.next_due_at is None:
        return _chained(around)
    if not around.runners:
        return _NO_RUNNER
    if pipeline.postponed:
        return f"{_waits_failed(pipeline)} and was postponed; the next attempt is at {_shown(pipeline.next_due_at)}"
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


def _waits_failed(pipeline: Pipeline) -> str:
    error = pipeline.last_error
    return f"the last run failed with {error.code} at {_shown(error.at)}" if error else "the last run failed"


def _paused(pipeline: Pipeline, around: Surroundings) -> str:
    """Not only `status_since`: that of a pipeline which was compared under its pause is the end of the comparison."""
    by = f" by {around.paused_by}" if around.paused_by else ""
    at = around.paused_at or pipeline.status_since
    return f"{by} since {_shown(at)}" if at else by


def _shown(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def surroundings_of(connection: Connection, pipeline: Pipeline, settings: Settings) -> Surroundings:
    paused = pipeline.status is Status.PAUSED
    halt = lists.list_late_facts(connection, [pipeline.id]).get(pipeline.id) if paused else None
    return Surroundings(
        runners=history.count_live_runners(connection),
        source_is_full=pipeline.status is Status.RUN_REQUESTED
        and queue.is_source_full(connection, pipeline.definition.source, settings.runs_per_source()),
        upstreams=schedules.list_upstreams(connection, pipeline.id) if pipeline.definition.after else (),
        paused_by=halt.halted_by if halt else None,
        paused_at=halt.halted_at if halt else None,
    )


TOO_MANY_REJECTS = "TOO_MANY_REJECTS"


class LateCause(StrEnum):
    """The names are part of the API, and values of a label."""

    DISABLED = "disabled"
    PAUSED = "paused"
    FAILED = "failed"
    QUARANTINE_FULL = "quarantine_full"
    RETRYING = "retrying"  # the last run failed for a reason that may pass
    RUNNER_GONE = "runner_gone"
    SOURCE_TRANSACTION = "source_transaction"
    RUNNING = "running"
    NO_SLOT = "no_slot"
    UPSTREAM = "upstream"
    NOT_DUE = "not_due"
    NOT_SCHEDULED = "not_scheduled"


@dataclass(frozen=True)
class Lateness:
    cause: LateCause
    sentence: str


@dataclass(frozen=True)
class Runners:
    """What every pipeline of an installation shares."""

    alive: int
    full_sources: Collection[str] = ()  # their runs have all connections that the settings allow


def why_late(facts: LateFacts, runners: Runners) -> Lateness:
    """The first reason that keeps the next success away."""
    if not facts.enabled:
        return Lateness(LateCause.DISABLED, f"it is disabled{_by(facts)}; enable it")
    match facts.status:
        case Status.PAUSED | Status.PAUSE_REQUESTED:
            return Lateness(LateCause.PAUSED, f"it is paused{_by(facts)}; resume it")
        case Status.FAILED:
            return _failed(facts)
        case Status.RUNNING:
            return _running(facts, runners)
        case Status.RUN_REQUESTED:
            return _requested(facts, runners)
        case Status.IDLE:
            return _late_idle(facts, runners)


def _failed(facts: LateFacts) -> Lateness:
    if facts.last_error_code == TOO_MANY_REJECTS:
        sentence = f"{_late_failure(facts)}: the quarantine is full; correct the rows, or raise options.max_rejects"
        return Lateness(LateCause.QUARANTINE_FULL, sentence)
    return Lateness(LateCause.FAILED, f"{_late_failure(facts)}; correct the cause, then run it again")


def _running(facts: LateFacts, runners: Runners) -> Lateness:
    if facts.lease_expires_at is not None and facts.lease_expires_at < facts.now:
        follows = "another runner takes over" if runners.alive else _NO_RUNNER
        sentence = f"runner {facts.lease_owner} stopped sending heartbeats; {follows}"
        return Lateness(LateCause.RUNNER_GONE, sentence)
    since = f" since {_shown(facts.status_since)}" if facts.status_since else ""
    run = f"a run is under way{since}"
    return _held_back(facts, run) or Lateness(LateCause.RUNNING, f"{run}; the mart is fresh when it has succeeded")


def _requested(facts: LateFacts, runners: Runners) -> Lateness:
    if not runners.alive:
        return Lateness(LateCause.RUNNER_GONE, _NO_RUNNER)
    if facts.next_attempt_at is not None and facts.next_attempt_at > facts.now:
        return _retrying(facts, facts.next_attempt_at)
    if facts.source in runners.full_sources:
        sentence = f"the run waits: source '{facts.source}' has as many runs as its limit of connections allows"
        return Lateness(LateCause.NO_SLOT, sentence)
    return Lateness(LateCause.NO_SLOT, "the run waits for a free slot of a runner; start more runners if it stays so")


def _late_idle(facts: LateFacts, runners: Runners) -> Lateness:
    if facts.next_due_at is None and facts.chained:
        names = ", ".join(facts.missing_upstreams)
        waits = f"it runs after {names}, which did not succeed since its last run; run these"
        if not names and not runners.alive:
            return Lateness(LateCause.RUNNER_GONE, _NO_RUNNER)
        sentence = waits if names else "all that it runs after have succeeded, and a runner starts it"
        return Lateness(LateCause.UPSTREAM, sentence)
    if facts.next_due_at is None:
        return Lateness(LateCause.NOT_SCHEDULED, "nothing starts its runs; give it a schedule_interval, or run it")
    if not runners.alive:
        return Lateness(LateCause.RUNNER_GONE, _NO_RUNNER)
    if facts.postponed:
        return _retrying(facts, facts.next_due_at)
    due = f"the next run is due at {_shown(facts.next_due_at)}"
    return _held_back(facts, due) or Lateness(LateCause.NOT_DUE, f"{due}; the schedule is longer than the promise")


def _retrying(facts: LateFacts, at: datetime) -> Lateness:
    return Lateness(LateCause.RETRYING, f"{_late_failure(facts)}; the next attempt is at {_shown(at)}")


def _held_back(facts: LateFacts, otherwise: str) -> Lateness | None:
    """An open transaction of the source makes every run read again what followed it."""
    if facts.horizon_blocker is None:
        return None
    lag = facts.horizon_lag_seconds or 0
    sentence = (
        f"{otherwise}, and its runs read again all that changed since a transaction of the source began"
        f" ({facts.horizon_blocker}, open for {lag:.0f} s when a run last read it); end that transaction"
    )
    return Lateness(LateCause.SOURCE_TRANSACTION, sentence)


def _late_failure(facts: LateFacts) -> str:
    at = f" at {_shown(facts.last_error_at)}" if facts.last_error_at else ""
    return f"the last run failed with {facts.last_error_code}{at}" if facts.last_error_code else "the last run failed"


def _by(facts: LateFacts) -> str:
    if facts.halted_by and facts.halted_at:
        return f" by {facts.halted_by} since {_shown(facts.halted_at)}"
    return f" since {_shown(facts.status_since)}" if facts.status_since and facts.enabled else ""


# -- from the store ---------------------------------------------------------------------------------------------------


def late_causes(connection: Connection, settings: Settings, found: Iterable[Pipeline]) -> Mapping[PipelineId, Lateness]:
    """Why the marts of those pipelines are late that are."""
    return late_causes_of(connection, settings, [one.id for one in found if one.is_late(one.stale_at(settings.zone))])


def late_causes_of(
    connection: Connection, settings: Settings, ids: Sequence[PipelineId]
) -> Mapping[PipelineId, Lateness]:
    """Why these marts are late; at most three statements, however many they are."""
    if not ids:
        return {}
    limits = settings.runs_per_source()
    full = queue.list_full_sources(connection, limits) if limits else ()
    runners = Runners(history.count_live_runners(connection), full)
    found = lists.list_late_facts(connection, ids)
    return {pipeline_id: why_late(facts, runners) for pipeline_id, facts in found.items()}
