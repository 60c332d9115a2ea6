"""Connections to PostgreSQL, and the translation of its errors into our groups."""

import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import LiteralString, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from vitrine import server_messages
from vitrine.errors import (
    ACCESS_REFUSED,
    CONNECTION_LIMIT,
    ConfigError,
    DataError,
    TransientError,
    VitrineError,
    group_of,
)
from vitrine.places import Place
from vitrine.urls import PostgresUrl, UrlError, mask, parse_postgres

Connection = psycopg.Connection[DictRow]


# Single statements depend on these; a role or a database may have other defaults
_SESSION = """
    SET default_transaction_isolation = 'read committed';
    SET default_transaction_read_only = off;
    SET default_transaction_deferrable = off;
    SET idle_session_timeout = 0;
    SET array_nulls = on
"""
# The driver reads times in no other format
_READABLE_TIMES = "; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'"


Opened = TypeVar("Opened", bound=Connection)


def connect(url: str, *, name: str, side: str = "database", own_times: bool = False) -> Connection:
    """A connection that works through PgBouncer: nothing relies on session state. pg_stat_activity shows `name`.

    With `own_times`, DateStyle and IntervalStyle stay those of the database, as a user's query needs them.
    """
    return connect_and_ask(psycopg.Connection[DictRow], url, "", name=name, side=side, own_times=own_times)[0]


def connect_and_ask(
    kind: type[Opened], url: str, question: LiteralString, *, name: str, side: str, own_times: bool = False
) -> tuple[Opened, DictRow]:
    """A connection of this kind, and the row that answers a question sent with its first message."""
    target = conninfo(url, side)
    with translated(side, known=None):
        connection = kind.connect(
            target,
            application_name=name,
            autocommit=True,
            prepare_threshold=None,
            row_factory=dict_row,
        )
        try:
            with answered(connection, side):
                answers = connection.execute((_SESSION if own_times else _SESSION + _READABLE_TIMES) + question)
        except BaseException:
            connection.close()
            raise
        while answers.nextset():
            pass
        return connection, (answers.fetchone() if question else None) or {}


@lru_cache(maxsize=64)
def conninfo(url: str, side: str) -> str:
    """What the driver connects with; kept, because every run connects to the same databases."""
    return make_conninfo(
        **check_url(url, side).keywords()
        | {
            # text arrives as characters, whatever the encoding of the database
            # guarantee: J1
            "client_encoding": "UTF8",
            "connect_timeout": "10",
            "keepalives_idle": "30",
            "keepalives_interval": "10",
            "keepalives_count": "3",
        }
    )


ANSWER_SECONDS = 10.0
"""How long a statement that waits for no lock may take; a pooler without a free connection lets it wait."""


@contextmanager
def answered(connection: Connection, side: str) -> Generator[None]:
    """For a statement that opens a transaction: TransientError if no answer arrives in time.

    A run holds a connection of its source while it waits here. If every run of a small pool did so, none would ever
    continue.
    """

    def refusal() -> VitrineError:
        return TransientError(
            f"{side}: no answer within {ANSWER_SECONDS:g} s; the pooler has no free connection, or the network is"
            f" interrupted{_MORE_CONNECTIONS}",
            code=CONNECTION_LIMIT,
        )

    with ended_after(ANSWER_SECONDS, lambda: leave(connection), refusal):
        yield


def leave(connection: Connection) -> None:
    """From any thread: end the current call by closing the socket, whatever the server does."""
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as own:
        own.shutdown(socket.SHUT_RDWR)


@contextmanager
def ended_after(seconds: float, end: Callable[[], None], refusal: Callable[[], VitrineError]) -> Generator[None]:
    """Call `end`, which must not block, if the block takes longer, and raise the refusal for the error it causes."""
    late = threading.Event()

    def call() -> None:
        late.set()
        end()

    entry = _deadlines.add(time.monotonic() + seconds, call)
    try:
        yield
    except (psycopg.Error, VitrineError) as exc:
        if not late.is_set():
            raise
        raise refusal() from exc
    finally:
        _deadlines.remove(entry)


