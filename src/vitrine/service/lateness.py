"""Why a mart is older than it may be."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from vitrine.ids import PipelineId
from vitrine.pipeline import Pipeline
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.status import Status
from vitrine.store import claims, runs
from vitrine.store import lateness as late_marts
from vitrine.store.lateness import LateFacts

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
            return _idle(facts, runners)


def _failed(facts: LateFacts) -> Lateness:
    if facts.last_error_code == TOO_MANY_REJECTS:
        sentence = f"{_failure(facts)}: the quarantine is full; correct the rows, or raise options.max_rejects"
        return Lateness(LateCause.QUARANTINE_FULL, sentence)
    return Lateness(LateCause.FAILED, f"{_failure(facts)}; correct the cause, then run it again")


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


def _idle(facts: LateFacts, runners: Runners) -> Lateness:
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
    return Lateness(LateCause.RETRYING, f"{_failure(facts)}; the next attempt is at {_shown(at)}")


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


_NO_RUNNER = "no runner is alive; start one with `vitrine runner`"


def _failure(facts: LateFacts) -> str:
    at = f" at {_shown(facts.last_error_at)}" if facts.last_error_at else ""
    return f"the last run failed with {facts.last_error_code}{at}" if facts.last_error_code else "the last run failed"


def _by(facts: LateFacts) -> str:
    if facts.halted_by and facts.halted_at:
        return f" by {facts.halted_by} since {_shown(facts.halted_at)}"
    return f" since {_shown(facts.status_since)}" if facts.status_since and facts.enabled else ""


def _shown(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


# -- from the store ---------------------------------------------------------------------------------------------------


def of_late(connection: Connection, settings: Settings, found: Iterable[Pipeline]) -> Mapping[PipelineId, Lateness]:
    """Why the marts of those pipelines are late that are."""
    return of_ids(connection, settings, [one.id for one in found if one.is_late(one.stale_at(settings.zone))])


def of_ids(connection: Connection, settings: Settings, ids: Sequence[PipelineId]) -> Mapping[PipelineId, Lateness]:
    """Why these marts are late; at most three statements, however many they are."""
    if not ids:
        return {}
    limits = settings.runs_per_source()
    full = claims.list_full_sources(connection, limits) if limits else ()
    runners = Runners(runs.count_live_runners(connection), full)
    found = late_marts.list_facts(connection, ids)
    return {pipeline_id: why_late(facts, runners) for pipeline_id, facts in found.items()}
