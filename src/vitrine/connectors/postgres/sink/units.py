"""Units: one transaction each, into the mart or into a staging table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from psycopg import sql

from vitrine.connectors.postgres import compare_sql
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import Casts, concerns_text, copy_in, encoding_refusal
from vitrine.connectors.postgres.sink.rejects import REFUSALS, Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession, names
from vitrine.connectors.postgres.sink.target import Merger, TargetTable, check_deferred, report_triggers
from vitrine.core.rows import NOTHING_WRITTEN, Batch, Column, Counts, Key, Written
from vitrine.postgres import Connection

if TYPE_CHECKING:
    from vitrine.connectors.postgres.sink.row_checks import RowChecks


class BatchUnit:
    """One transaction on the target's database; the checkpoint joins it."""

    def __init__(
        self, session: TargetSession, target: TargetTable, casts: Casts, quarantine: Quarantine, table: sql.Identifier
    ) -> None:
        self.result: Written = NOTHING_WRITTEN
        self._session = session
        self._casts = casts
        self._table = table  # whose constraints the rows must obey
        self._target = target
        self._quarantine = quarantine

    @property
    def transaction(self) -> Connection:
        return self._session.connection

    def write(self, batch: Batch) -> None:
        """Write every row that fits; rows that do not go to the reject policy, which may raise."""
        if not batch.columns:
            return  # a transform has returned no row yet, so its columns are not known
        self._target.accept(batch)
        self._write(batch)
        if batch.refused:
            closed = self._quarantine.add_refused(batch)
            self.result = replace(self.result, healed=(*self.result.healed, *closed))

    def _write(self, batch: Batch) -> None:
        if self._quarantine.expects_rejects and self._target.exists and batch.count:
            self._prepare(batch)
            self._write_fitting(batch)
            return
        facts, result = self._target.facts, self.result
        try:
            self._prepare(batch)
            if batch.count:
                self._write_all(batch)
        except REFUSALS as refusal:
            self._session.roll_back_to_start()
            self._target.restore(facts)
            self._undo()
            self.result = result
            if concerns_text(self.transaction, refusal):
                raise encoding_refusal(self.transaction, batch, self._target.name) from refusal
            if not self._target.exists and refusal.diag.column_name in self._target.key:
                raise self._target.null_key() from refusal
            self._prepare(batch)
            self._write_fitting(batch)

    def _prepare(self, batch: Batch) -> None:
        """Ensure that the tables exist and have the columns of the batch."""
        raise NotImplementedError

    def _write_all(self, batch: Batch) -> None:
        raise NotImplementedError

    def _write_rows(self, rows: sql.Composable, batch: Batch) -> None:
        """Write rows that have the types of the target."""
        raise NotImplementedError

    def _undo(self) -> None:
        """Forget what was done before the transaction was rolled back."""

    def _write_fitting(self, batch: Batch) -> None:
        numbered = self._quarantine.number(batch)
        self._check_numbered(numbered.keyed_rows)

        def write(rows: sql.Composable) -> None:
            before = self.result
            try:
                self._write_rows(rows, batch)
            except REFUSALS:
                self.result = before
                raise

        rejects = self._quarantine.write_fitting(numbered, self._table, write)
        closed = self._quarantine.replaced(rejects)
        self.result = replace(
            self.result,
            counts=self.result.counts + Counts(rejected=len(rejects)),
            rejects=(*self.result.rejects, *rejects),
            healed=(*self.result.healed, *closed),
        )

    def _check_numbered(self, rows: sql.Composable) -> None:
        """DataError if a rule for the whole batch is broken: parts of it could obey the rule."""


BATCH = sql.Identifier("pg_temp", "vitrine_batch")
CHECKED = sql.Identifier("pg_temp", "vitrine_checked")


