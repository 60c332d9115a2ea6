"""A unit that writes a batch as a whole and, if rows do not fit, without them."""

from dataclasses import replace

from psycopg import sql

from vitrine.connectors.postgres.sink import encodings
from vitrine.connectors.postgres.sink.casts import Casts
from vitrine.connectors.postgres.sink.quarantine import REFUSALS, Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.flow.rows import NOTHING_WRITTEN, Batch, Counts, Written
from vitrine.postgres import Connection


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
            if encodings.concerns_text(self.transaction, refusal):
                raise encodings.refusal(self.transaction, batch, self._target.name) from refusal
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
