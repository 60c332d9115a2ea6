"""Connections to a source: every statement has a time limit."""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import lru_cache
from types import TracebackType
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings
from vitrine.definition.model import format_duration
from vitrine.errors import ConfigError, TransientError, VitrineError
from vitrine.postgres import (
    QUESTION,
    STABLE_NAMES,
    STABLE_TIMES,
    RoleLimits,
    answered,
    connect_and_ask,
    ended_after,
    leave,
    raw,
)

GRACE = 2.0
"""Seconds that the server has to end a statement by its own limit, whose error says more."""

STEP_SECONDS = 0.25
"""How long each way to end a statement has: cancel, terminate, then close the socket."""

_TERMINATE = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE pid = %(pid)s AND application_name = %(name)s AND usename = session_user AND pid <> pg_backend_pid()
"""


class TimeLimit(NamedTuple):
    """How long one statement may take."""

    milliseconds: int
    refusal: Callable[[], VitrineError]

    @classmethod
    def of(cls, limit: timedelta, refusal: Callable[[], VitrineError]) -> "TimeLimit":
        return cls(int(limit.total_seconds() * 1000), refusal)


def planning_limit(settings: PostgresSettings) -> TimeLimit:
    """For statements that plan the query without executing it, and for those that read the catalog."""
    text = (
        f"source query: the server did not plan it within {format_duration(settings.plan_timeout)}"
        " (VITRINE_PLAN_TIMEOUT); make it simpler, with fewer joins and smaller constants, or raise that limit"
    )
    return TimeLimit.of(settings.plan_timeout, lambda: ConfigError(text, code="PLAN_TIMEOUT"))


def first_row_limit(settings: PostgresSettings) -> TimeLimit:
    """For statements that execute the query, until their first row."""
    text = (
        f"source query: no row arrived within {format_duration(settings.first_row_timeout)}"
        " (VITRINE_FIRST_ROW_TIMEOUT); make the query faster, for example by an index, or raise that limit"
    )
    return TimeLimit.of(settings.first_row_timeout, lambda: TransientError(text, code="FIRST_ROW_TIMEOUT"))


class SourceSession(psycopg.Connection[DictRow]):
    """A session of the reader. PostgreSQL checks for a cancel or a time limit only at times, and not while the planner
    computes a constant expression: then the session is terminated, and at last left behind."""

    role: RoleLimits
    _ending: threading.Thread | None = None
    _limit: TimeLimit | None = None
    _url = _name = ""

    @classmethod
    def open(cls, url: str, name: str) -> tuple["SourceSession", dict[str, str]]:
        """A session, and the settings of the server that change the text of a time."""
        session, row = connect_and_ask(cls, url, QUESTION, name=name, side="source", own_times=True)
        session.role, session._url, session._name = RoleLimits.of(row), url, name
        return session, {name: row[name] for name in ("TimeZone", "DateStyle", "IntervalStyle")}

    def wait(self, *arguments: Any, **options: Any) -> Any:
        """Every call of the driver waits here for the server."""
        with self.limited():
            return super().wait(*arguments, **options)

    @contextmanager
    def under(self, limit: TimeLimit) -> Generator[None]:
        """Every statement in the block ends within the limit."""
        before, self._limit = self._limit, limit
        try:
            yield
        finally:
            self._limit = before

    def limited(self) -> AbstractContextManager[None]:
        """One statement: it ends within the limit that applies, even if the server does not respond."""
        limit = self._limit
        if limit is None:
            return nullcontext()
        return ended_after(limit.milliseconds / 1000 + GRACE, self.interrupt, limit.refusal)

    def refusal_of(self, exc: psycopg.Error, limit: TimeLimit | None = None) -> VitrineError | None:
        """The error about a limit that ended a statement: its setting, its value, its role, and the remedy."""
        message = exc.diag.message_primary or ""
        match exc.sqlstate:
            case "57014" if "statement timeout" in message:
                ours = limit.milliseconds if limit else 0
                if limit is not None and not self.role.is_stricter("statement_timeout", ours):
                    return limit.refusal()
                return self._of_role("statement_timeout", "QUERY_CANCELED", "make the query faster")
            case "55P03" if "lock timeout" in message and self.role.milliseconds["lock_timeout"]:
                return self._of_role("lock_timeout", None, "run at a time without such locks")
            case "25P03":
                return self._of_role("idle_in_transaction_session_timeout", None, "make batches smaller")
            case "25P04":
                return self._of_role("transaction_timeout", "QUERY_CANCELED", "make the query faster")
            case "53400" if "temp_file_limit" in message:
                return ConfigError(
                    f"source query: it needs larger temporary files than temp_file_limit allows ({message}); let it"
                    " sort or join less, or raise the limit: VITRINE_TEMP_FILE_LIMIT, or that of role"
                    f" {self.role.role} if it is lower",
                    code="TEMP_FILE_LIMIT",
                )
            case _:
                return None

    def _of_role(self, name: str, code: str | None, other: str) -> VitrineError:
        role, value = self.role.role, self.role.shown[name]
        return TransientError(
            f"source query: ended by {name} = {value}, which applies to role {role}; {other}, or raise the limit for"
            f" that role (ALTER ROLE {role} SET {name} = …)",
            code=code,
        )

    # -- ending a statement from another thread ---------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        return not self.closed and self.info.transaction_status is TransactionStatus.ACTIVE

    def interrupt(self) -> None:
        """From any thread, without waiting: the current call ends within a second, whatever the server does."""
        if self._ending is not None and self._ending.is_alive():
            return
        self._ending = threading.Thread(target=self._end, name="interrupt", daemon=True)
        self._ending.start()

    def _end(self) -> None:
        with suppress(psycopg.Error, OSError):
            self.cancel_safe(timeout=2 * STEP_SECONDS)
        if self._became_idle():
            return
        threading.Thread(target=self._terminate, name="terminate", daemon=True).start()
        # guarantee: K4
        if not self._became_idle():
            leave(self)

    def _became_idle(self) -> bool:
        until = time.monotonic() + STEP_SECONDS
        while self.is_busy:
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def _terminate(self) -> None:
        """By number and name: behind a pooler, the number alone may be that of another session."""
        arguments = {"pid": self.info.backend_pid, "name": self._name}
        with suppress(psycopg.Error), psycopg.connect(self._url, autocommit=True, connect_timeout=2) as other:
            other.execute(_TERMINATE, arguments)


# Constant text, sent by the simple protocol; the user's query uses the extended protocol. TimeZone, DateStyle and
# IntervalStyle stay those of the source, so that the query returns what psql shows. Without row security, a query that
# a policy would shorten is an error.
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL row_security = off;" + STABLE_NAMES

LOCK_MILLISECONDS = 10_000
IDLE = timedelta(minutes=10)

_UTC = frozenset({"UTC", "Etc/UTC"})


@lru_cache(maxsize=256)
def _opening(limits: tuple[tuple[str, int], ...], settings: LiteralString) -> sql.SQL:
    """Composed once: every transaction of every run begins with one of a few texts."""
    local = (sql.SQL("; SET LOCAL {} = {}").format(sql.Identifier(name), value) for name, value in limits)
    return raw(sql.SQL("{}{}{}").format(raw(BEGIN), sql.SQL("").join(local), raw(settings)).as_string(None))


class ReadOnly:
    """A short read-only transaction, every statement of which has a time limit."""

    def __init__(self, session: SourceSession, opening: sql.SQL, limit: TimeLimit) -> None:
        self._session = session
        self._opening = opening
        self._limit = limit
        self._stack = ExitStack()

    def __enter__(self) -> SourceSession:
        with answered(self._session, "source"):
            self._session.execute(self._opening)
        self._stack.enter_context(self._session.under(self._limit))
        return self._session

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        refusal = self._session.refusal_of(exc, self._limit) if isinstance(exc, psycopg.Error) else None
        self._stack.close()
        if not self._session.closed:
            with suppress(psycopg.Error):  # a session that was left behind
                self._session.execute("ROLLBACK")
        if refusal is not None:
            raise refusal from exc


class SourceConnections:
    """Opened on demand: most runs need only one."""

    def __init__(self, url: str, name: str, settings: PostgresSettings) -> None:
        self.planning = planning_limit(settings)
        self.executing = first_row_limit(settings)
        self._url = url
        self._name = name
        self._file_limit = settings.temp_file_limit
        self._querying: SourceSession | None = None
        self._streaming: SourceSession | None = None
        self._left: list[SourceSession] = []  # of streams that were not read to the end
        self._times: dict[str, str] = {}

    def idle(self) -> SourceSession:
        """A connection for queries: the existing one, or another while that one streams rows."""
        found = self._querying
        if found is not None and not found.closed:
            is_streaming = found is self._streaming and found.info.transaction_status is not TransactionStatus.IDLE
            if not is_streaming:
                return found
        self._left = [one for one in (*self._left, found) if one is not None and not one.closed]
        self._querying, self._times = SourceSession.open(self._url, self._name)
        return self._querying

    @property
    def times(self) -> dict[str, str]:
        """The settings of a session that change the text of a time."""
        if not self._times:
            self.idle()
        return self._times

    @property
    def has_own_times(self) -> bool:
        """Whether the text of a time differs here from that under STABLE_TIMES."""
        times = self.times
        is_ours = times["DateStyle"].startswith("ISO") and times["IntervalStyle"] == "postgres"
        return times["TimeZone"] not in _UTC or not is_ours

    def opening(
        self, session: SourceSession, limit: TimeLimit, *, idle: timedelta = IDLE, settings: LiteralString = ""
    ) -> sql.SQL:
        """The statements that open a transaction for the user's query. A limit of the role stays if it is stricter."""
        times = {
            "lock_timeout": LOCK_MILLISECONDS,
            "statement_timeout": limit.milliseconds,
            "idle_in_transaction_session_timeout": int(idle.total_seconds() * 1000),
        }
        # guarantee: K5
        limits = {name: session.role.stricter(name, ours) for name, ours in times.items()}
        if (files := session.role.file_limit(self._file_limit // 1024)) is not None:
            limits["temp_file_limit"] = files
        # guarantee: J15
        return _opening(tuple(limits.items()), settings)

    def reading(self, *, executes: bool = False) -> ReadOnly:
        """For the user's query: to plan it, or to execute it."""
        return self._read_only(self.executing if executes else self.planning)

    def formatting(self) -> ReadOnly:
        """For values in text format."""
        return self._read_only(self.planning, ";" + STABLE_TIMES)

    def _read_only(self, limit: TimeLimit, settings: LiteralString = "") -> ReadOnly:
        session = self.idle()
        return ReadOnly(session, self.opening(session, limit, settings=settings), limit)

    def streaming(self) -> SourceSession:
        """A connection for a stream; later queries use another one."""
        self._streaming = self.idle()
        return self._streaming

    def cancel(self) -> None:
        """From any thread: the current calls end within a second, whatever the server does."""
        for session in (self._querying, self._streaming, *self._left):
            if session is not None and session.is_busy:
                session.interrupt()

    def close(self) -> None:
        for session in (self._querying, self._streaming, *self._left):
            if session is not None:
                session.close()
