"""Finds the rows that do not fit the target, describes them by key and column, and skips them."""

from collections.abc import Callable, Iterator, Sequence

import psycopg
from psycopg import sql

from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import copy_rows
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.jobs import RejectPolicy
from vitrine.flow.rows import Batch, BinaryRows, Reject
from vitrine.postgres import raw, safe_message

NUMBERED = sql.Identifier("pg_temp", "vitrine_numbered")
NUMBER_NAME = "vitrine number"  # a space, so that it cannot equal a column of the query
NUMBER = sql.Identifier(NUMBER_NAME)
PROBE = sql.Identifier("pg_temp", "vitrine_probe")

REFUSALS = (psycopg.DataError, psycopg.IntegrityError)
"""Errors that the target raises for a row that does not fit."""

WriteRange = Callable[[int, int], int]
"""Writes the numbered rows from the first to the last; returns how many were written."""


def isolate(first: int, last: int, attempt: Callable[[int, int], Exception | None]) -> Iterator[tuple[int, Exception]]:
    """Numbers of the rows that fail on their own, in order, with their errors; every other row has been written.

    `attempt` writes the rows from the first to the last number, or rolls back and returns the error. The
    range is halved until a failing row is alone.
    """
    ranges = [(first, last)]
    while ranges:
        low, high = ranges.pop()
        if low > high or (error := attempt(low, high)) is None:
            continue
        if low == high:
            yield low, error
        else:
            middle = (low + high) // 2
            ranges += [(middle + 1, high), (low, middle)]


class Quarantine:
    """Finds the rows of a batch that do not fit, and judges them by the pipeline's policy."""

    def __init__(
        self, session: TargetSession, target: TargetTable, policy: RejectPolicy, open_rejects: Sequence[str]
    ) -> None:
        self._session = session
        self._target = target
        self._policy = policy
        self._open_rejects = list(open_rejects)

    def number(self, batch: Batch) -> None:
        """Copy the batch into a temporary table, as text or in its own types, and number its rows."""
        as_text = not isinstance(batch.payload, BinaryRows)
        columns = [(column.name, "text" if as_text else column.type) for column in batch.columns]
        self._session.create_temporary(NUMBERED, columns)
        identity = sql.SQL("ALTER TABLE {} ADD COLUMN {} integer GENERATED ALWAYS AS IDENTITY")
        self._session.connection.execute(identity.format(NUMBERED, NUMBER))
        copy_rows(self._session, self._target, NUMBERED, batch, as_text=as_text)

    def number_rows_of(self, table: sql.Identifier) -> int:
        """Copy the rows of a table and number them; returns their count."""
        numbering = sql.SQL(
            "CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT s.*, row_number() OVER ()::integer AS {} FROM {} AS s"
        )
        self._session.connection.execute(numbering.format(NUMBERED, NUMBER, table))
        self._session.connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(NUMBERED, NUMBER))
        return self._session.count(NUMBERED)

    def write_fitting(
        self, count: int, write_range: WriteRange, columns: Sequence[str], table: sql.Identifier
    ) -> tuple[int, list[Reject]]:
        """Write every numbered row that fits; returns the rows written and the rejects. The policy may raise."""
        written = 0
        rejects: list[Reject] = []

        def attempt(low: int, high: int) -> Exception | None:
            nonlocal written
            try:
                with self._session.connection.transaction():
                    written += write_range(low, high)
            except REFUSALS as error:
                return error
            return None

        for number, error in isolate(1, count, attempt):
            reject = self._describe(number, error, columns, table)
            self._policy.judge(reject)
            rejects.append(reject)
        return written, rejects

    def healed(self, table: sql.Identifier) -> list[str]:
        """Keys of earlier rejects whose rows are in this table, and so are written now."""
        if not self._open_rejects:
            return []
        statement = sql.SQL("SELECT key FROM (SELECT concat_ws('/', {}) AS key FROM {}) AS k WHERE key = ANY (%s)")
        found = statement.format(names(self._target.key), table)
        rows = self._session.connection.execute(found, [self._open_rejects]).fetchall()
        return [row["key"] for row in rows]

    def cast_columns(self, columns: Sequence[str], table: sql.Identifier) -> sql.Composed:
        """The columns of the numbered rows, cast to the types of the table: text has no assignment cast."""
        connection = self._session.connection
        types = catalog.column_types(connection, NUMBERED)
        bare = catalog.bare_types(connection, table)
        return sql.SQL(", ").join(
            sql.SQL("CAST({} AS {})").format(sql.Identifier(name), raw(bare[name]))
            if types[name] == "text" and name in bare
            else sql.Identifier(name)
            for name in columns
        )

    def _describe(self, number: int, error: Exception, columns: Sequence[str], table: sql.Identifier) -> Reject:
        statement = sql.SQL(
            "SELECT concat_ws('/', {}) AS key, (to_jsonb(n) - {})::text AS row FROM {} AS n WHERE {} = {}"
        ).format(names(self._target.key), sql.Literal(NUMBER_NAME), NUMBERED, NUMBER, number)
        row = self._session.connection.execute(statement).fetchone() or {"key": "", "row": "{}"}
        sqlstate = getattr(error, "sqlstate", None) or "?????"
        column = self._failing_column(columns, number, table) or getattr(
            getattr(error, "diag", None), "column_name", None
        )
        where = f"column '{column}'" if column else "the row"
        return Reject(row["key"], column, sqlstate, f"{where} does not fit: {safe_message(error)}", row["row"])

    def _failing_column(self, columns: Sequence[str], number: int, table: sql.Identifier) -> str | None:
        """The column whose value alone cannot be stored, if there is one."""
        connection = self._session.connection
        types = catalog.column_types(connection, table)
        for name in columns:
            statements = (
                sql.SQL("CREATE TEMP TABLE {} ({} {})").format(PROBE, sql.Identifier(name), raw(types[name])),
                sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE {} = {}").format(
                    PROBE, self.cast_columns([name], table), NUMBERED, NUMBER, number
                ),
                sql.SQL("DROP TABLE {}").format(PROBE),
            )
            try:
                with connection.transaction():
                    for statement in statements:
                        connection.execute(statement)
            except psycopg.DataError:
                return name
        return None
