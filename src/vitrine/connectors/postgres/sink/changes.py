"""Writes changes to a mart: one transaction per unit; updates rows that differ, inserts new ones."""

from collections.abc import Sequence
from dataclasses import replace

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import copy_in
from vitrine.connectors.postgres.sink.merging import Merger
from vitrine.connectors.postgres.sink.quarantine import NUMBER, NUMBERED, REFUSALS, Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.rows import NOTHING_WRITTEN, Batch, BinaryRows, Column, Counts, Key, Written
from vitrine.postgres import Connection

BATCH = sql.Identifier("pg_temp", "vitrine_batch")


class ChangesUnit:
    """One transaction on the target; the checkpoint joins it."""

    def __init__(
        self, session: TargetSession, target: TargetTable, quarantine: Quarantine, newest_by: Sequence[str] | None
    ) -> None:
        self.result: Written = NOTHING_WRITTEN
        self._session = session
        self._target = target
        self._quarantine = quarantine
        # of several rows with one key, the newest by these columns is kept; None: they are an error
        self._newest_by = newest_by

    @property
    def transaction(self) -> Connection:
        return self._session.connection

    def write(self, batch: Batch) -> None:
        if not batch.count and not self._target.exists and not isinstance(batch.payload, BinaryRows):
            return  # the columns that a transform adds are not known before its first row
        self._target.accept(batch)
        before = self._target.facts
        try:
            self._write(batch)
        except REFUSALS as refusal:
            self._session.roll_back_to_start()
            self._target.restore(before)
            self.result = NOTHING_WRITTEN
            if not self._target.exists and refusal.diag.column_name in self._target.key:
                raise self._target.null_key() from refusal
            self._write_fitting(batch)
        facts = self._target.facts
        kept = self._target.columns_to_keep
        self.result = replace(self.result, identity=facts.identity if facts else None, facts=kept)

    def delete(self, keys: Sequence[Key]) -> None:
        facts = self._target.facts
        if facts is None or not keys:
            return
        key = [Column(name, facts.types[name]) for name in self._target.key]
        statement = sql.SQL("DELETE FROM {} AS t WHERE {}").format(
            self._target.identifier, ranges.condition("t", key, keys)
        )
        self._add(Counts(deleted=self.transaction.execute(statement).rowcount))

    def _add(self, counts: Counts) -> None:
        self.result = replace(self.result, counts=self.result.counts + counts)

    def _write(self, batch: Batch) -> None:
        self._prepare(batch.columns)
        if batch.count:
            self._session.create_temporary(BATCH, self._target.typed(batch.columns))
            copy_in(self._session, self._target, BATCH, batch)
            self._add(Counts(written=self._merge([column.name for column in batch.columns])))

    def _prepare(self, columns: Sequence[Column]) -> None:
        self._target.prepare(columns)
        if not self._target.exists:
            self._target.create(columns)

    def _merge(self, columns: Sequence[str]) -> int:
        """Merge the batch's table into the target; returns the number of rows written."""
        if self._newest_by is not None:
            self._add(Counts(repeated=drop_superseded(self.transaction, self._target, BATCH, self._newest_by)))
        self._target.refuse_bad_keys(BATCH)
        # A batch is small compared to its mart, so each row is looked up by key. Without statistics of the batch, the
        # planner would scan the whole mart instead.
        self.transaction.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off")
        written = Merger(self._session, self._target, BATCH, columns).merge(sort=True)
        healed = (*self.result.healed, *self._quarantine.healed(BATCH))
        self.result = replace(self.result, healed=healed)
        return written

    def _write_fitting(self, batch: Batch) -> None:
        """Write the batch without the rows that do not fit."""
        self._prepare(batch.columns)
        self._quarantine.number(batch)
        self._session.create_temporary(BATCH, self._target.typed(batch.columns))
        columns = [column.name for column in batch.columns]
        values = self._quarantine.cast_columns(columns, BATCH)

        def write_range(low: int, high: int) -> int:
            self.transaction.execute(sql.SQL("TRUNCATE {}").format(BATCH))
            insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} BETWEEN {} AND {}")
            self.transaction.execute(insert.format(BATCH, names(columns), values, NUMBERED, NUMBER, low, high))
            return self._merge(columns)

        written, rejects = self._quarantine.write_fitting(batch.count, write_range, columns, BATCH)
        self._add(Counts(written=written, rejected=len(rejects)))
        self.result = replace(self.result, rejects=tuple(rejects))


def drop_superseded(
    connection: Connection, target: TargetTable, table: sql.Identifier, newest_by: Sequence[str]
) -> int:
    """Keep the newest of several rows with one key; returns the number of the others."""
    columns = catalog.column_types(connection, table)
    order = [name for name in newest_by if name in columns]
    return connection.execute(target.statements.drop_superseded(table, order)).rowcount
