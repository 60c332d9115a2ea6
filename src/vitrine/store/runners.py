"""Runner processes, the leases they hold, and the sources they read; every query reads a limited number of rows."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from vitrine.postgres import Connection
from vitrine.store.database import fetch_all
from vitrine.store.runs import RUNNER_SEEN_WITHIN


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


def list_all(connection: Connection, *, limit: int, within: timedelta = RUNNER_SEEN_WITHIN) -> list[Runner]:
    """Those seen last come first."""
    return [Runner(**row) for row in fetch_all(connection, "list_runners", limit=limit, within=within)]


def list_leases(connection: Connection, *, limit: int) -> list[Lease]:
    """The longest runs first."""
    return [Lease(**row) for row in fetch_all(connection, "list_leases", limit=limit)]


def count_sources(connection: Connection, *, limit: int) -> list[SourceCount]:
    return [SourceCount(**row) for row in fetch_all(connection, "count_sources", limit=limit)]
