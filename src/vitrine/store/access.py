"""Access tokens, sessions of the console, and the audit log; only hashes of secrets are stored."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from psycopg.types.json import Jsonb

from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one

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


def insert_entry(
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


def list_audit(
    connection: Connection, filters: AuditFilters, *, before: int = NEWEST, limit: int = 50
) -> list[AuditEntry]:
    """One page, newest first."""
    values = {"pipeline": filters.pipeline, "actor": filters.actor, "operation": filters.operation}
    rows = fetch_all(connection, "list_audit", **values, since=filters.since, before=before, limit=limit)
    return [AuditEntry(**row) for row in rows]


@dataclass(frozen=True)
class StoredToken:
    """A token as an administrator sees it."""

    id: UUID
    name: str
    role: str
    prefix: str
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None  # to the minute; None: never used


@dataclass(frozen=True)
class ValidToken:
    """A token that may be used now."""

    id: UUID
    name: str
    role: str
    hash: bytes
    seconds_left: float


def list_valid_tokens(connection: Connection) -> list[ValidToken]:
    return [ValidToken(**row) for row in fetch_all(connection, "list_valid_tokens")]


def tokens_exist(connection: Connection) -> bool:
    """Whether a token was ever created; revoked and expired ones count."""
    row = fetch_one(connection, "has_tokens")
    return row is not None and row["found"]


def record_token_use(connection: Connection, ids: Collection[UUID]) -> None:
    execute(connection, "record_token_use", ids=list(ids))


def insert_token(
    connection: Connection, *, name: str, role: str, hash: bytes, prefix: str, created_by: str, ttl: timedelta
) -> StoredToken | None:
    """None if the name is in use by a token that is not revoked."""
    values = {"name": name, "role": role, "hash": hash, "prefix": prefix, "created_by": created_by, "ttl": ttl}
    row = fetch_one(connection, "insert_token", **values)
    return StoredToken(**row) if row else None


def list_tokens(connection: Connection, *, after: str = "", limit: int = 200) -> list[StoredToken]:
    """One page of the tokens that are not revoked, in the order of their names; expired ones are included."""
    return [StoredToken(**row) for row in fetch_all(connection, "list_tokens", after=after, limit=limit)]


def revoke_token(connection: Connection, name: str) -> StoredToken | None:
    """None if no token has this name, or it is revoked already."""
    row = fetch_one(connection, "revoke_token", name=name)
    return StoredToken(**row) if row else None


@dataclass(frozen=True)
class Session:
    """A browser that is logged in."""

    hash: bytes
    token_id: UUID
    seconds_left: float


def insert_session(connection: Connection, *, hash: bytes, token_id: UUID, idle: timedelta) -> None:
    execute(connection, "insert_session", hash=hash, token_id=token_id, idle=idle)


def list_valid_sessions(connection: Connection, hashes: Collection[bytes]) -> list[Session]:
    """Those of the sessions that have not expired, and whose token is valid."""
    return [Session(**row) for row in fetch_all(connection, "list_valid_sessions", hashes=list(hashes))]


def record_session_use(
    connection: Connection, hashes: Collection[bytes], *, idle: timedelta, longest: timedelta
) -> None:
    """Extend sessions that are in use: they expire after `idle` without use, and at the latest after `longest`."""
    execute(connection, "record_session_use", hashes=list(hashes), idle=idle, longest=longest)


def delete_session(connection: Connection, hash: bytes) -> bool:
    return execute(connection, "delete_session", hash=hash) > 0


def prune_sessions(connection: Connection, *, limit: int = 500) -> int:
    """Delete sessions that have expired, or whose token was revoked; how many."""
    return execute(connection, "prune_sessions", limit=limit)
