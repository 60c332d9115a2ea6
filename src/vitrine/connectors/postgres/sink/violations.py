"""Finds all rows of a batch that break the constraint an error names, with one statement."""

from collections.abc import Callable, Sequence
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres.sink import catalog, staging
from vitrine.connectors.postgres.sink.numbering import NUMBERED, Numbered, Unfit, does_not_fit
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.connectors.postgres.types import Operator
from vitrine.postgres import raw, safe_message

_CHECK = """
    SELECT pg_get_expr(conbin, conrelid) AS rule FROM pg_constraint
     WHERE conrelid = %(table)s::regclass AND conname = %(name)s AND contype = 'c' AND convalidated
"""
_FOREIGN_KEY = """
    SELECT n.nspname AS schema, c.relname AS table, f.confrelid = f.conrelid AS is_own,
           (SELECT jsonb_agg(jsonb_build_array(a.attname, b.attname, s.nspname, o.oprname) ORDER BY k.place)
              FROM unnest(f.conkey, f.confkey, f.conpfeqop) WITH ORDINALITY AS k(ours, theirs, operator, place)
              JOIN pg_attribute a ON a.attrelid = f.conrelid AND a.attnum = k.ours
              JOIN pg_attribute b ON b.attrelid = f.confrelid AND b.attnum = k.theirs
              JOIN pg_operator o ON o.oid = k.operator
              JOIN pg_namespace s ON s.oid = o.oprnamespace) AS pairs
      FROM pg_constraint f JOIN pg_class c ON c.oid = f.confrelid JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE f.conrelid = %(table)s::regclass AND f.conname = %(name)s AND f.contype = 'f' AND f.convalidated
       AND f.confmatchtype = 's'
"""
_UNIQUE = """
    SELECT (SELECT jsonb_agg(a.attname ORDER BY k.place)
              FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts) AS columns
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
     WHERE i.indrelid = %(table)s::regclass AND c.relname = %(name)s AND i.indpred IS NULL AND i.indexprs IS NULL
       AND NOT i.indnullsnotdistinct
"""