class _Deadlines:
    """Calls functions when their time has come, all in one thread: every transaction has a deadline for its start."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._entries: dict[int, tuple[float, Callable[[], None]]] = {}
        self._numbers = itertools.count()
        self._process = 0  # whose thread is running: a fork has none
        self._wakes_at = 0.0  # when the thread checks the entries again

    def add(self, at: float, call: Callable[[], None]) -> int:
        number = next(self._numbers)
        if self._process != os.getpid():
            self._start()
        with self._changed:
            self._entries[number] = at, call
            # a thread that wakes up for every transaction would take the interpreter lock from the others
            if at < self._wakes_at:
                self._changed.notify()
        return number

    def remove(self, number: int) -> None:
        self._entries.pop(number, None)

    def _start(self) -> None:
        self._process, self._changed, self._wakes_at = os.getpid(), threading.Condition(), 0.0
        threading.Thread(target=self._run, name="deadlines", daemon=True).start()

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            for number, (at, call) in list(self._entries.items()):
                if at <= now and self._entries.pop(number, None) is not None:
                    call()
            with self._changed:
                following = [at for at, _ in list(self._entries.values())]
                self._wakes_at = min(following, default=now + ANSWER_SECONDS)
                self._changed.wait(self._wakes_at - now)


_deadlines = _Deadlines()


_MORE_CONNECTIONS = "; allow more connections, or fewer runs at once (VITRINE_SOURCE_CONNECTIONS, --concurrency)"
_TOO_MANY = re.compile(
    r"too many (clients|connections)|remaining connection slots|no more connections allowed|query_wait_timeout",
)
"""Refused connections have no SQLSTATE; the last two texts are PgBouncer's."""
_REFUSED_ACCOUNT = re.compile(
    r"FATAL:.*(authentication failed|pg_hba\.conf|does not exist|is not permitted to log in|permission denied"
    r"|no such (user|database))|no password supplied"
)
"""The server's own reasons to refuse an account or a database; they have no SQLSTATE either."""


def check_url(url: str, side: str) -> PostgresUrl:
    """The parts of a URL; ConfigError, which repeats none of them, if it cannot be read."""
    try:
        return parse_postgres(url)
    except UrlError as exc:
        raise ConfigError(f"{side}: the database URL cannot be read: {exc}", code="BAD_URL") from None


def safe_message(exc: BaseException | None, known: str | None = "") -> str:
    """The server's message in one line, if it cannot quote row values; otherwise code, table, column and constraint.

    `known`: the text of the configuration, whose names may be shown. None: no row was being read.
    """
    if isinstance(exc, psycopg.Error) and exc.sqlstate is not None:
        names = [name for name in (exc.diag.table_name, exc.diag.column_name, exc.diag.constraint_name) if name]
        # guarantee: H4
        if group_of(exc.sqlstate) is DataError:
            return " ".join([exc.sqlstate, type(exc).__name__, *names])
        text = server_messages.shown(exc.sqlstate, exc.diag.message_primary or "", known)
        return " ".join([text or type(exc).__name__, f"({exc.sqlstate})", *([] if text else names)])
    if isinstance(exc, psycopg.Error) and not isinstance(exc, psycopg.OperationalError):
        return type(exc).__name__  # raised by the driver, which quotes the value that it cannot read
    lines = str(exc).strip().splitlines()
    return mask(lines[0]) if lines else type(exc).__name__


_UNREACHABLE = "unreachable"
_NO_SERVER = re.compile("Connection refused|failed to resolve host|No such file or directory")

