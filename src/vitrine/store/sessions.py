"""Sessions of the console in the store."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from vitrine.postgres import Connection
from vitrine.store.database import execute, fetch_all


@dataclass(frozen=True)
class Session:
    """A browser that is logged in."""

    hash: bytes
    token_id: UUID
    seconds_left: float


def insert(connection: Connection, *, hash: bytes, token_id: UUID, idle: timedelta) -> None:
    execute(connection, "insert_session", hash=hash, token_id=token_id, idle=idle)


def list_valid(connection: Connection, hashes: Collection[bytes]) -> list[Session]:
    """Those of the sessions that have not expired, and whose token is valid."""
    return [Session(**row) for row in fetch_all(connection, "list_valid_sessions", hashes=list(hashes))]


def record_use(connection: Connection, hashes: Collection[bytes], *, idle: timedelta, longest: timedelta) -> None:
    """Extend sessions that are in use: they expire after `idle` without use, and at the latest after `longest`."""
    execute(connection, "record_session_use", hashes=list(hashes), idle=idle, longest=longest)


def delete(connection: Connection, hash: bytes) -> bool:
    return execute(connection, "delete_session", hash=hash) > 0


def prune(connection: Connection, *, limit: int = 500) -> int:
    """Delete sessions that have expired, or whose token was revoked; how many."""
    return execute(connection, "prune_sessions", limit=limit)
