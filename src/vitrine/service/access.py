"""Access tokens: create, list, revoke; and who the caller is."""

from vitrine import token_text
from vitrine.errors import ConfigError, NotFound
from vitrine.service import audit
from vitrine.service.bodies.access import CreatedToken, NewToken, TokenBody, TokenPage, WhoAmI
from vitrine.service.context import Context
from vitrine.service.permissions import allowed
from vitrine.service.roles import Role
from vitrine.store import tokens


@allowed(Role.ADMIN)
def create_token(context: Context, new: NewToken) -> CreatedToken:
    """The only answer that contains the text of the token."""
    text = token_text.create()
    hashed = token_text.hash_of(text) or b""
    with context.connection() as connection, audit.recorded(context, connection, "tokens.create") as record:
        stored = tokens.insert(
            connection,
            name=new.name,
            role=new.role,
            hash=hashed,
            prefix=text[: token_text.SHOWN],
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
        found = tokens.list_page(connection, after=after, limit=limit + 1)
    items = [TokenBody.of(token) for token in found[:limit]]
    return TokenPage(items=items, next=items[-1].name if len(found) > limit else None)


@allowed(Role.ADMIN)
def revoke_token(context: Context, name: str) -> None:
    with context.connection() as connection, audit.recorded(context, connection, "tokens.revoke") as record:
        revoked = tokens.revoke(connection, name)
        if revoked is None:
            raise NotFound(f"there is no token '{name}'; `vitrine token list` shows all tokens")
        record.add(before=_facts(revoked))


@allowed(Role.VIEWER)
def who_am_i(context: Context) -> WhoAmI:
    caller = context.caller
    return WhoAmI(name=caller.name, role=caller.role, via=caller.via, address=caller.address)


def _facts(token: tokens.StoredToken) -> dict[str, object]:
    return {"name": token.name, "role": token.role, "prefix": token.prefix, "expires_at": token.expires_at.isoformat()}
