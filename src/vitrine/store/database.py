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

_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn, psycopg.errors.InvalidSchemaName)


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

    def expanded(body: str) -> str:
        return _INCLUDE.sub(lambda include: expanded(fragments[include[1]]), body)

    return {name: cast(LiteralString, expanded(body)) for name, body in statements.items()}


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
    """Number of rows affected."""
    with _store_errors():
        return connection.execute(statement(name), arguments).rowcount


_TRANSACTION = """
    SET LOCAL idle_in_transaction_session_timeout = '10s';
    SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
"""


@contextmanager
def transaction(connection: Connection) -> Generator[None]:
    """A transaction; a connection lost at BEGIN or COMMIT is the same error as one lost inside.

    A process that is stopped in the middle holds its locks for ten seconds at most. Commits survive a crash of the
    server even if it has synchronous_commit off by default: a token must not be issued twice.
    """
    with _store_errors(), connection.transaction():
        connection.execute(_TRANSACTION)
        yield


@contextmanager
def _store_errors() -> Generator[None]:
    """Name the remedy if the store was never migrated; constraint violations pass through to the caller."""
    try:
        with translated("store", known=None):
            yield
    except ConfigError as exc:
        cause = exc.__cause__
        if isinstance(cause, _MISSING):
            text = f"the store is not up to date ({safe_message(cause, None)}); run `vitrine migrate`"
            raise ConfigError(text, code="NOT_MIGRATED") from cause
        raise


class Link:
    """A connection to the store that opens on first use, and again after it was dropped."""

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
        """A second connection, which the caller closes."""
        return connect(self._url, name=self._name)

    def drop(self) -> None:
        """Close the connection, so that the next use opens a new one: a broken connection may still look open."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
