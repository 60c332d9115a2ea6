"""What the store knows about pipelines whose marts are late."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow

from vitrine.ids import PipelineId
from vitrine.postgres import Connection
from vitrine.requests import RETURNING
from vitrine.status import Status
from vitrine.store.database import fetch_all


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


def list_facts(connection: Connection, ids: Sequence[PipelineId]) -> dict[PipelineId, LateFacts]:
    """One statement for any number of pipelines."""
    if not ids:
        return {}
    rows = fetch_all(connection, "list_late_facts", ids=list(ids), returning=sorted(RETURNING))
    return {facts.id: facts for facts in map(_facts, rows)}


def _facts(row: DictRow) -> LateFacts:
    values: dict[str, Any] = {**row, "status": Status(row["status"])}
    return LateFacts(**values)
