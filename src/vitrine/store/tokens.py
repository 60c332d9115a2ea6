"""Access tokens in the store; only their hashes are stored."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all, fetch_one


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


def list_valid(connection: Connection) -> list[ValidToken]:
    return [ValidToken(**row) for row in fetch_all(connection, "list_valid_tokens")]


def exist(connection: Connection) -> bool:
    """Whether a token was ever created; revoked and expired ones count."""
    row = fetch_one(connection, "has_tokens")
    return row is not None and row["found"]


def record_use(connection: Connection, ids: Collection[UUID]) -> None:
    execute(connection, "record_token_use", ids=list(ids))


def insert(
    connection: Connection, *, name: str, role: str, hash: bytes, prefix: str, created_by: str, ttl: timedelta
) -> StoredToken | None:
    """None if the name is in use by a token that is not revoked."""
    values = {"name": name, "role": role, "hash": hash, "prefix": prefix, "created_by": created_by, "ttl": ttl}
    row = fetch_one(connection, "insert_token", **values)
    return StoredToken(**row) if row else None


def list_page(connection: Connection, *, after: str = "", limit: int = 200) -> list[StoredToken]:
    """One page of the tokens that are not revoked, in the order of their names; expired ones are included."""
    return [StoredToken(**row) for row in fetch_all(connection, "list_tokens", after=after, limit=limit)]


def revoke(connection: Connection, name: str) -> StoredToken | None:
    """None if no token has this name, or it is revoked already."""
    row = fetch_one(connection, "revoke_token", name=name)
    return StoredToken(**row) if row else None
