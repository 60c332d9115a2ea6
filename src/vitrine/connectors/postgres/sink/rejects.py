"""Rows that do not fit the target: found, described by key and column, and skipped."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres.sink import catalog, numbering, session
from vitrine.connectors.postgres.sink.copy_in import Casts
from vitrine.connectors.postgres.sink.numbering import NUMBERED, Numbered, Unfit, does_not_fit
from vitrine.connectors.postgres.sink.session import TargetSession, names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.connectors.postgres.types import Operator
from vitrine.core import keys
from vitrine.core.rows import Batch, Key, Reject, bare_type
from vitrine.definition.context import RejectPolicy
from vitrine.errors import DataError
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
        reason = does_not_fit(diag.column_name, session.renamed_staging(safe_message(error), self._target.table))
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


REFUSALS = (psycopg.DataError, psycopg.IntegrityError)
"""Errors that the target raises for a row that does not fit."""

Write = Callable[[sql.Composable], None]
"""Writes rows that have the types of the target."""


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
        self,
        session: TargetSession,
        target: TargetTable,
        casts: Casts,
        policy: RejectPolicy,
        open_rejects: Collection[str],
    ) -> None:
        self.expects_rejects = False  # the last batch had some: writing the next one as a whole would fail as well
        self._session = session
        self._target = target
        self._casts = casts
        self._policy = policy
        self._open = set(open_rejects)
        self._rejected: set[str] = set()  # by this object, since the start of the load if there is one
        # A load that is continued has rejected some of the open ones: which of them is not known here, so the rows of
        # all stay until the next load.
        self._earlier = frozenset(open_rejects)

    @property
    def kept(self) -> str | None:
        """Keys that the load has rejected, as JSON: their last good version stays in the target. None: no keys."""
        kept = self._rejected | self._earlier
        return json.dumps(sorted(kept)) if kept else None

    def start_load(self) -> None:
        """A load begins with its first row."""
        self._rejected.clear()
        self._earlier = frozenset[str]()

    def number(self, batch: Batch) -> Numbered:
        """Copy the batch into a temporary table with the types of the target."""
        return numbering.number_batch(self._session, self._casts, batch, self._target.key, self._policy.room)

    def number_rows_of(self, table: sql.Identifier) -> Numbered:
        return numbering.number_rows_of(self._session, table, self._target.key)

    def write_fitting(self, numbered: Numbered, table: sql.Identifier, write: Write) -> list[Reject]:
        """Write every numbered row that fits to a table; returns the others as rejects. The policy may raise.

        Values that do not fit are known from the conversion. Each violation of a constraint names it, and one
        statement finds all rows that break it. What cannot be found this way is found by halving.
        """
        rejects = self._write_fitting(numbered, table, write)
        self.expects_rejects = bool(rejects)
        return rejects

    def _write_fitting(self, numbered: Numbered, table: sql.Identifier, write: Write) -> list[Reject]:
        rejects = self._reject(numbered, numbering.with_verdicts(self._session, numbered))
        violations = Violations(self._session, self._target, table, numbered)

        def attempt(low: int, high: int) -> psycopg.Error | None:
            try:
                with self._session.connection.transaction():
                    write(numbered.rows(low, high))
            except REFUSALS as error:
                return error
            return None

        while (refusal := attempt(1, numbered.count)) and (found := violations.of(refusal)):
            rejects += self._reject(numbered, found)
        if refusal is None:
            return rejects
        self._session.connection.execute(sql.SQL("CREATE INDEX ON {} ({})").format(NUMBERED, numbered.number))
        for number, error in isolate(1, numbered.count, attempt):
            rejects += self._reject(numbered, [_unfit(number, error, self._target.table)])
        return rejects

    def healed_by_load(self, table: sql.Identifier) -> list[str]:
        """Keys of rejects of earlier loads whose rows are staged, and so are written now, or are gone at the source."""
        others = self._open - self._rejected
        return self._found_in(table, others) if self._earlier else sorted(others)

    def healed(self, table: sql.Identifier) -> list[str]:
        """Keys of earlier rejects whose rows are in this table, and so are written now."""
        return self._found_in(table, self._open)

    def deleted(self, gone: Sequence[Key]) -> list[str]:
        """Keys of earlier rejects whose rows the source has no more."""
        return [text for text in map(keys.to_text, gone) if text in self._open]

    def _found_in(self, table: sql.Identifier, wanted: Collection[str]) -> list[str]:
        if not wanted:
            return []
        forms = [self._target.statements.key_text("s")]
        if not all(key.startswith("[") for key in wanted):  # an earlier version has stored them
            forms.append(sql.SQL("concat_ws('/', {})").format(names(self._target.key, "s")))
        # a merge switches it off, and without it every row would be compared with every key
        self._session.connection.execute("SET LOCAL enable_hashjoin = on")
        found: list[str] = []
        for key in forms:
            # no parameters: the driver would look for placeholders in the names of columns
            statement = sql.SQL(
                "SELECT key FROM (SELECT {} AS key FROM {} AS s) AS k"
                " WHERE key IN (SELECT json_array_elements_text({}::json))"
            ).format(key, table, sql.Literal(json.dumps(sorted(wanted))))
            rows = self._session.connection.execute(statement).fetchall()
            found += [row["key"] for row in rows]
        return found

    def replaced(self, rejects: Sequence[Reject]) -> list[str]:
        """Open rejects of the same rows under keys that an earlier version stored."""
        earlier = {key for key in self._open if not key.startswith("[")}
        if not earlier:
            return []
        joined = {"/".join(keys.from_text(reject.key)) for reject in rejects}
        return sorted(joined & earlier)

    def add_refused(self, batch: Batch) -> list[str]:
        """Rows of the batch that the source could not deliver: what the target has of them stays.

        Returns open rejects of the same rows under keys that an earlier version stored. DataError if the keys are
        another text in the target, because the row would not be found there.
        """
        stored = self._target.facts.types if self._target.facts else {}
        for column in batch.columns:
            there = stored.get(column.name, column.type)
            if column.name in self._target.key and bare_type(there) != bare_type(column.type):
                raise DataError(
                    f"a row of the source is too large, and it cannot be quarantined: key column '{column.name}' is of"
                    f" type {column.type} in the query and {there} in {self._target.name}; cast it in the"
                    " query, or raise VITRINE_MAX_ROW_BYTES",
                    code="ROW_TOO_LARGE",
                )
        refused = {reject.key for reject in batch.refused}
        self._open |= refused
        self._rejected |= refused
        return self.replaced(batch.refused)

    def _reject(self, numbered: Numbered, unfit: Sequence[Unfit]) -> list[Reject]:
        """Judge these rows and remove them; the policy may raise."""
        if not unfit:
            return []
        described = self._described(numbered, unfit[: self._policy.room + 1])
        for reject, _ in described:
            self._policy.judge(reject)
        statement = sql.SQL("DELETE FROM {} WHERE {} = ANY (%s::integer[])").format(NUMBERED, numbered.number)
        self._session.connection.execute(statement, [_array(unfit)])
        rejects = [_with_standing(reject, is_stored) for reject, is_stored in described]
        self._open.update(reject.key for reject in rejects)
        self._rejected.update(reject.key for reject in rejects)
        return rejects

    def _described(self, numbered: Numbered, unfit: Sequence[Unfit]) -> list[tuple[Reject, bool]]:
        """The rows as rejects, each with whether the target has a row of its key."""
        try:
            with self._session.connection.transaction():
                added = sql.Literal([numbered.number_name, numbered.verdict_name])
                return self._describe(numbered, unfit, sql.SQL("(to_jsonb(q.*) - {}::text[])::text").format(added))
        except psycopg.errors.UntranslatableCharacter:  # jsonb does not hold a document with \u0000
            return self._describe(numbered, unfit, sql.Literal("{}"))

    def _describe(self, numbered: Numbered, unfit: Sequence[Unfit], row: sql.Composable) -> list[tuple[Reject, bool]]:
        statements, number = self._target.statements, numbered.number_name
        is_stored: sql.Composable = sql.SQL("false")
        if self._target.exists:
            is_stored = sql.SQL("EXISTS (SELECT FROM {} AS t WHERE {})").format(
                self._target.identifier, statements.same(statements.key)
            )
        statement = sql.SQL(
            "SELECT {number} AS number, CASE WHEN num_nulls({key}) = 0 THEN {stored_key} ELSE {sent_key} END AS key,"
            " {row} AS row, {is_stored} AS is_stored"
            " FROM {numbered} AS s JOIN {sent} AS q ON {sent_number} = {number}"
            " WHERE {number} = ANY ({numbers}::integer[]) AND {sent_number} = ANY ({numbers}::integer[])"
        ).format(
            number=sql.Identifier("s", number),
            key=names(numbered.key, "s"),
            stored_key=statements.key_text("s"),
            sent_key=statements.key_text("q"),
            is_stored=is_stored,
            numbered=NUMBERED,
            sent=numbered.sent,
            sent_number=sql.Identifier("q", number),
            row=row,
            numbers=sql.Literal(_array(unfit)),
        )
        found = {row["number"]: row for row in self._session.connection.execute(statement).fetchall()}
        return [
            (Reject(row["key"], one.column, one.code, one.reason, row["row"]), row["is_stored"])
            for one in unfit
            for row in [found[one.number]]
        ]


def _array(unfit: Sequence[Unfit]) -> str:
    """The numbers as text: the driver takes long to convert a list."""
    return "{" + ",".join(str(one.number) for one in unfit) + "}"


def _unfit(number: int, error: Exception, table: str) -> Unfit:
    sqlstate = getattr(error, "sqlstate", None) or "?????"
    column = getattr(getattr(error, "diag", None), "column_name", None)
    reason = session.renamed_staging(safe_message(error), table)
    return Unfit(number, column, sqlstate, numbering.does_not_fit(column, reason))


def _with_standing(reject: Reject, is_stored: bool) -> Reject:
    standing = "the mart keeps the previous version" if is_stored else "the mart has no row for this key"
    # dataclasses.replace takes four times as long
    return Reject(reject.key, reject.column, reject.code, f"{reject.reason}; {standing}", reject.row)
