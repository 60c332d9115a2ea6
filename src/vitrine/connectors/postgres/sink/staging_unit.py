"""Writes batches to the staging table of a load: one transaction per unit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from psycopg import sql

from vitrine.connectors.postgres import ranges
from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import copy_in
from vitrine.connectors.postgres.sink.quarantine import NUMBER, NUMBERED, REFUSALS, Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.statements import names
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.rows import NOTHING_WRITTEN, Batch, BinaryRows, Column, Counts, Key, Written
from vitrine.postgres import Connection


class Staging(Protocol):
    """The load that a unit belongs to."""

    is_fresh: bool

    def create(self, columns: Sequence[Column]) -> None: ...


class StagingUnit:
    """One transaction on the staging table; the checkpoint joins it."""

    def __init__(
        self,
        load: Staging,
        session: TargetSession,
        target: TargetTable,
        quarantine: Quarantine,
        table: sql.Identifier,
    ) -> None:
        self.result: Written = NOTHING_WRITTEN
        self._load = load
        self._session = session
        self._target = target
        self._quarantine = quarantine
        self._table = table

    @property
    def transaction(self) -> Connection:
        return self._session.connection

    def write(self, batch: Batch) -> None:
        if not batch.count and not self._target.exists and not isinstance(batch.payload, BinaryRows):
            return  # the columns that a transform adds are not known before its first row
        self._target.accept(batch)
        facts, fresh = self._target.facts, self._load.is_fresh
        try:
            self._prepare(batch.columns)
            if batch.count:
                copy_in(self._session, self._target, self._table, batch)
            rejected = 0
        except REFUSALS as refusal:
            self._session.roll_back_to_start()
            self._target.restore(facts)
            self._load.is_fresh = fresh
            if not self._target.exists and refusal.diag.column_name in self._target.key:
                raise self._target.null_key() from refusal
            rejected = self._write_fitting(batch)
        counts = Counts(staged=batch.count - rejected, rejected=rejected)
        self.result = replace(self.result, counts=self.result.counts + counts)

    def delete(self, keys: Sequence[Key]) -> None:
        if not keys or self._load.is_fresh:
            return
        types = catalog.column_types(self.transaction, self._table)
        key = [Column(name, types[name]) for name in self._target.key]
        statement = sql.SQL("DELETE FROM {} AS t WHERE {}").format(self._table, ranges.condition("t", key, keys))
        gone = self.transaction.execute(statement).rowcount
        self.result = replace(self.result, counts=self.result.counts + Counts(staged=-gone))

    def _prepare(self, columns: Sequence[Column]) -> None:
        self._target.prepare(columns)
        if self._load.is_fresh:
            self._load.create(columns)

    def _write_fitting(self, batch: Batch) -> int:
        """Write the batch without the rows that do not fit; returns how many were rejected."""
        self._prepare(batch.columns)
        self._quarantine.number(batch)
        columns = [column.name for column in batch.columns]
        values = self._quarantine.cast_columns(columns, self._table)

        def write_range(low: int, high: int) -> int:
            insert = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} BETWEEN {} AND {}")
            self.transaction.execute(insert.format(self._table, names(columns), values, NUMBERED, NUMBER, low, high))
            return 0

        _, rejects = self._quarantine.write_fitting(batch.count, write_range, columns, self._table)
        self.result = replace(self.result, rejects=tuple(rejects))
        return len(rejects)
