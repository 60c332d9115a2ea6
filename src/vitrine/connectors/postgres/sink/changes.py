"""Writes changes to a mart: one transaction per unit; updates rows that differ, inserts new ones."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.batch_unit import BatchUnit
from vitrine.connectors.postgres.sink.casts import Casts
from vitrine.connectors.postgres.sink.copy_in import copy_in
from vitrine.connectors.postgres.sink.merging import Merger, check_deferred, report_triggers
from vitrine.connectors.postgres.sink.quarantine import Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.rows import Batch, Column, Counts, Key
from vitrine.postgres import Connection

if TYPE_CHECKING:
    from vitrine.connectors.postgres.sink.row_checks import RowChecks

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
            self._target.identifier, ranges.condition("t", key, keys, facts.equality)
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
