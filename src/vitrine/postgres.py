"""Connections to PostgreSQL, and its errors in our groups, without the values that its messages quote.

A message may quote a row in nearly every class of errors: a cast to tsquery raises a syntax error with the value, a
cast to regclass a missing relation, a trigger whatever its author wrote. So only known texts are shown. Everything else
is described by its code, table, column and constraint.
"""

import itertools
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from typing import LiteralString, NamedTuple, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from vitrine.errors import (
    ACCESS_REFUSED,
    CONNECTION_LIMIT,
    ConfigError,
    DataError,
    Place,
    TransientError,
    VitrineError,
    group_of,
)
from vitrine.urls import PostgresUrl, UrlError, mask, parse_postgres

_NAME = r'("[^"]+"|[\w.$]+)'

# fmt: off
_WITHOUT_NAMES = (
    r"canceling statement due to (statement timeout|lock timeout|user request|conflict with recovery)",
    r"canceling autovacuum task",
    r"terminating connection due to (administrator command|idle-session timeout|idle-in-transaction timeout"
    r"|transaction timeout|unexpected postmaster exit|conflict with recovery)",
    r"terminating connection because of crash of another server process",
    r"the database system is (starting up|shutting down|in recovery mode|not yet accepting connections)",
    r"deadlock detected",
    r"could not serialize access due to (concurrent update|concurrent delete"
    r"|read/write dependencies among transactions)",
    r"sorry, too many clients already",
    r"remaining connection slots are reserved for .*",
    r"out of (memory|shared memory)",
    r"could not (extend|write|write to|create|open|read|fsync) file \"(base|global|pg_[a-z]+)/[\w./]+\"(: [\w ]+)?",
    r"could not write to (file|temporary file)(: [\w ]+)?",
    r"temporary file size exceeds \"?temp_file_limit\"? \([0-9]+kB\)",
    r"cannot execute [A-Z ]+ in a read-only transaction",
    r"cannot insert multiple commands into a prepared statement",
    r"current transaction is aborted, commands ignored until end of transaction block",
    r"stack depth limit exceeded",
    r"invalid memory alloc request size [0-9]+",
    r"row is too big: size [0-9]+, maximum size [0-9]+",
    r"(tables|target lists) can have at most [0-9]+ (columns|entries)",
    r"each (UNION|INTERSECT|EXCEPT) query must have the same number of columns",
    r"aggregate functions are not allowed in [A-Z ]+",
    r"unsupported XML feature",
)
_WITH_NAMES = (
    rf"(relation|schema|view|type|column|constraint|index|role|database|collation|sequence) {_NAME} does not exist",
    rf"(relation|schema|type|column|constraint|index) {_NAME}( of relation {_NAME})? already exists",
    rf"column {_NAME} of relation {_NAME} does not exist",
    rf"column {_NAME} (must appear in the GROUP BY clause or be used in an aggregate function)",
    rf"column reference {_NAME} is ambiguous",
    rf"column {_NAME} is of type [\w ().\"\[\],]+ but expression is of type [\w ().\"\[\],]+",
    rf"(subquery uses ungrouped column) {_NAME} from outer query",
    rf"(missing|invalid reference to) FROM-clause entry for table {_NAME}",
    r"function [\w.\"]+\([\w ().\"\[\],]*\) does not exist",
    r"operator does not exist: [\w ().\"\[\],<>=!@#%^&|~*/+-]+",
    r"could not identify an (equality|ordering) operator for type [\w ().\"\[\],]+",
    r"cannot cast type [\w ().\"\[\],]+ to [\w ().\"\[\],]+",
    r"[A-Z/ ]+ types [\w ().\"\[\],]+ and [\w ().\"\[\],]+ cannot be matched",
    rf"permission denied for (table|schema|view|relation|function|sequence|materialized view|foreign table|column"
    rf"|database|type|language|foreign server) {_NAME}(\([\w ().\",]*\))?",
    r"permission denied to create [\w \"]+",
    rf"must be owner of (table|schema|view|relation|materialized view|function|type) {_NAME}",
    rf"query would be affected by row-level security policy for table {_NAME}",
    rf"materialized view {_NAME} has not been populated",
    rf"could not obtain lock on relation {_NAME}",
    rf"too many connections for (role|database) {_NAME}",
    rf"index row size [0-9]+ exceeds [\w ]+ for index {_NAME}",
    rf"cannot (drop|alter) [\w ]+ {_NAME}( of [\w ]+ {_NAME})?( because other objects depend on it)?",
    rf"{_NAME} is not a (table|view|sequence|table or view|table, view, or foreign table)",
    r"there is no unique or exclusion constraint matching the ON CONFLICT specification",
    rf"syntax error at (or near {_NAME}|end of input)",
)
# fmt: on


