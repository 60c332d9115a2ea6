"""Rows that do not fit the target: found one by one, told by key and column, or put aside."""

from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from vitrine.errors import DataError
from vitrine.flow import Reject
from vitrine.model import Options
from vitrine.postgres import Connection, raw, safe_message
from vitrine.sinks.postgres import catalog
from vitrine.sinks.postgres.isolation import isolate
from vitrine.sinks.postgres.statements import names

NUMBERED = sql.Identifier("pg_temp", "vitrine_numbered")
NUMBER_NAME = "vitrine number"  # no column of a query has a blank in its name
NUMBER = sql.Identifier(NUMBER_NAME)

REFUSALS = (psycopg.DataError, psycopg.IntegrityError)
"""What the target raises for a row that does not fit."""


class Misfits:
    """The rows of one run that did not fit, and the policy for them."""

    def __init__(
        self, connection: Connection, target: str, key: Sequence[str], options: Options, open_rejects: Sequence[str]
    ) -> None:
        self._connection = connection
        self._target = target
        self._key = key
        self._options = options
        self._open_rejects = list(open_rejects)
        self._count = 0

    def write_all_but(
        self, count: int, write_range: Callable[[int, int], int], columns: Sequence[str], table: sql.Identifier
    ) -> tuple[int, list[Reject]]:
        """Write every numbered row that fits; rows written, and those put aside. DataError by the policy."""
        written = 0
        rejects: list[Reject] = []

        def attempt(low: int, high: int) -> Exception | None:
            nonlocal written
            try:
                with self._connection.transaction():
                    written += write_range(low, high)
            except REFUSALS as error:
                return error
            return None

        for number, error in isolate(1, count, attempt):
            reject = self._describe(number, error, columns, table)
            self._judge(reject)
            rejects.append(reject)
        return written, rejects

    def healed(self, table: sql.Identifier) -> list[str]:
        """Keys of earlier rejects whose rows are in this table, and so are written now."""
        if not self._open_rejects:
            return []
        statement = sql.SQL("SELECT key FROM (SELECT concat_ws('/', {}) AS key FROM {}) AS k WHERE key = ANY (%s)")
        rows = self._connection.execute(statement.format(names(self._key), table), [self._open_rejects]).fetchall()
        return [row["key"] for row in rows]

    def readable(self, columns: Sequence[str], table: sql.Identifier) -> sql.Composed:
        """Numbered columns, read as the type they go into: texts have no assignment cast of their own."""
        types = catalog.column_types(self._connection, NUMBERED)
        bare = catalog.bare_types(self._connection, table)
        return sql.SQL(", ").join(
            sql.SQL("CAST({} AS {})").format(sql.Identifier(name), raw(bare[name]))
            if types[name] == "text" and name in bare
            else sql.Identifier(name)
            for name in columns
        )

    def _judge(self, reject: Reject) -> None:
        if self._options.on_reject == "fail":
            raise DataError(
                f"row {reject.key} of {self._target}: {reject.reason}; correct it, or set options.on_reject: quarantine"
            )
        self._count += 1
        if self._count > self._options.max_rejects:
            raise DataError(
                f"more than {self._options.max_rejects} rows do not fit {self._target}, the last is {reject.key}:"
                f" {reject.reason}; correct them, or raise options.max_rejects",
                code="TOO_MANY_REJECTS",
            )

    def _describe(self, number: int, error: Exception, columns: Sequence[str], table: sql.Identifier) -> Reject:
        statement = sql.SQL(
            "SELECT concat_ws('/', {}) AS key, (to_jsonb(n) - {})::text AS row FROM {} AS n WHERE {} = {}"
        ).format(names(self._key), sql.Literal(NUMBER_NAME), NUMBERED, NUMBER, number)
        row = self._connection.execute(statement).fetchone() or {"key": "", "row": "{}"}
        sqlstate = getattr(error, "sqlstate", None) or "?????"
        column = self._culprit(columns, number, table) or getattr(getattr(error, "diag", None), "column_name", None)
        where = f"column '{column}'" if column else "the row"
        return Reject(row["key"], column, sqlstate, f"{where} does not fit: {safe_message(error)}", row["row"])

    def _culprit(self, columns: Sequence[str], number: int, table: sql.Identifier) -> str | None:
        """The column whose value alone cannot be stored, if there is one."""
        probe = sql.Identifier("pg_temp", "vitrine_probe")
        types = catalog.column_types(self._connection, table)
        for name in columns:
            statements = (
                sql.SQL("CREATE TEMP TABLE {} ({} {})").format(probe, sql.Identifier(name), raw(types[name])),
                sql.SQL("INSERT INTO {} SELECT {} FROM {} WHERE {} = {}").format(
                    probe, self.readable([name], table), NUMBERED, NUMBER, number
                ),
                sql.SQL("DROP TABLE {}").format(probe),
            )
            try:
                with self._connection.transaction():
                    for statement in statements:
                        self._connection.execute(statement)
            except psycopg.DataError:
                return name
        return None
