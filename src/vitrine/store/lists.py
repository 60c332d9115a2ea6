"""Reads over many pipelines: filters, figures, lineage, runners; every query reads a limited number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from psycopg.rows import DictRow

from vitrine.core.status import RETURNING, PipelineId, Status
from vitrine.postgres import Connection
from vitrine.store.database import fetch_all, fetch_one
from vitrine.store.filters import list_stale_crons
from vitrine.store.history import RUNNER_SEEN_WITHIN


class Ends(NamedTuple):
    """A pipeline without its query: where it reads and writes."""

    id: PipelineId
    name: str
    config_version: int
    created_at: datetime
    source: str
    target_table: str
    enabled: bool


class Unusual(NamedTuple):
    """The state of a pipeline that is not idle, or whose mart is late."""

    name: str
    enabled: bool
    status: Status
    stale: bool


class Reading(NamedTuple):
    """How a pipeline reads: one of them is set, unless the definition is not valid."""

    id: PipelineId
    config_version: int
    query: str | None
    reader: str | None


def get_lineage_version(connection: Connection, *, limit: int) -> tuple[int, Decimal | None]:
    """Another one after every change of what `list_ends` or `list_readings` return."""
    row = fetch_one(connection, "get_lineage_version", limit=limit)
    assert row is not None  # noqa: S101  an aggregate has one row
    return row["pipelines"], row["hash"]


def list_ends(connection: Connection, *, limit: int) -> list[Ends]:
    """Pipelines in the order of their names."""
    return [Ends(**row) for row in fetch_all(connection, "list_lineage", limit=limit)]


def list_unusual(connection: Connection, zone: tzinfo, *, limit: int) -> list[Unusual]:
    """All others are idle and in time. `zone`: time zone for cron schedules."""
    crons = list_stale_crons(connection, zone)
    rows = fetch_all(connection, "list_lineage_states", stale_crons=crons, limit=limit)
    return [Unusual(row["name"], row["enabled"], Status(row["status"]), row["stale"]) for row in rows]


def list_readings(connection: Connection, ids: Sequence[PipelineId]) -> list[Reading]:
    return [
        _reading(row["id"], row["config_version"], row["task_type"], row["body"], row["source_table"])
        if row["task_type"]
        else Reading(
            row["id"], row["config_version"], row["source_query"], None if row["source_query"] else row["python_task"]
        )
        for row in fetch_all(connection, "list_reading_steps", ids=list(ids))
    ]


def _reading(id: PipelineId, version: int, task_type: str, body: str | None, source_table: str | None) -> Reading:
    if task_type == "PYTHON":
        return Reading(id, version, None, body)
    # parsed, never executed
    return Reading(id, version, body or (f"SELECT * FROM {source_table}" if source_table else None), None)  # noqa: S608


@dataclass(frozen=True)
class LateFacts:
    """Of one pipeline: what decides why its mart is late."""

    id: PipelineId
    now: datetime
    enabled: bool
    status: Status  # during a request that leaves the checkpoint alone: the one to which the pipeline returns
    status_since: datetime | None  # None: not recorded
    source: str
    last_error_code: str | None
    last_error_at: datetime | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    next_attempt_at: datetime | None
    next_due_at: datetime | None
    postponed: int
    horizon_blocker: str | None
    horizon_lag_seconds: float | None
    chained: bool  # it runs after others
    missing_upstreams: Sequence[str]  # whose success the next wave waits for
    halted_by: str | None  # who paused or disabled it; None: neither, or not recorded
    halted_at: datetime | None


def list_late_facts(connection: Connection, ids: Sequence[PipelineId]) -> dict[PipelineId, LateFacts]:
    """One statement for any number of pipelines."""
    if not ids:
        return {}
    rows = fetch_all(connection, "list_late_facts", ids=list(ids), returning=sorted(RETURNING))
    return {facts.id: facts for facts in map(_facts, rows)}


def _facts(row: DictRow) -> LateFacts:
    values: dict[str, Any] = {**row, "status": Status(row["status"])}
    return LateFacts(**values)


MAX_COUNTED = 100_000
"""So many pipelines are counted at most."""

MAX_GROUPS = 200


@dataclass(frozen=True)
class RecentRun:
    """What a small chart shows of a run."""

    id: int
    kind: str
    status: str
    started_at: datetime
    seconds: float
    rows_read: int
    rows_written: int


class Sparkline(NamedTuple):
    """The newest runs of a pipeline, oldest first: one element of each for every run."""

    statuses: list[str]
    milliseconds: list[int]
    started: list[int]  # milliseconds since the epoch


@dataclass(frozen=True)
class Health:
    """Whether work proceeds."""

    runners: int
    waiting: int  # requested pipelines
    oldest_wait: float | None  # seconds since the oldest of those that a runner may start was requested
    running: int
    held_pipeline: str | None  # whose checkpoint waits longest for an open transaction; None: none waits
    horizon_lag: float | None
    horizon_blocker: str | None
    now: datetime


@dataclass(frozen=True)
class Change:
    """One entry of the audit log without the values."""

    id: int
    at: datetime
    actor: str
    via: str
    operation: str
    fields: list[str]


def count_states(connection: Connection, zone: tzinfo) -> dict[str, int]:
    """Pipelines by status, and how many are stale or disabled."""
    crons = list_stale_crons(connection, zone)
    row = fetch_one(connection, "count_states", stale_crons=crons, limit=MAX_COUNTED)
    return dict(row) if row else {}


def count_groups(connection: Connection, zone: tzinfo, by: Literal["owner", "tag"]) -> list[dict[str, Any]]:
    crons = list_stale_crons(connection, zone)
    statement = "count_owners" if by == "owner" else "count_tags"
    return [
        dict(row) for row in fetch_all(connection, statement, stale_crons=crons, limit=MAX_COUNTED, groups=MAX_GROUPS)
    ]


def list_recent_runs(connection: Connection, ids: Sequence[UUID], *, limit: int) -> dict[UUID, list[RecentRun]]:
    """The newest runs of these pipelines, oldest first."""
    found: dict[UUID, list[RecentRun]] = {one: [] for one in ids}
    for row in reversed(fetch_all(connection, "list_recent_runs", ids=list(ids), limit=limit)):
        values = dict(row)
        found[values.pop("pipeline_id")].append(RecentRun(**values))
    return found


def list_sparklines(connection: Connection, ids: Sequence[UUID], *, limit: int) -> dict[UUID, Sparkline]:
    """The newest runs of these pipelines."""
    return {
        row["id"]: Sparkline(
            _oldest_first(row["statuses"]), _oldest_first(row["milliseconds"]), _oldest_first(row["started"])
        )
        for row in fetch_all(connection, "list_sparklines", ids=list(ids), limit=limit)
    }


def _oldest_first(newest_first: list[Any] | None) -> list[Any]:
    return newest_first[::-1] if newest_first else []


def get_health(connection: Connection, *, limit: int, within: timedelta = RUNNER_SEEN_WITHIN) -> Health:
    row = fetch_one(connection, "get_health", limit=limit, within=within)
    assert row is not None  # noqa: S101  a query without FROM has one row
    return Health(**row)


def list_changes(connection: Connection, name: str, *, before: int, limit: int) -> list[Change]:
    """One page of the changes of a pipeline, newest first."""
    return [Change(**row) for row in fetch_all(connection, "list_changes", name=name, before=before, limit=limit)]


@dataclass(frozen=True)
class Runner:
    """A process that has registered; one that was killed stays for a day."""

    name: str
    started_at: datetime
    seen_at: datetime
    is_alive: bool


@dataclass(frozen=True)
class Lease:
    """A pipeline that a runner holds, and its run."""

    pipeline: str
    status: str
    source: str
    runner: str
    expires_at: datetime
    heartbeat_at: datetime | None
    is_expired: bool
    run_id: int | None  # None: the run ends at this moment
    kind: str | None
    started_at: datetime | None
    rows_read: int | None
    rows_expected: int | None


@dataclass(frozen=True)
class SourceCount:
    """How many pipelines of a source run and wait."""

    name: str
    running: int
    waiting: int


def list_runners(connection: Connection, *, limit: int, within: timedelta = RUNNER_SEEN_WITHIN) -> list[Runner]:
    """Those seen last come first."""
    return [Runner(**row) for row in fetch_all(connection, "list_runners", limit=limit, within=within)]


def list_leases(connection: Connection, *, limit: int) -> list[Lease]:
    """The longest runs first."""
    return [Lease(**row) for row in fetch_all(connection, "list_leases", limit=limit)]


def count_sources(connection: Connection, *, limit: int) -> list[SourceCount]:
    return [SourceCount(**row) for row in fetch_all(connection, "count_sources", limit=limit)]
