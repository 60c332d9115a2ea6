"""Access tokens, sessions of the console, who the caller is, and the audit log."""

import secrets
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from uuid import UUID

from vitrine.errors import ConfigError, NotFound
from vitrine.operations.bodies.access import AuditBody, AuditPage, CreatedToken, NewToken, TokenBody, TokenPage, WhoAmI
from vitrine.operations.context import Context, Role, allowed, recorded
from vitrine.store import access
from vitrine.store.access import AuditFilters
from vitrine.text import SHOWN, new_token, token_hash

EXPORT_PAGE = 1000
NO_FILTERS = AuditFilters()


@allowed(Role.ADMIN)
def create_token(context: Context, new: NewToken) -> CreatedToken:
    """The only answer that contains the text of the token."""
    text = new_token()
    hashed = token_hash(text) or b""
    with context.connection() as connection, recorded(context, connection, "tokens.create") as record:
        stored = access.insert_token(
            connection,
            name=new.name,
            role=new.role,
            hash=hashed,
            prefix=text[:SHOWN],
            created_by=context.caller.name,
            ttl=new.ttl,
        )
        if stored is None:
            raise ConfigError(
                f"there is already a token '{new.name}'; choose another name, or revoke it first", code="NAME_TAKEN"
            )
        record.add(after=_facts(stored))
    return CreatedToken(token=text, **TokenBody.of(stored).model_dump())


@allowed(Role.ADMIN)
def list_tokens(context: Context, *, after: str = "", limit: int = 50) -> TokenPage:
    """Tokens that are not revoked, in the order of their names; the audit log has the others."""
    with context.connection() as connection:
        found = access.list_tokens(connection, after=after, limit=limit + 1)
    items = [TokenBody.of(token) for token in found[:limit]]
    return TokenPage(items=items, next=items[-1].name if len(found) > limit else None)


@allowed(Role.ADMIN)
def revoke_token(context: Context, name: str) -> None:
    with context.connection() as connection, recorded(context, connection, "tokens.revoke") as record:
        revoked = access.revoke_token(connection, name)
        if revoked is None:
            raise NotFound(f"there is no token '{name}'; `vitrine token list` shows all tokens")
        record.add(before=_facts(revoked))


@allowed(Role.VIEWER)
def who_am_i(context: Context) -> WhoAmI:
    caller = context.caller
    return WhoAmI(name=caller.name, role=caller.role, via=caller.via, address=caller.address)


def _facts(token: access.StoredToken) -> dict[str, object]:
    return {"name": token.name, "role": token.role, "prefix": token.prefix, "expires_at": token.expires_at.isoformat()}


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
        access.prune_sessions(connection)
        with recorded(context, connection, "sessions.open") as record:
            access.insert_session(connection, hash=hash_of(session_id), token_id=token_id, idle=IDLE)
            record.add()
    return session_id


@allowed(Role.VIEWER)
def close_session(context: Context, session_id: str) -> None:
    with context.connection() as connection, recorded(context, connection, "sessions.close") as record:
        if access.delete_session(connection, hash_of(session_id)):
            record.add()


@allowed(Role.ADMIN)
def list_audit_log(
    context: Context, filters: AuditFilters = NO_FILTERS, *, before: int | None = None, limit: int = 50
) -> AuditPage:
    """Newest first; `before` is the id of the last entry of the page before."""
    with context.connection() as connection:
        found = access.list_audit(connection, filters, before=before or access.NEWEST, limit=limit + 1)
    items = [AuditBody.of(entry) for entry in found[:limit]]
    return AuditPage(items=items, next=items[-1].id if len(found) > limit else None)


def export_audit_log(context: Context, filters: AuditFilters = NO_FILTERS) -> Iterator[AuditBody]:
    """Every entry, newest first, a page at a time."""
    page = list_audit_log(context, filters, limit=EXPORT_PAGE)
    yield from page.items
    while page.next is not None:
        page = list_audit_log(context, filters, before=page.next, limit=EXPORT_PAGE)
        yield from page.items
