"""The audit log in the store: append-only."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all

NEWEST = 2**63 - 1


class AuditEntry(NamedTuple):
    """One change: who asked for it, from where, and what it was before and after."""

    id: int
    at: datetime
    actor: str
    role: str
    via: str
    address: str | None
    operation: str
    pipeline: str | None
    pipeline_id: UUID | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class AuditFilters(NamedTuple):
    """None: any."""

    pipeline: str | None = None
    actor: str | None = None
    operation: str | None = None
    since: datetime | None = None


def insert(
    connection: Connection,
    *,
    actor: str,
    role: str,
    via: str,
    address: str | None,
    operation: str,
    pipeline: str | None,
    pipeline_id: UUID | None,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Record a change; call it inside the transaction of the change."""
    execute(
        connection,
        "insert_audit",
        actor=actor,
        role=role,
        via=via,
        address=address,
        operation=operation,
        pipeline=pipeline,
        pipeline_id=pipeline_id,
        before=None if before is None else Jsonb(before),
        after=None if after is None else Jsonb(after),
    )


def list_page(
    connection: Connection, filters: AuditFilters, *, before: int = NEWEST, limit: int = 50
) -> list[AuditEntry]:
    """One page, newest first."""
    values = {"pipeline": filters.pipeline, "actor": filters.actor, "operation": filters.operation}
    rows = fetch_all(connection, "list_audit", **values, since=filters.since, before=before, limit=limit)
    return [AuditEntry(**row) for row in rows]
