"""The connections of a source: one streams rows, another runs queries in the meantime."""

from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import lru_cache
from types import TracebackType
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus

from vitrine.connectors.postgres import PostgresSettings
from vitrine.connectors.postgres.source.session import SourceSession, TimeLimit, first_row_limit, planning_limit
from vitrine.postgres import STABLE_NAMES, STABLE_TIMES, answered, raw

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
