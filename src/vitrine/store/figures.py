"""Figures over many pipelines, for pages that show all of them; every query reads a limited number of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal, NamedTuple
from uuid import UUID

from vitrine.postgres import Connection
from vitrine.store import selecting
from vitrine.store.database import fetch_all, fetch_one
from vitrine.store.runs import RUNNER_SEEN_WITHIN

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
    crons = selecting.list_stale_crons(connection, zone)
    row = fetch_one(connection, "count_states", stale_crons=crons, limit=MAX_COUNTED)
    return dict(row) if row else {}


def count_groups(connection: Connection, zone: tzinfo, by: Literal["owner", "tag"]) -> list[dict[str, Any]]:
    crons = selecting.list_stale_crons(connection, zone)
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
