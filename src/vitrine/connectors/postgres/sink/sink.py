"""The PostgreSQL sink: marts in the database that also holds the store."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psycopg import sql

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions, compare_sql
from vitrine.connectors.postgres.compare_sql import Relation
from vitrine.connectors.postgres.sink import catalog, session
from vitrine.connectors.postgres.sink.copy_in import Casts, copy_rows, encode
from vitrine.connectors.postgres.sink.load import StagedLoad
from vitrine.connectors.postgres.sink.rejects import Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.connectors.postgres.sink.target import TargetTable
from vitrine.connectors.postgres.sink.units import ChangesUnit
from vitrine.core.keys import lossless_type
from vitrine.core.rows import (
    Batch,
    BinaryRows,
    Column,
    Compare,
    Digest,
    Finding,
    Generation,
    Lane,
    Position,
    Selection,
    Stamp,
    TargetInfo,
    TextRows,
)
from vitrine.definition.context import SinkJob, SweepJob
from vitrine.errors import ConfigError
from vitrine.postgres import raw

if TYPE_CHECKING:
    from vitrine.connectors.postgres.sink.row_checks import RowChecks

CHECK_TYPES = frozenset({"not_null", "unique", "accepted_values", "range", "row_count", "sql"})
FETCH_ROWS = 5000
MEASURED = sql.Identifier("pg_temp", "vitrine_measured")


class PostgresSink:
    """A Sink for `schema.table`."""

    lanes = (Lane.COPY, Lane.FRAMES, Lane.TEXT, Lane.ROWS)

    def __init__(self, job: SinkJob[PostgresSinkOptions, PostgresSettings]) -> None:
        definition = job.definition
        self._definition = definition
        self._pipeline_id = job.run.pipeline_id
        self._newest_by = [name for name in (definition.incremental_key, definition.tie_breaker) if name]
        self._session = TargetSession(job.store_url, job.run.session, str(job.target))
        self._target = TargetTable(self._session, job)
        self._casts = Casts(self._target.type_of, self._target.name)
        self._quarantine = Quarantine(self._session, self._target, self._casts, job.rejects, job.open_rejects)
        self._checks = _checks_of(self._session, self._target, job)

    def describe(self, columns: Sequence[Column] = ()) -> TargetInfo:
        facts = self._target.facts
        stored = facts.types.items() if facts else ()
        return TargetInfo(
            exists=facts is not None,
            key=self._target.known_key,
            lanes=self.lanes,
            columns=tuple(Column(name, type_name) for name, type_name in stored),
            identity=facts.identity if facts else None,
            findings=tuple(self._findings(columns)),
            checks=CHECK_TYPES,
            written=self._target.written_columns,
        )

    def _findings(self, columns: Sequence[Column]) -> list[Finding]:
        found = self._target.findings(columns)
        if any(finding.fatal for finding in found):
            return found  # a type that the target's database lacks has no casts
        if self._checks is not None:
            found += self._checks.findings(columns)
        if self._target.facts is None:
            return found
        with self._session.translated():
            return found + self._casts.findings(self._session.connection, columns)

    def encode(self, batch: Batch) -> Batch:
        return encode(batch, self._casts)

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[ChangesUnit]:
        newest_by = self._newest_by if self._definition.options.on_duplicate_key == "last" else None
        with self._session.transaction():
            yield ChangesUnit(self._session, self._target, self._casts, self._quarantine, self._checks, newest_by)

    def load(self, generation: Generation) -> StagedLoad:
        if self._pipeline_id is None:
            raise ConfigError("a definition that is not stored cannot be loaded; create the pipeline first")
        return StagedLoad(
            self._session,
            self._target,
            self._casts,
            self._quarantine,
            self._checks,
            self._definition,
            self._pipeline_id,
            generation,
            self._newest_by,
        )

    def digest(self, compare: Compare, rows: Iterator[Batch] | None = None) -> Sequence[Digest]:

        with self._session.transaction() as connection:
            if rows is not None:
                return compare_sql.digest(connection, Relation(MEASURED, self._collect(rows, compare)), compare)
            facts, name = self._target.facts, self._target.identifier
            types = facts.types if facts else {}
            sample = catalog.sample_clause(connection, name, compare.parts) if compare.parts > 1 else None
            lacks = frozenset(column.name for column in compare.columns if column.name not in types)
            return compare_sql.digest(connection, Relation(name, types, sample=sample, lacks=lacks), compare)

    def fetch(self, only: Selection, columns: Sequence[Column]) -> Iterator[Batch]:
        facts = self._target.facts
        if facts is None:
            return
        key = [Column(name, facts.types[name]) for name in self._target.key]
        statement = sql.SQL("COPY (SELECT {} FROM {} AS t WHERE {} ORDER BY {}) TO STDOUT").format(
            sql.SQL(", ").join(
                sql.SQL("CAST({} AS {})").format(sql.Identifier("t", column.name), raw(column.type))
                for column in columns
            ),
            self._target.identifier,
            compare_sql.condition("t", key, only, facts.equality),
            sql.SQL(", ").join(compare_sql.order_by("t", key)),
        )
        data, count = bytearray(), 0
        with self._session.transaction() as connection, connection.cursor() as cursor, cursor.copy(statement) as copy:
            for line in copy:
                data += line
                count += 1
                if count >= FETCH_ROWS:
                    yield _fetched(data, count, columns)
                    data, count = bytearray(), 0
        if count:
            yield _fetched(data, count, columns)

    def cancel(self) -> None:
        self._session.cancel()

    def close(self) -> None:
        self._session.close()

    @classmethod
    def sweep(cls, job: SweepJob[PostgresSettings]) -> list[str]:
        return session.sweep_staging(job)

    def _collect(self, rows: Iterator[Batch], compare: Compare) -> dict[str, str]:
        """Copy rows into a temporary table whose types keep every value as it was produced; returns the types."""
        types: dict[str, str] = {}
        for batch in rows:
            if not types:
                types = self._collected_types(batch)
                self._session.create_temporary(MEASURED, list(types.items()))
            copy_rows(self._session, self._casts, MEASURED, batch)
        if not types:
            types = {column.name: column.type for column in compare.columns}
            self._session.create_temporary(MEASURED, list(types.items()))
        return types

    def _collected_types(self, batch: Batch) -> dict[str, str]:
        if isinstance(batch.payload, BinaryRows):  # binary data must match its type
            return {column.name: column.type for column in batch.columns}
        return {column.name: lossless_type(column.type, self._target.type_of(column)) for column in batch.columns}


def _checks_of(
    session: TargetSession, target: TargetTable, job: SinkJob[PostgresSinkOptions, PostgresSettings]
) -> "RowChecks | None":
    if not job.definition.checks:
        return None
    from vitrine.connectors.postgres.sink.row_checks import RowChecks  # most pipelines have none

    return RowChecks(session, target, job)


def _fetched(data: bytearray, count: int, columns: Sequence[Column]) -> Batch:
    return Batch(TextRows(data, count), tuple(columns), None, Position())
