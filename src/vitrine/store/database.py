"""The store's named statements."""

import re
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from types import TracebackType
from typing import Any, LiteralString, Self, cast

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from vitrine.errors import ConfigError, VitrineError
from vitrine.postgres import Connection, answered, connect, safe_message, translated

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


SPARE_SECONDS = 1.0
"""How long a connection waits for the next run; a runner without work must not hold connections that others need."""


class Spares:
    """Connections to the store that ended runs have left for the next ones of this process.

    A new session costs the server more than the statements of a small run: a process, and empty caches. The statements
    on these connections are all our own, and settings other than those of `connect` end with their transactions.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._spares: list[tuple[Connection, float]] = []  # each with the time when it is closed

    def take(self, name: str) -> Connection | None:
        """One that still works, under this name in pg_stat_activity: the sessions of a lost lease are ended by name."""
        while True:
            with self._lock:
                if not self._spares:
                    return None
                connection, until = self._spares.pop()
            if self._clock() < until and _renamed(connection, name):
                return connection
            connection.close()

    def leave(self, connection: Connection) -> None:
        """For the next run; closed at once if the connection is broken or has an open transaction."""
        if connection.closed or connection.info.transaction_status is not TransactionStatus.IDLE:
            connection.close()
            return
        with self._lock:
            self._spares.append((connection, self._clock() + SPARE_SECONDS))

    def close_old(self) -> None:
        """Close those that no run has taken in time."""
        now = self._clock()
        with self._lock:
            old = [connection for connection, until in self._spares if until <= now]
            self._spares = [one for one in self._spares if one[1] > now]
        for connection in old:
            connection.close()

    def close(self) -> None:
        """Close all of them."""
        with self._lock:
            spares, self._spares = self._spares, []
        for connection, _ in spares:
            connection.close()


def _renamed(connection: Connection, name: str) -> bool:
    try:
        with answered(connection, "store"):
            connection.execute("SELECT set_config('application_name', %s, false)", [name])
    except (psycopg.Error, VitrineError):
        return False  # the server has ended the session, or the network is interrupted
    return True


class Link:
    """A connection to the store that opens on first use, and again after it was dropped."""

    def __init__(self, url: str, *, name: str, spares: Spares | None = None) -> None:
        self._url = url
        self._name = name
        self._spares = spares
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.drop()

    def connection(self) -> Connection:
        if self._connection is None or self._connection.closed:
            spare = self._spares.take(self._name) if self._spares is not None else None
            self._connection = spare or connect(self._url, name=self._name)
        return self._connection

    def another(self) -> Connection:
        """A second connection, which the caller closes."""
        return connect(self._url, name=self._name)

    def leave(self) -> None:
        """Leave the connection for the next run; only for a run that still had its lease when it ended."""
        if self._connection is not None and self._spares is not None:
            self._spares.leave(self._connection)
            self._connection = None

    def drop(self) -> None:
        """Close the connection, so that the next use opens a new one: a broken connection may still look open."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
