"""The connections of a source: one streams rows, another runs queries in the meantime."""

from psycopg.pq import TransactionStatus

from vitrine.postgres import TEXT_FORMAT, Connection, connect

# Constant text, sent by the simple protocol; the user's query uses the extended protocol
# Without row security, a query that a policy would shorten is an error.
BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL row_security = off;" + TEXT_FORMAT
TIMEOUTS = """
    ; SET LOCAL lock_timeout = '10s'; SET LOCAL statement_timeout = 0;
    SET LOCAL idle_in_transaction_session_timeout = '10min'
"""


class ReadOnly:
    """A short read-only transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __enter__(self) -> Connection:
        self._connection.execute(BEGIN + TIMEOUTS)
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

    def idle(self) -> Connection:
        """A connection for queries: the existing one, or another while that one streams rows."""
        found = self._querying
        if found is not None and not found.closed:
            is_streaming = found is self._streaming and found.info.transaction_status is not TransactionStatus.IDLE
            if not is_streaming:
                return found
        self._querying = connect(self._url, name=self._name, side="source")
        return self._querying

    def reading(self) -> ReadOnly:
        return ReadOnly(self.idle())

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
