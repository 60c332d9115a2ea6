"""The three restricted accounts of a test database."""

import itertools
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from psycopg import sql
from pydantic import SecretStr

from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store.roles import Places, Roles, apply_roles

PLACES = Places(sources=("content", "ugc"))
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Accounts:
    """URLs of accounts that can log in, and the roles they are members of."""

    roles: Roles
    reader: str
    runner: str
    api: str

    def of_runner(self, settings: Settings) -> Settings:
        return self._with(settings, self.runner)

    def of_api(self, settings: Settings) -> Settings:
        return self._with(settings, self.api)

    def _with(self, settings: Settings, url: str) -> Settings:
        sources = {"default": SecretStr(self.reader)}
        return Settings.model_validate(
            settings.model_dump(exclude={"database_url", "sources"}) | {"database_url": url, "sources": sources}
        )


def as_user(url: str, user: str) -> str:
    """The same URL with another user."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}@{parts.netloc.rpartition('@')[2]}"))


@contextmanager
def accounts(connection: Connection, url: str, *, places: Places = PLACES) -> Generator[Accounts]:
    """Create roles with a login each in this database, and drop them at the end; roles belong to the whole server."""
    prefix = f"acc{next(_numbers)}"
    roles = Roles.of(prefix)
    apply_roles(connection, roles, places)
    for role in roles:
        statement = sql.SQL("CREATE ROLE {0} LOGIN IN ROLE {1}; ALTER ROLE {0} SET search_path = pg_catalog")
        connection.execute(statement.format(sql.Identifier(f"{role}_1"), sql.Identifier(role)))
    urls = [as_user(url, f"{role}_1") for role in roles]
    try:
        yield Accounts(roles, *urls)
    finally:
        with connect(url, name="tests") as admin:
            for role in roles:
                for name in (f"{role}_1", role):
                    admin.execute(sql.SQL("REASSIGN OWNED BY {} TO CURRENT_USER").format(sql.Identifier(name)))
                    admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
                    admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
