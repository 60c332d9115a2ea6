"""Merges a table of rows into the target, by the way that leaves all other tables as they are."""

import logging
from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from vitrine.connectors.postgres.sink.catalog import TableFacts, UniqueFacts
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.errors import DataError
from vitrine.postgres import Connection

log = logging.getLogger(__name__)

TAKEN = sql.Identifier("pg_temp", "vitrine_taken")

_REFUSED = (psycopg.DataError, psycopg.IntegrityError)

Way = Callable[[], int]
"""Merges the rows in one way; returns how many were written."""


class Merger:
    """Merges the rows of one table, which has the types of the target."""

    def __init__(
        self, session: TargetSession, target: TargetTable, table: sql.Composable, columns: Sequence[str]
    ) -> None:
        if target.facts is None:
            raise ValueError("rows are merged into an existing target")
        self._session = session
        self._target = target
        self._facts: TableFacts = target.facts
        self._statements = target.statements
        self._table = table
        self._columns = list(columns)

    @property
    def _connection(self) -> Connection:
        return self._session.connection

    def merge(self, *, sort: bool = False, complete: bool = False) -> int:
        """Update rows that differ and insert new ones; returns how many were written.

        `sort`: look up the rows in the order of the key. `complete`: the target must have no other row afterwards.
        Raises psycopg's error if a row does not fit.
        """
        source = self._statements.ordered(self._table) if sort else self._table
        written = self._merged(lambda: self._merge(source))
        self._check_stored(complete)
        return written

    def _merged(self, plain: Way) -> int:
        if not self._may_conflict():
            return plain()
        try:
            return self._attempt(plain)
        except psycopg.errors.UniqueViolation as violation:
            return self._exchange(violation)

    def _may_conflict(self) -> bool:
        return len(self._facts.uniques) > 1

    def _attempt(self, way: Way) -> int:
        with self._connection.transaction():
            return way()

    def _merge(self, source: sql.Composable) -> int:
        """Deferrable constraints are checked after all rows are written, and before anything is saved."""
        if not self._facts.deferrable:
            return self._connection.execute(self._statements.merge(source, self._columns)).rowcount
        self._connection.execute("SET CONSTRAINTS ALL DEFERRED")
        written = self._connection.execute(self._statements.merge(source, self._columns)).rowcount
        check_deferred(self._connection)
        return written

    # -- rows that exchange a unique value ------------------------------------------------------------------------

    def _exchange(self, violation: psycopg.errors.UniqueViolation) -> int:
        """Rows that take over unique values of one another, without the deletion of a row that others refer to."""
        unique = self._violated(violation)
        for way in self._ways(unique):
            try:
                return self._attempt(way)
            except psycopg.errors.UniqueViolation:
                continue
        if unique is not None and self._is_exchange(unique):
            raise self._refused(unique)
        raise violation

    def _violated(self, violation: psycopg.errors.UniqueViolation) -> UniqueFacts | None:
        """The constraint, if it consists of columns that the rows have."""
        named = [one for one in self._facts.uniques if one.name == violation.diag.constraint_name]
        return next((one for one in named if one.columns and set(one.columns) <= set(self._columns)), None)

    def _ways(self, unique: UniqueFacts | None) -> list[Way]:
        # guarantee: J10
        if not self._facts.references and not self._facts.triggers:
            return [self._replace]
        if unique is None:
            return []
        ways: list[Way] = [lambda: self._merge_by(unique, descending=True), lambda: self._merge_by(unique)]
        if (column := self._releasable(unique)) is not None:
            ways.append(lambda: self._release(unique, column))
        return ways

    def _replace(self) -> int:
        """Remove all rows that differ, then insert them again: no other table and no trigger notices."""
        foreign = [name for name in self._facts.types if name not in self._columns]
        empty_copy = sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT * FROM {} WHERE false")
        self._connection.execute(empty_copy.format(TAKEN, self._target.identifier))
        self._connection.execute(self._statements.take_out(self._table, self._columns, TAKEN))
        put_in = self._statements.put_in(self._table, self._columns, TAKEN, foreign)
        replaced = self._connection.execute(put_in).rowcount
        self._connection.execute(sql.SQL("DROP TABLE {}").format(TAKEN))
        return replaced + self._merge(self._table)

    def _merge_by(self, unique: UniqueFacts, *, descending: bool = False) -> int:
        """In the order of the unique values: rows that shift in one direction then find the next value free."""
        self._connection.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        return self._merge(self._statements.ordered(self._table, unique.columns, descending=descending))

    def _releasable(self, unique: UniqueFacts) -> str | None:
        """A column of the constraint that can be NULL for a moment without an effect on other tables."""
        referred = {name for one in self._facts.references for name in one.columns}
        if not unique.nulls_distinct or any(trigger.on_update for trigger in self._facts.triggers):
            return None
        candidates = (name for name in unique.columns if name not in self._target.key and name not in referred)
        return next((name for name in candidates if self._facts.columns[name].nullable), None)

    def _release(self, unique: UniqueFacts, column: str) -> int:
        """Set the values that change to NULL first, so that every new value is free."""
        try:
            with self._connection.transaction():
                self._connection.execute(self._statements.release(self._table, unique.columns, column))
        except _REFUSED as refused:  # by a CHECK, for example
            raise psycopg.errors.UniqueViolation from refused
        return self._merge(self._table)

    def _is_exchange(self, unique: UniqueFacts) -> bool:
        """Whether the rows would fit if they were all written at once."""
        row = self._connection.execute(self._statements.has_conflict(self._table, unique.columns)).fetchone()
        return row is not None and not row["conflict"]

    def _refused(self, unique: UniqueFacts) -> DataError:
        others = [f"{one.table} refers to it" for one in self._facts.references[:1]]
        others += [f"trigger {one.name} would fire" for one in self._facts.triggers[:1]]
        name = self._target.name
        return DataError(
            f"rows of target {name} exchange values of its unique constraint {unique.name}, and they cannot be deleted"
            f" and inserted again, because {' and '.join(others)}; make the constraint deferrable: ALTER TABLE {name}"
            f" ADD CONSTRAINT … UNIQUE ({', '.join(unique.columns)}) DEFERRABLE, and drop {unique.name}",
            code="UNIQUE_SWAP",
        )

    # -- what is stored -------------------------------------------------------------------------------------------

    def _check_stored(self, complete: bool) -> None:
        """Compare the rows with what triggers of the target have stored."""
        # guarantee: J20
        if not self._facts.triggers:
            return
        check_deferred(self._connection)
        altered = self._count(self._statements.count_altered(self._table, self._columns))
        kept = self._count(self._statements.count_unknown(self._table)) if complete else 0
        counts = [f"{altered} of the rows differently or not at all"] if altered else []
        counts += [f"{kept} rows that the source lacks"] if kept else []
        if counts:
            report_triggers(self._target, self._facts, " and ".join(counts))

    def _count(self, statement: sql.Composed) -> int:
        row = self._connection.execute(statement).fetchone()
        return row["rows"] if row else 0


def report_triggers(target: TargetTable, facts: TableFacts, stored: str) -> None:
    """DataError, or a warning by option: triggers of the target have stored something else than was written."""
    triggers = ", ".join(trigger.name for trigger in facts.triggers)
    text = f"target {target.name} stores {stored}; the cause is one of its triggers: {triggers}"
    if target.options.on_target_trigger == "fail":
        remedy = "change the trigger, or set options.on_target_trigger: warn"
        raise DataError(f"{text}; {remedy}", code="TARGET_CHANGED_ROWS")
    log.warning("%s", text, extra={"action": "target_changed_rows", **target.log_fields})


def check_deferred(connection: Connection) -> None:
    """Check deferred constraints now, while the error still names a row and can be rolled back to a savepoint."""
    # guarantee: J22
    connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