class Violations:
    """Looks for the rows that break a constraint of one table."""

    def __init__(self, session: TargetSession, target: TargetTable, table: sql.Identifier, numbered: Numbered) -> None:
        self._session = session
        self._target = target
        self._table = table
        self._numbered = numbered
        self._known: set[tuple[str | None, ...]] = set()

    def of(self, error: psycopg.Error) -> list[Unfit]:
        """The rows that break the rule that the error names; empty if they cannot be found this way."""
        diag = error.diag
        place = (error.sqlstate, diag.table_name, diag.column_name, diag.constraint_name)
        # a rule that is broken again was not the only one in these rows, or concerns values that the rows do not have
        if place in self._known or self._table != sql.Identifier(diag.schema_name or "", diag.table_name or ""):
            return []
        self._known.add(place)
        try:
            with self._session.connection.transaction():
                # the merge of a batch switches them off
                self._session.connection.execute("SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on")
                found = self._rows(error)
        except psycopg.Error:  # a rule that fails for some rows, or a table that may not be read
            return []
        reason = does_not_fit(diag.column_name, staging.renamed(safe_message(error), self._target.table))
        return [Unfit(number, diag.column_name, error.sqlstate or "", reason) for number in found]

    def _rows(self, error: psycopg.Error) -> list[int]:
        diag = error.diag
        match error:
            case psycopg.errors.NotNullViolation():
                return self._with_null(diag.column_name or "")
            case psycopg.errors.CheckViolation():
                return self._select(_CHECK, diag.constraint_name, self._against_rule)
            case psycopg.errors.ForeignKeyViolation():
                return self._select(_FOREIGN_KEY, diag.constraint_name, self._without_reference)
            case psycopg.errors.UniqueViolation():
                return self._select(_UNIQUE, diag.constraint_name, self._in_conflict)
            case _:
                return []

    def _select(
        self, query: LiteralString, name: str | None, statement_of: Callable[[DictRow], sql.Composed | None]
    ) -> list[int]:
        arguments = {"table": catalog.name_of(self._table), "name": name}
        row = self._session.connection.execute(query, arguments).fetchone()
        statement = statement_of(row) if row else None
        return self._numbers(statement) if statement else []

    def _numbers(self, statement: sql.Composed) -> list[int]:
        rows = self._session.connection.execute(statement).fetchall()
        return sorted(row["number"] for row in rows)

    def _with_null(self, column: str) -> list[int]:
        if column not in self._numbered.columns:
            return []
        statement = sql.SQL("SELECT {} AS number FROM {} WHERE {} IS NULL")
        return self._numbers(statement.format(self._numbered.number, NUMBERED, sql.Identifier(column)))

    def _against_rule(self, row: DictRow) -> sql.Composed:
        """The rule names columns without a table; one that these rows do not have is an error."""
        statement = sql.SQL("SELECT {} AS number FROM {} WHERE NOT ({})")
        return statement.format(self._numbered.number, NUMBERED, raw(row["rule"]))

    def _without_reference(self, row: DictRow) -> sql.Composed | None:
        pairs: list[tuple[str, str, str, str]] = row["pairs"]
        if not {ours for ours, *_ in pairs} <= set(self._numbered.columns):
            return None

        def equal(table: str) -> sql.Composed:
            return sql.SQL(" AND ").join(
                Operator(schema, name).between(sql.Identifier(table, theirs), sql.Identifier("s", ours))
                for ours, theirs, schema, name in pairs
            )

        missing = [
            sql.SQL("NOT EXISTS (SELECT FROM {} AS t WHERE {})").format(
                sql.Identifier(row["schema"], row["table"]), equal("t")
            )
        ]
        if row["is_own"]:
            missing.append(sql.SQL("NOT EXISTS (SELECT FROM {} AS o WHERE {})").format(NUMBERED, equal("o")))
        return sql.SQL("SELECT {number} AS number FROM {numbered} AS s WHERE {present} AND {missing}").format(
            number=sql.Identifier("s", self._numbered.number_name),
            numbered=NUMBERED,
            present=_present("s", [ours for ours, *_ in pairs]),
            missing=sql.SQL(" AND ").join(missing),
        )

    def _in_conflict(self, row: DictRow) -> sql.Composed | None:
        """Rows whose value another row has: one of the target that stays, one that had it before, or an earlier one."""
        unique: list[str] = row["columns"]
        if not set(unique) <= set(self._numbered.columns):
            return None
        values = [sql.Identifier(f"value {at}") for at in range(len(unique))]

        def named(table: str) -> sql.Composed:
            return sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(sql.Identifier(table, name), value)
                for name, value in zip(unique, values, strict=True)
            )

        statements = self._target.statements
        return sql.SQL(
            "SELECT number FROM (SELECT number, row_number() OVER (PARTITION BY {values} ORDER BY number IS NULL DESC,"
            " has DESC, number) AS place FROM ("
            "SELECT {number} AS number, EXISTS (SELECT FROM {target} AS t WHERE {same_key} AND {same_values}) AS has,"
            " {ours} FROM {numbered} AS s WHERE {ours_present}"
            " UNION ALL SELECT NULL, true, {theirs} FROM {target} AS t WHERE {theirs_present}"
            " AND ({their_values}) IN (SELECT {our_values} FROM {numbered} AS s)"
            " AND NOT EXISTS (SELECT FROM {numbered} AS s WHERE {same_key})) AS rows) AS ranked"
            " WHERE place > 1 AND number IS NOT NULL"
        ).format(
            values=sql.SQL(", ").join(values),
            number=sql.Identifier("s", self._numbered.number_name),
            target=self._target.identifier,
            same_key=statements.same(statements.key),
            same_values=statements.same(unique),
            ours=named("s"),
            ours_present=_present("s", unique),
            theirs=named("t"),
            theirs_present=_present("t", unique),
            their_values=names(unique, "t"),
            our_values=names(unique, "s"),
            numbered=NUMBERED,
        )


def _present(table: str, columns: Sequence[str]) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(sql.Identifier(table, name)) for name in columns)