class ChangesUnit(BatchUnit):
    """One transaction on the target."""

    def __init__(
        self,
        session: TargetSession,
        target: TargetTable,
        casts: Casts,
        quarantine: Quarantine,
        checks: "RowChecks | None",
        newest_by: Sequence[str] | None,
    ) -> None:
        super().__init__(session, target, casts, quarantine, target.identifier)
        self._checks = checks
        self._written = BATCH  # the rows that were written, if checks need them
        # of several rows with one key, the newest by these columns is kept; None: they are an error
        self._newest_by = newest_by

    def write(self, batch: Batch) -> None:
        super().write(batch)
        # guarantee: M2
        self._check(batch)
        if batch.count:
            self._target.refuse_changed(column.name for column in batch.columns)
        facts = self._target.facts
        kept = self._target.columns_to_keep
        self.result = replace(self.result, identity=facts.identity if facts else None, facts=kept)

    def _check(self, batch: Batch) -> None:
        """After the merge, so that a row is compared with the rows that stay; a failure rolls everything back."""
        if self._checks is not None and batch.count and batch.columns:
            results = self._checks.of_batch(self._written, batch.columns, batch.deleted)
            self.result = replace(self.result, checks=results)

    def delete(self, keys: Sequence[Key]) -> None:
        facts = self._target.facts
        if facts is None or not keys:
            return
        key = [Column(name, facts.types[name]) for name in self._target.key]
        rows = sql.SQL("FROM {} AS t WHERE {}").format(
            self._target.identifier, compare_sql.condition("t", key, keys, facts.equality)
        )
        self._add(Counts(deleted=self.transaction.execute(sql.SQL("DELETE {}").format(rows)).rowcount))
        self.result = replace(self.result, healed=(*self.result.healed, *self._quarantine.deleted(keys)))
        self._target.refuse_changed(self._target.key)
        if facts.triggers:
            check_deferred(self.transaction)
            kept = self.transaction.execute(sql.SQL("SELECT {}").format(rows)).rowcount
            if kept:
                report_triggers(self._target, facts, f"{kept} rows that were deleted")

    def _add(self, counts: Counts) -> None:
        self.result = replace(self.result, counts=self.result.counts + counts)

    def _prepare(self, batch: Batch) -> None:
        self._target.prepare(batch.columns)
        if not self._target.exists:
            self._target.create(batch.columns)
        if batch.count:
            self._session.create_temporary(BATCH, self._target.typed(batch.columns))
            if self._checks is not None:
                self._session.create_temporary(CHECKED, self._target.typed(batch.columns))

    def _write_all(self, batch: Batch) -> None:
        copy_in(self._session, self._casts, BATCH, batch)
        self._merge(batch)

    def _write_rows(self, rows: sql.Composable, batch: Batch) -> None:
        columns = names(column.name for column in batch.columns)
        self.transaction.execute(sql.SQL("TRUNCATE {}").format(BATCH))
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} AS r")
        self.transaction.execute(insert.format(BATCH, columns, columns, rows))
        self._merge(batch)
        if self._checks is not None:  # only a part of the batch, without its rejects
            self._written = CHECKED
            self.transaction.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(CHECKED, BATCH))

    def _write_fitting(self, batch: Batch) -> None:
        facts = self._target.facts
        # A row may take over a unique value of one that is deleted after it. Where rows refer to one another they are
        # written first, because some may move away from a row that is deleted.
        if facts is not None and len(facts.uniques) > 1 and not any(one.is_own for one in facts.references):
            self.delete(batch.deleted)
        super()._write_fitting(batch)

    def _check_numbered(self, rows: sql.Composable) -> None:
        if self._newest_by is None:
            self._target.refuse_bad_keys(rows)

    def _merge(self, batch: Batch) -> None:
        """Merge the batch's table into the target."""
        columns = [column.name for column in batch.columns]
        if self._newest_by is not None:
            self._add(Counts(repeated=drop_superseded(self.transaction, self._target, BATCH, self._newest_by)))
        self._target.refuse_bad_keys(BATCH)
        # A batch is small compared to its mart, so each row is looked up by key. Without statistics of the batch, the
        # planner would scan the whole mart instead.
        self.transaction.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        written = Merger(self._session, self._target, BATCH, columns).merge(sort=True)
        healed = (*self.result.healed, *self._quarantine.healed(BATCH))
        self.result = replace(self.result, healed=healed)
        self._add(Counts(written=written))


def drop_superseded(
    connection: Connection, target: TargetTable, table: sql.Identifier, newest_by: Sequence[str]
) -> int:
    """Keep the newest of several rows with one key; returns the number of the others."""
    columns = catalog.column_types(connection, table)
    order = [name for name in newest_by if name in columns]
    return connection.execute(target.statements.drop_superseded(table, order)).rowcount


class Staging(Protocol):
    """The load that a unit belongs to."""

    is_fresh: bool
    keeps_last: bool  # of several rows with one key

    def create(self, columns: Sequence[Column]) -> None: ...


class StagingUnit(BatchUnit):
    """One transaction on the staging table."""

    def __init__(
        self,
        load: Staging,
        session: TargetSession,
        target: TargetTable,
        casts: Casts,
        quarantine: Quarantine,
        table: sql.Identifier,
    ) -> None:
        super().__init__(session, target, casts, quarantine, table)
        self._load = load
        self._was_fresh = load.is_fresh

    def delete(self, keys: Sequence[Key]) -> None:
        if not keys or self._load.is_fresh:
            return
        facts = catalog.describe(self.transaction, self._table)
        if facts is None:
            return
        key = [Column(name, facts.types[name]) for name in self._target.key]
        wanted = compare_sql.condition("t", key, keys, facts.equality)
        statement = sql.SQL("DELETE FROM {} AS t WHERE {}").format(self._table, wanted)
        self._add_staged(-self.transaction.execute(statement).rowcount)

    def _prepare(self, batch: Batch) -> None:
        self._target.prepare(batch.columns)
        if self._load.is_fresh:
            self._load.create(batch.columns)
            self._quarantine.start_load()

    def _undo(self) -> None:
        self._load.is_fresh = self._was_fresh

    def _write_all(self, batch: Batch) -> None:
        copy_in(self._session, self._casts, self._table, batch)
        self._add_staged(batch.count)

    def _write_rows(self, rows: sql.Composable, batch: Batch) -> None:
        columns = names(column.name for column in batch.columns)
        insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} AS r").format(self._table, columns, columns, rows)
        self._add_staged(self.transaction.execute(insert).rowcount)

    def _check_numbered(self, rows: sql.Composable) -> None:
        if not self._load.keeps_last:
            self._target.refuse_bad_keys(rows)

    def _add_staged(self, rows: int) -> None:
        self.result = replace(self.result, counts=self.result.counts + Counts(staged=rows))