@cache
def _known() -> re.Pattern[str]:
    """Compiled on first use: that takes longer than most imports, and most commands meet no error of the server."""
    return re.compile("|".join(f"(?:{text})" for text in (*_WITHOUT_NAMES, *_WITH_NAMES)))


_RAISED_FOR_VALUES = frozenset({"42P01", "3F000", "42704", "42883", "42601", "42602", "42703"})
"""States of errors about names that PostgreSQL also raises for a value: 'x'::regclass, 'x'::tsquery."""


def shown(sqlstate: str, message: str, known: str | None) -> str | None:
    """The message, if it cannot quote the value of a row.

    `known` is the text of the configuration: a name that stands in it is no secret. None: no row was being read.
    """
    if not _known().fullmatch(message):
        # guarantee: K6
        return None
    if known is None or sqlstate not in _RAISED_FOR_VALUES:
        return message
    names = re.findall(r'"([^"]+)"|(\S+) does not exist', message)
    parts = [part for quoted, plain in names for part in (quoted or plain).strip('"').split(".")]
    return message if parts and all(part in known for part in parts) else None


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
        text = shown(exc.sqlstate, exc.diag.message_primary or "", known)
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


QUESTION: LiteralString = """
    ; SELECT session_user::text AS role, current_setting('statement_timeout') AS statement_timeout,
             current_setting('lock_timeout') AS lock_timeout,
             current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
             current_setting('transaction_timeout', true) AS transaction_timeout,
             current_setting('temp_file_limit') AS temp_file_limit,
             has_parameter_privilege('temp_file_limit', 'SET') AS may_limit_files,
             (SELECT string_agg(setconfig::text, ' ') FROM pg_db_role_setting WHERE setrole = session_user::regrole)
                 AS chosen,
             current_setting('TimeZone') AS "TimeZone", current_setting('DateStyle') AS "DateStyle",
             current_setting('IntervalStyle') AS "IntervalStyle"
"""
"""Asked with the first message of a connection, because a question of its own would cost a round trip."""

TIMES = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")

_MILLISECONDS = {"": 1, "us": 0.001, "ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_KILOBYTES = {"": 1, "B": 1 / 1024, "kB": 1, "MB": 1024, "GB": 1024**2, "TB": 1024**3}


class RoleLimits(NamedTuple):
    """What applies to the account unless a transaction sets something else."""

    role: str
    shown: Mapping[str, str]  # the values as the server shows them, by the name of the setting
    milliseconds: Mapping[str, int]  # 0: no limit
    temp_file_limit: int  # in kB; -1: no limit
    may_limit_files: bool  # whether the account may set temp_file_limit
    chosen: str  # settings of the role by ALTER ROLE

    @classmethod
    def of(cls, row: DictRow) -> "RoleLimits":
        shown = {name: row[name] or "0" for name in (*TIMES, "temp_file_limit")}
        return cls(
            row["role"],
            shown,
            {name: int(_number(shown[name], _MILLISECONDS)) for name in TIMES},
            int(_number(shown["temp_file_limit"], _KILOBYTES)),
            row["may_limit_files"],
            (row["chosen"] or "").lower(),
        )

    def stricter(self, name: str, milliseconds: int) -> int:
        """The stricter of ours and the role's; 0 is no limit."""
        own = self.milliseconds[name]
        return min(own or milliseconds, milliseconds or own)

    def is_stricter(self, name: str, milliseconds: int) -> bool:
        """Whether the role's own limit is the one that applies."""
        return 0 < self.stricter(name, milliseconds) == self.milliseconds[name]

    def file_limit(self, kilobytes: int) -> int | None:
        """temp_file_limit to set; None: the account may not set it, or has a stricter one."""
        return kilobytes if self.may_limit_files and not 0 <= self.temp_file_limit <= kilobytes else None

    def chose(self, name: str) -> bool:
        return f"{name}=" in self.chosen

    def kept(self, times: Mapping[str, int], memory: Iterable[LiteralString]) -> sql.Composed:
        """What must follow our own SET LOCAL: the role's limits where they are stricter, and memory that it chose."""
        stricter = [
            sql.SQL("; SET LOCAL {} = {}").format(sql.Identifier(name), sql.Literal(self.milliseconds[name]))
            for name, ours in times.items()
            if self.is_stricter(name, ours)
        ]
        own = [sql.SQL("; SET LOCAL {} TO DEFAULT").format(sql.Identifier(name)) for name in memory if self.chose(name)]
        return sql.SQL("").join([*stricter, *own])


def _number(shown: str, units: Mapping[str, float]) -> float:
    found = re.fullmatch(r"(-?\d+)\s*([A-Za-z]*)", shown)
    return int(found[1]) * units[found[2]] if found else 0
