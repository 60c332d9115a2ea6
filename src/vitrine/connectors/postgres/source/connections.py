"""The connections of a source: one streams rows, another runs queries in the meantime."""

from typing import LiteralString

from psycopg.pq import TransactionStatus

from vitrine.postgres import STABLE_NAMES, STABLE_TIMES, Connection, answered, connect, no_transaction_timeout

# Constant text, sent by the simple protocol; the user's query uses the extended protocol. TimeZone, DateStyle and
# IntervalStyle stay those of the source, so that the query returns what psql shows. Without row security, a query that
# a policy would shorten is an error.
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL row_security = off;" + STABLE_NAMES
TIMEOUTS = """
    ; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '10min'
"""

_UTC = frozenset({"UTC", "Etc/UTC"})
_TIMES = """
    SELECT current_setting('TimeZone') AS "TimeZone", current_setting('DateStyle') AS "DateStyle",
           current_setting('IntervalStyle') AS "IntervalStyle"
"""


def begin(connection: Connection) -> LiteralString:
    """The statements that open a transaction for the user's query."""
    return BEGIN + TIMEOUTS + no_transaction_timeout(connection)


class ReadOnly:
    """A short read-only transaction."""

    def __init__(self, connection: Connection, settings: LiteralString = "") -> None:
        self._connection = connection
        self._settings: LiteralString = settings

    def __enter__(self) -> Connection:
        with answered(self._connection, "source"):
            self._connection.execute(begin(self._connection) + self._settings)
        return self._connection

    def __exit__(self, *exc: object) -> None:
        if not self._connection.closed:
            self._connection.execute("ROLLBACK")


class SourceConnections:
    """Opened on demand: most runs need only one."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name
        self._querying: Connection | None = None
        self._streaming: Connection | None = None
        self._times: dict[str, str] | None = None

    def idle(self) -> Connection:
        """A connection for queries: the existing one, or another while that one streams rows."""
        found = self._querying
        if found is not None and not found.closed:
            is_streaming = found is self._streaming and found.info.transaction_status is not TransactionStatus.IDLE
            if not is_streaming:
                return found
        self._querying = connect(self._url, name=self._name, side="source", own_times=True)
        return self._querying

    @property
    def times(self) -> dict[str, str]:
        """The settings of a session that change the text of a time; asked once."""
        if self._times is None:
            self._times = self.idle().execute(_TIMES).fetchone() or {}
        return self._times

    @property
    def has_own_times(self) -> bool:
        """Whether the text of a time differs here from that under STABLE_TIMES."""
        times = self.times
        is_ours = times["DateStyle"].startswith("ISO") and times["IntervalStyle"] == "postgres"
        return times["TimeZone"] not in _UTC or not is_ours

    def reading(self) -> ReadOnly:
        """For the user's query."""
        return ReadOnly(self.idle())

    def formatting(self) -> ReadOnly:
        """For values in text format."""
        return ReadOnly(self.idle(), ";" + STABLE_TIMES)

    def streaming(self) -> Connection:
        """A connection for a stream; later queries use another one."""
        self._streaming = self.idle()
        return self._streaming

    def cancel(self) -> None:
        for connection in (self._querying, self._streaming):
            if connection is not None and connection.info.transaction_status is TransactionStatus.ACTIVE:
                connection.cancel_safe(timeout=1.0)

    def close(self) -> None:
        for connection in (self._querying, self._streaming):
            if connection is not None:
                connection.close()
