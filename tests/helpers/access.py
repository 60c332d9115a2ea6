"""Access tokens and callers for tests."""

from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta

from vitrine.operations import access
from vitrine.operations.bodies.access import NewToken
from vitrine.operations.context import Caller, Context, Role
from vitrine.postgres import Connection
from vitrine.settings import Settings


def context(settings: Settings, connection: Connection, role: Role = Role.ADMIN) -> Context:
    """A caller with this role, on an open connection."""
    return Context(settings, Caller("cli", f"test-{role}", role), lambda: nullcontext(connection))


def issue(
    settings: Settings, connection: Connection, role: Role, name: str | None = None, *, ttl: timedelta | None = None
) -> str:
    """The text of a new token."""
    new = NewToken(name=name or f"the-{role}", role=role, **({"ttl": ttl} if ttl else {}))
    return access.create_token(context(settings, connection), new).token


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


Issue = Callable[..., str]