_LIMITS = {
    "53300": (CONNECTION_LIMIT, _MORE_CONNECTIONS),
    "28000": (ACCESS_REFUSED, "; correct the account or the database in the URL"),
    _UNREACHABLE: (None, "; start the server, or correct host and port in its URL"),
    "57014": ("QUERY_CANCELED", "; raise that limit for this account, or make the query smaller"),
    "25P03": (None, "; raise idle_in_transaction_session_timeout for this account"),
    "25P04": (None, "; raise transaction_timeout for this account"),
    "57P05": (None, "; raise idle_session_timeout for this account"),
}
"""SQLSTATEs of server limits, and that of no server at all: our error code, if there is one, and the remedy."""


@contextmanager
def translated(
    side: str,
    *,
    code: str | None = None,
    place_of: Callable[[psycopg.Error], Place | None] | None = None,
    known: str | None = "",
) -> Generator[None]:
    """Raise psycopg's errors as the error group of their SQLSTATE; `side`, with the place, begins the sentence.

    `known` as in `safe_message`.
    """
    try:
        yield
    except psycopg.Error as exc:
        group = group_of(exc.sqlstate)
        if isinstance(exc, psycopg.OperationalError) and exc.sqlstate is None:
            # refused passwords and unknown databases have no SQLSTATE: only the text identifies them
            group = TransientError
        limit, _ = _limit_of(exc)
        place = place_of(exc) if place_of else None
        where = f"{side}, {place}" if place else side
        raise group(f"{where}: {with_remedy(exc, known)}", code=code or limit, place=place) from exc


def with_remedy(exc: psycopg.Error, known: str | None = "") -> str:
    """As `safe_message`, with what to do about a server limit or a server that is not there."""
    return f"{safe_message(exc, known)}{_limit_of(exc)[1]}"


def _limit_of(exc: psycopg.Error) -> tuple[str | None, str]:
    return _LIMITS.get(exc.sqlstate or _state_of_refusal(str(exc)), (None, ""))


def _state_of_refusal(text: str) -> str:
    """The SQLSTATE with which a server refused a connection, `_UNREACHABLE`, or empty: another reason."""
    if _TOO_MANY.search(text):
        return "53300"
    if _REFUSED_ACCOUNT.search(text):
        return "28000"
    return _UNREACHABLE if _NO_SERVER.search(text) else ""


STABLE_PATH = "SET LOCAL search_path = pg_catalog, pg_temp"

# guarantee: J25
STABLE_NAMES = f"""
    {STABLE_PATH};
    SET LOCAL standard_conforming_strings = on;
    SET LOCAL array_nulls = on;
    SET LOCAL bytea_output = 'hex';
    SET LOCAL extra_float_digits = 1;
    SET LOCAL lc_monetary = 'C'
"""
"""Names and literals mean the same in every transaction, and text formats keep every digit."""

STABLE_TIMES = """
    SET LOCAL TimeZone = 'UTC';
    SET LOCAL DateStyle = 'ISO';
    SET LOCAL IntervalStyle = 'postgres'
"""
"""Times have the same text everywhere. A user's query runs without them, under the settings of its own database."""

TEXT_FORMAT = STABLE_NAMES + ";" + STABLE_TIMES


CATALOG_NAMES = "SET LOCAL search_path = pg_catalog"


@contextmanager
def in_transaction(connection: Connection, settings: LiteralString) -> Generator[None]:
    """A transaction under these settings, which one message starts; part of the open one, if there is one."""
    if connection.info.transaction_status is not TransactionStatus.IDLE:
        with connection.transaction():
            connection.execute(settings)
            yield
        return
    connection.execute("BEGIN; " + settings)
    try:
        yield
    except BaseException:
        if not connection.closed:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def raw(text: str) -> sql.SQL:
    """Text that is SQL already: a query that passed the policy, or a type name that PostgreSQL returned."""
    return sql.SQL(cast(LiteralString, text))


def fetch_extended(connection: Connection, statement: sql.Composed) -> DictRow | None:
    """One row by the extended protocol, where the server refuses a second statement: binary results force it."""
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(statement).fetchone()
