"""A load: collects rows in a staging table, then applies the difference to the mart in one transaction."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

from vitrine.connectors.postgres.sink import catalog
from vitrine.connectors.postgres.sink.copy_in import Casts
from vitrine.connectors.postgres.sink.rejects import REFUSALS, Quarantine
from vitrine.connectors.postgres.sink.session import TargetSession, drop_staging, staging_identifier, staging_name
from vitrine.connectors.postgres.sink.target import Merger, TargetTable, check_deferred
from vitrine.connectors.postgres.sink.units import StagingUnit, drop_superseded
from vitrine.core.checks import Results
from vitrine.core.protocols import LoadState
from vitrine.core.rows import Column, Counts, Generation, LoadInfo, Reject, Stamp, Written
from vitrine.core.status import PipelineId
from vitrine.definition.model import Definition, Mode
from vitrine.errors import DataError
from vitrine.failpoints import reach
from vitrine.postgres import Connection

if TYPE_CHECKING:
    from vitrine.connectors.postgres.sink.row_checks import RowChecks


class StagedLoad:
    """One generation of a full load, in a staging table of its own."""

    def __init__(
        self,
        session: TargetSession,
        target: TargetTable,
        casts: Casts,
        quarantine: Quarantine,
        checks: "RowChecks | None",
        definition: Definition,
        pipeline_id: PipelineId,
        generation: Generation,
        newest_by: Sequence[str],
    ) -> None:
        self._session = session
        self._target = target
        self._casts = casts
        self._quarantine = quarantine
        self._checks = checks
        self._newest_by = newest_by
        self._counts_repeated = definition.options.on_duplicate_key == "last"
        # if a key may be staged twice, the key index can only be built when the rows are applied
        self.keeps_last = definition.mode is Mode.INCREMENTAL or self._counts_repeated
        self._name = staging_name(pipeline_id, generation.number)
        self._table = staging_identifier(self._name)
        self.state = LoadState.STAGED if self._exists() else LoadState.ABSENT
        self._created_empty = False
        self.is_fresh = generation.cursor is None  # existing rows of the staging table are not part of this load

    @contextmanager
    def unit(self, stamp: Stamp) -> Generator[StagingUnit]:
        with self._session.transaction():
            yield StagingUnit(self, self._session, self._target, self._casts, self._quarantine, self._table)

    @contextmanager
    def publish(self, stamp: Stamp, info: LoadInfo) -> "Generator[Publication]":
        self._build_key()
        reach("staging_built")
        with self._session.transaction() as connection:
            written = self._apply(connection, info)
            drop_staging(connection, self._name)
            facts = self._target.facts
            identity = facts.identity if facts else None
            kept = self._target.columns_to_keep
            yield Publication(connection, replace(written, identity=identity, facts=kept))

    def discard(self) -> None:
        with self._session.transaction() as connection:
            drop_staging(connection, self._name)
        self.state = LoadState.ABSENT

    def create(self, columns: Sequence[Column]) -> None:
        """Create a table with the target's rules, so that a row that breaks one is found in its batch."""
        connection = self._session.connection
        drop_staging(connection, self._name)
        self._session.create(self._table, self._target.typed(columns))
        if self._target.exists:
            rules = catalog.rules(connection, self._target.identifier, [column.name for column in columns])
        else:  # required by the key: violations are found early, without another scan
            rules = [sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(name)) for name in self._target.key]
        for rule in rules:
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(self._table, rule))
        self.is_fresh, self.state = False, LoadState.STAGED

    def _create_empty(self) -> None:
        """Transforms have returned no row, and so no columns: the target must become empty as well."""
        types = self._target.facts.types if self._target.facts else {}
        self.create([Column(name, types[name]) for name in self._target.key])
        self._created_empty = True
        self._quarantine.start_load()

    # -- publishing -----------------------------------------------------------------------------------------------

    def _exists(self) -> bool:
        return self._session.exists(self._table)

    def _build_key(self) -> None:
        """Build the key in a separate transaction: a load that dies while it is applied need not build it again."""
        if self.keeps_last or not self._exists():
            return
        with self._session.transaction() as connection:
            self._add_missing_key(connection)
            if self._target.exists:
                connection.execute(sql.SQL("ANALYZE {}").format(self._table))

    def _add_missing_key(self, connection: Connection) -> None:
        if catalog.primary_key_name(connection, self._table) is None:
            self._target.add_key(self._table)

    def _apply(self, connection: Connection, info: LoadInfo) -> Written:
        staged = self._session.count(self._table) if self._exists() else 0
        if staged != info.rows:
            raise DataError(
                f"staging holds {staged} rows, but {info.rows} were loaded: another session changed it; run again",
                code="STAGING_MISMATCH",
            )
        if not self._exists():
            if not self._target.exists:
                return Written(checks=self._checks.of_load(info.checks, None, {}, 0) if self._checks else ())
            self._create_empty()
        self._refuse_other_types(connection)
        superseded = drop_superseded(connection, self._target, self._table, self._newest_by) if info.repeats else 0
        self._add_missing_key(connection)
        # guarantee: M1
        checked = self._check(connection, info, staged - superseded)
        healed = tuple(self._quarantine.healed_by_load(self._table))
        repeated = superseded if self._counts_repeated else 0
        if not self._target.exists:
            self._become_target(connection)
            counts = Counts(written=staged - superseded, repeated=repeated)
            return Written(counts, healed=healed, checks=checked)
        deleted, written, rejects = self._apply_difference(connection, info)
        self._target.refuse_changed(catalog.column_types(connection, self._table))
        check_deferred(connection)
        counts = Counts(written=written, deleted=deleted, rejected=len(rejects), repeated=repeated)
        return Written(counts, tuple(rejects), healed, checks=checked)

    def _refuse_other_types(self, connection: Connection) -> None:
        """DataError if the target was altered since the rows were staged: they were converted to its former types."""
        stored = self._target.facts.types if self._target.facts else {}
        for name, staged in catalog.column_types(connection, self._table).items():
            if stored.get(name, staged) != staged:
                raise DataError(
                    f"column '{name}' of target {self._target.name} is of type {stored[name]} now, but rows were staged"
                    f" for type {staged}; run again, and everything is read again",
                    code="STAGING_MISMATCH",
                )

    def _check(self, connection: Connection, info: LoadInfo, rows: int) -> Results:
        if self._checks is None or not info.checks:
            return ()
        empty = rows == 0 and self._created_empty  # its columns are not known
        table, types = (None, {}) if empty else (self._table, catalog.column_types(connection, self._table))
        return self._checks.of_load(info.checks, table, types, rows)

    def _apply_difference(self, connection: Connection, info: LoadInfo) -> tuple[int, int, list[Reject]]:
        """The numbers of rows that were deleted and written, and the rows that do not fit."""
        if self._refers_to_itself and (moved := self._move_before_delete(connection, info)) is not None:
            return *moved, []
        # guarantee: I3
        # guarantee: I4
        deleted = self._delete_vanished(connection, info.max_delete_ratio)
        return deleted, *self._merge(connection)

    @property
    def _refers_to_itself(self) -> bool:
        facts = self._target.facts
        return facts is not None and not facts.triggers and any(one.is_own for one in facts.references)

    def _move_before_delete(self, connection: Connection, info: LoadInfo) -> tuple[int, int] | None:
        """Rows get their new parents before the former ones are deleted: a cascade would take the rows along.

        Returns how many rows were deleted and written; None if that is impossible, for example because a row takes over
        a unique value of one that vanished, or still refers to it: the merge after the deletion then refuses that row.
        """
        columns = list(catalog.column_types(connection, self._table))
        try:
            with connection.transaction():
                written = Merger(self._session, self._target, self._table, columns).merge()
                deleted = self._delete_vanished(connection, info.max_delete_ratio)
                if not self._holds_staged(connection, columns):
                    raise psycopg.Rollback
                return deleted, written
        except REFUSALS:
            pass
        return None

    def _holds_staged(self, connection: Connection, columns: Sequence[str]) -> bool:
        """Whether the deletion has left the staged rows as they are: a foreign key may delete or change more rows."""
        references = self._target.facts.references if self._target.facts else ()
        if not any(one.is_own and one.on_delete for one in references):
            return True
        row = connection.execute(self._target.statements.count_altered(self._table, columns)).fetchone()
        return row is not None and row["rows"] == 0

    def _merge(self, connection: Connection) -> tuple[int, list[Reject]]:
        """Update rows that differ and insert new ones; readers see the old rows until the commit."""
        columns = list(catalog.column_types(connection, self._table))
        try:
            with connection.transaction():
                merger = Merger(self._session, self._target, self._table, columns)
                return merger.merge(complete=not self._quarantine.kept), []
        except REFUSALS:
            return self._merge_fitting(columns)

    def _merge_fitting(self, columns: Sequence[str]) -> tuple[int, list[Reject]]:
        """Apply every staged row that fits; violations that only the target detects (a foreign key) are found here."""
        written = 0

        def write(rows: sql.Composable) -> None:
            nonlocal written
            written += Merger(self._session, self._target, rows, columns).merge()

        numbered = self._quarantine.number_rows_of(self._table)
        rejects = self._quarantine.write_fitting(numbered, self._target.identifier, write)
        return written, rejects

    def _become_target(self, connection: Connection) -> None:
        """Rename the staging table to the missing target, with the privileges of a table created there."""
        target = self._target
        grants = catalog.default_grants(connection, target.identifier)
        old_key = sql.Identifier(catalog.primary_key_name(connection, self._table) or "")
        new_key = sql.Identifier(catalog.free_name(connection, target.schema, f"{target.table[:56]}_pkey"))
        schema, moved = sql.Identifier(target.schema), sql.Identifier(target.schema, self._name)
        for statement in (
            sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(self._table, old_key, new_key),
            sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(self._table, schema),
            sql.SQL("ALTER TABLE {} RENAME TO {}").format(moved, sql.Identifier(target.table)),
            *grants,
        ):
            connection.execute(statement)
        target.add_touch_column()
        target.inspect()

    def _delete_vanished(self, connection: Connection, max_ratio: float | None) -> int:
        before = self._session.count(self._target.identifier)
        # guarantee: J18
        statement = self._target.statements.delete_vanished(self._table, self._quarantine.kept)
        deleted = connection.execute(statement).rowcount
        # guarantee: I6
        if max_ratio is not None and deleted > before * max_ratio:
            raise DataError(
                f"the source lacks {deleted} of the {before} rows of {self._target.name}, more than max_delete_ratio"
                f" {max_ratio:g} allows; nothing was deleted. If that is right, run once with allow_shrink",
                code="SHRINK_GUARD",
            )
        return deleted


class Publication:
    """The transaction that has applied a load; the checkpoint joins it."""

    def __init__(self, transaction: Connection, result: Written) -> None:
        self.transaction = transaction
        self.result = result
