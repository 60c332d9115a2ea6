"""Sessions of the console: a browser logs in with an access token, and out again."""

import secrets
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from vitrine.service import audit
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import sessions

IDLE = timedelta(hours=12)
LONGEST = timedelta(days=7)
"""A session ends when no page was open for the first time, and in any case after the second one."""

BYTES = 32


def hash_of(session_id: str) -> bytes:
    return sha256(session_id.encode()).digest()


@allowed(Role.VIEWER)
def open_session(context: Context, token_id: UUID) -> str:
    """The id of a new session, for the cookie; it is stored only as a hash."""
    session_id = secrets.token_urlsafe(BYTES)
    with context.connection() as connection:
        sessions.prune(connection)
        with audit.recorded(context, connection, "sessions.open") as record:
            sessions.insert(connection, hash=hash_of(session_id), token_id=token_id, idle=IDLE)
            record.add()
    return session_id


@allowed(Role.VIEWER)
def close_session(context: Context, session_id: str) -> None:
    with context.connection() as connection, audit.recorded(context, connection, "sessions.close") as record:
        if sessions.delete(connection, hash_of(session_id)):
            record.add()
