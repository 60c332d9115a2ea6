"""Rows with NULL in the cursor that the query itself hides by comparing the cursor with `$1`."""

from psycopg import sql

from vitrine import policy
from vitrine.errors import DataError
from vitrine.flow.rows import Finding
from vitrine.policy import Unfiltered
from vitrine.postgres import Connection, fetch_extended, raw

# A child may drop NOT NULL before PostgreSQL 18; from 18 on, a constraint may be NOT VALID.
_IS_NOT_NULL = """
    SELECT a.attnotnull AND NOT (c.relkind = 'r' AND c.relhassubclass)
           AND NOT EXISTS (SELECT FROM pg_constraint n
                            WHERE n.conrelid = c.oid AND n.contype = 'n' AND NOT n.convalidated) AS is_not_null
      FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
     WHERE a.attrelid = %(table)s AND a.attnum = %(number)s
"""


class HiddenNulls:
    """Rows that the filter by the checkpoint hides because their cursor is NULL."""

    def __init__(self, text: str, column: str) -> None:
        self.column = column
        self._query: Unfiltered = policy.without_checkpoint_filter(text, column)

    def count(self, connection: Connection) -> int | None:
        """In the transaction's snapshot; None where it is unknown."""
        if self._query.text is None:
            return None
        statement = sql.SQL("SELECT count(*) AS nulls FROM ({}) AS q WHERE {} IS NULL").format(
            raw(self._query.text), sql.Identifier("q", self.column)
        )
        row = fetch_extended(connection, statement)
        return row["nulls"] if row else 0

    def refuse(self, connection: Connection) -> None:
        """DataError if there are any."""
        if found := self.count(connection):
            raise DataError(
                f"{found} row(s) of the source have NULL in '{self.column}' and the query's condition on $1 hides"
                " them; give them a value, or set options.on_null_cursor: ignore",
                code="NULL_CURSOR",
            )

    def finding(self, connection: Connection) -> tuple[Finding, ...]:
        """What `validate` and `reconcile` report."""
        found = self.count(connection)
        if found is None:
            text = (
                f"rows of the source with NULL in '{self.column}' would not be noticed, because the query uses $1 in"
                f" another way than `WHERE {self.column} >= $1`; make the column NOT NULL, or use that form"
            )
            return (Finding("NULL_CURSOR_UNKNOWN", text, self.column),)
        if not found:
            return ()
        text = f"{found} row(s) of the source have NULL in '{self.column}' and are not in the mart"
        return (Finding("NULL_CURSOR", text, self.column),)


def is_required(connection: Connection, table: int, number: int) -> bool:
    """Whether the catalog proves that a column of a table holds no NULL."""
    row = connection.execute(_IS_NOT_NULL, {"table": table, "number": number}).fetchone()
    return bool(row and row["is_not_null"])
