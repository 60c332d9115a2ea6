"""The store's named statements."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from types import TracebackType
from typing import Any, LiteralString, Self, cast

import psycopg
from psycopg.rows import DictRow

from vitrine.errors import ConfigError
from vitrine.postgres import Connection, connect, safe_message, translated

_NOT_THERE = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName)


_PART = re.compile(r"^-- (fragment )?(\w+) --$", re.MULTILINE)
_INCLUDE = re.compile(r"^[ \t]*-- include (\w+)$", re.MULTILINE)


@cache
def _statements() -> Mapping[str, LiteralString]:
    return parse(files("vitrine.store").joinpath("queries.sql").read_text("utf-8"))


def parse(text: str) -> dict[str, LiteralString]:
    """The statements of a file by name, each with the fragments that it includes."""
    statements: dict[str, str] = {}
    fragments: dict[str, str] = {}
    parts = iter(_PART.split(text)[1:])
    for fragment, name, body in zip(parts, parts, parts, strict=True):
        (fragments if fragment else statements)[name] = body.strip()
    return {
        name: cast(LiteralString, _INCLUDE.sub(lambda include: fragments[include[1]], body))
        for name, body in statements.items()
    }


def statement(name: str) -> LiteralString:
    """A statement of queries.sql by its name."""
    return _statements()[name]


def statement_names() -> list[str]:
    return sorted(_statements())


def fetch_all(connection: Connection, name: str, /, **arguments: Any) -> list[DictRow]:
    with _store_errors():
        return connection.execute(statement(name), arguments).fetchall()


def fetch_one(connection: Connection, name: str, /, **arguments: Any) -> DictRow | None:
    with _store_errors():
        return connection.execute(statement(name), arguments).fetchone()


def execute(connection: Connection, name: str, /, **arguments: Any) -> int:
    """Rows touched."""
    with _store_errors():
        return connection.execute(statement(name), arguments).rowcount


_TRANSACTION = """
    SET LOCAL idle_in_transaction_session_timeout = '10s';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""


@contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """All or nothing; a connection that is lost at its begin or end is told like one lost inside.

    A process that stops in the middle holds its rows for ten seconds, and not for as long as it is stopped. What was
    committed outlives a crash of the server whatever its settings: a token must not be drawn twice.
    """
    with _store_errors(), connection.transaction():
        connection.execute(_TRANSACTION)
        yield


@contextmanager
def _store_errors() -> Generator[None]:
    """A store that was never migrated gets its remedy; violated constraints stay what they are for the caller."""
    try:
        with translated("store", code=None):
            yield
    except ConfigError as exc:
        cause = exc.__cause__
        if isinstance(cause, _NOT_THERE):
            text = f"the store is not up to date ({safe_message(cause)}); run `vitrine migrate`"
            raise ConfigError(text, code="NOT_MIGRATED") from cause
        raise


class Link:
    """A connection to the store that is made when it is wanted, and made anew after it was dropped."""

    def __init__(self, url: str, *, name: str) -> None:
        self._url = url
        self._name = name
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._url, name=self._name)
        return self._connection

    def another(self) -> Connection:
        """A connection for somebody else, who closes it."""
        return connect(self._url, name=self._name)

    def drop(self) -> None:
        """Whoever doubts the connection drops it: one that was cut may not know it yet."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
