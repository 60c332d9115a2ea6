"""Writes batches to the staging table of a load: one transaction per unit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.batch_unit import BatchUnit
from vitrine.connectors.postgres.sink.casts import Casts
from vitrine.connectors.postgres.sink.copy_in import copy_in
from vitrine.connectors.postgres.sink.quarantine import Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.rows import Batch, Column, Counts, Key


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
        wanted = ranges.condition("t", key, keys, facts.equality)
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
