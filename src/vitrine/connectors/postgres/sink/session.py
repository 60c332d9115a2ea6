"""The connection of a sink, and the transaction of a unit."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow

from vitrine.connectors.postgres.role_limits import QUESTION, RoleLimits
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.statements import create_table
from vitrine.postgres import TEXT_FORMAT, Connection, answered, connect_and_ask, raw, translated

_CODES = {
    "42804": "SCHEMA_CHANGED",
    "42703": "TARGET_SCHEMA",
    "42P01": "TARGET_SCHEMA",
    "3F000": "TARGET_SCHEMA",
    # guarantee: B6
    "55P03": "SINK_LOCKED",
}

# synchronous_commit is off: a lost commit loses rows and checkpoint together, and the commit that ends the run makes
# all earlier ones durable. With row_security off, a policy raises an error instead of hiding rows. When rows do not
# fit, the transaction rolls back to the savepoint.
_BEGIN = (
    "BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE;"
    + TEXT_FORMAT
    + """
    ; SET LOCAL xmloption = content;
    SET LOCAL synchronous_commit = off;
    SET LOCAL work_mem = '64MB';
    SET LOCAL maintenance_work_mem = '256MB';
    SET LOCAL lock_timeout = '10s';
    SET LOCAL row_security = off;
    SET LOCAL idle_in_transaction_session_timeout = '10s'
"""
)
_SAVEPOINT = "; SAVEPOINT fitting"
_LIMITS = {"lock_timeout": 10_000, "idle_in_transaction_session_timeout": 10_000}
_MEMORY = ("work_mem", "maintenance_work_mem")
"""What _BEGIN sets, in milliseconds; a stricter limit and a memory of the role take precedence."""


_READERS_WAIT = "SET LOCAL lock_timeout = '800ms'"
"""Readers queue behind a waiting ALTER TABLE: it waits for less than a second, then lets them pass."""

_PAUSES = (0.5, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)
"""Seconds between the attempts to lock the target."""


class TargetSession:
    """One connection to the database of the target, opened by the first call that needs it."""

    def __init__(self, url: str, name: str, target: str) -> None:
        self._url = url
        self._name = name
        self._target = target
        self._opened: Connection | None = None
        self._begin_text = ""

    @property
    def connection(self) -> Connection:
        if self._opened is None:
            self._opened, row = connect_and_ask(
                psycopg.Connection[DictRow], self._url, QUESTION, name=self._name, side="target"
            )
            kept = RoleLimits.of(row).kept(_LIMITS, _MEMORY).as_string(self._opened)
            self._begin_text = _BEGIN + kept + _SAVEPOINT
        return self._opened

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """A transaction with the settings that every unit needs."""
        connection = self.connection
        with self.translated():
            self._begin()
            try:
                yield connection
            except BaseException:
                if not connection.closed:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def _begin(self) -> None:
        # in one message, to save round trips
        connection = self.connection
        with answered(connection, f"target {self._target}"):
            connection.execute(raw(self._begin_text))

    def roll_back_to_start(self) -> None:
        """Undo what the open transaction did so far."""
        self.connection.execute("ROLLBACK TO SAVEPOINT fitting")

    def alter(self, statement: sql.Composed, wait: Callable[[float], None]) -> None:
        """Change the target before anything else is written, in a transaction that holds its lock for a moment only."""
        connection = self.connection
        opened = connection.info.transaction_status is not TransactionStatus.IDLE
        if opened and self._has_written():
            connection.execute(statement)
            return
        if opened:
            connection.execute("COMMIT")
        for pause in _PAUSES:
            try:
                self._alter_now(statement)
                break
            except psycopg.errors.LockNotAvailable:
                wait(pause)
        else:
            self._alter_now(statement)
        if opened:
            self._begin()

    def _alter_now(self, statement: sql.Composed) -> None:
        with self.connection.transaction():
            self.connection.execute(_READERS_WAIT)
            self.connection.execute(statement)

    def _has_written(self) -> bool:
        row = self.connection.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL AS yes").fetchone()
        return bool(row and row["yes"])

    @contextmanager
    def translated(self) -> Generator[None]:
        """Translate errors of the target into our groups; schema mismatches and locks have their own codes."""
        try:
            yield
        except psycopg.Error as exc:
            with translated(f"target {self._target}", code=_CODES.get(exc.sqlstate or ""), known=self._target):
                raise

    def create_temporary(self, table: sql.Identifier, columns: list[tuple[str, str]]) -> None:
        """Create a table that is dropped at the end of the transaction."""
        typed = [(name, raw(type_name)) for name, type_name in columns]
        self.connection.execute(create_table(sql.SQL("TEMP"), table, typed, sql.SQL("ON COMMIT DROP")))

    def create(self, table: sql.Identifier, columns: list[tuple[str, str]]) -> None:
        typed = [(name, raw(type_name)) for name, type_name in columns]
        catalog.create(self.connection, create_table(sql.SQL(""), table, typed, sql.SQL("")))

    def count(self, table: sql.Identifier) -> int:
        row = self.connection.execute(sql.SQL("SELECT count(*) AS rows FROM {}").format(table)).fetchone()
        return row["rows"] if row else 0

    def exists(self, table: sql.Identifier) -> bool:
        with self.translated():
            return catalog.exists(self.connection, table)

    def cancel(self) -> None:
        opened = self._opened
        if opened is not None and opened.info.transaction_status is TransactionStatus.ACTIVE:
            opened.cancel_safe(timeout=1.0)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
