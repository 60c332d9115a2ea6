"""Checks a target, and the columns to be written to it, before a row is moved."""

from collections.abc import Sequence

from vitrine.connectors.postgres import PostgresSettings, PostgresSinkOptions, types
from vitrine.connectors.postgres.sink import casts, catalog, findings
from vitrine.connectors.postgres.sink.catalog import TableFacts
from vitrine.connectors.postgres.sink.drift import WrittenColumns
from vitrine.connectors.postgres.sink.session import TargetSession
from vitrine.flow.jobs import SinkJob
from vitrine.flow.rows import Column, Finding, Kind, bare_type, kind_of
from vitrine.postgres import CATALOG_NAMES, in_transaction

_TIMES = frozenset({Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.TIMESTAMPTZ})


class TargetChecks:
    """Finds the reasons against writing to a target, and warnings; facts are None for a target that does not exist."""

    def __init__(
        self,
        session: TargetSession,
        job: SinkJob[PostgresSinkOptions, PostgresSettings],
        written: WrittenColumns,
    ) -> None:
        self._session = session
        self._target = str(job.target)
        self._place = job.target.name.split(".")  # schema and table
        self._definition = job.definition
        self._options = job.options
        self._written = written

    def all(self, facts: TableFacts | None, key: Sequence[str], columns: Sequence[Column]) -> list[Finding]:
        if facts is not None and (finding := findings.of_kind(self._target, facts)):
            return [finding]
        if facts is None and (finding := self._of_type()):
            return [finding]
        found = [*self.of_columns(facts, key, columns), *self.of_drift(facts, columns)]
        if finding := self.of_key(facts, key):
            found.insert(0, finding)
        if facts is not None:
            found += findings.of_table(self._target, facts, self._definition, self._options)
        return found

    def _of_type(self) -> Finding | None:
        with self._session.translated():
            kind = catalog.kind_of_type(self._session.connection, *self._place)
        return findings.of_type(self._target, kind)

    def of_key(self, facts: TableFacts | None, key: Sequence[str]) -> Finding | None:
        return findings.of_key(self._target, facts, key)

    def of_columns(self, facts: TableFacts | None, key: Sequence[str], columns: Sequence[Column]) -> list[Finding]:
        found = findings.of_columns(self._target, facts, key, columns, self._definition, self._options)
        return [*found, *self._of_types(columns)]

    def of_drift(self, facts: TableFacts | None, columns: Sequence[Column]) -> list[Finding]:
        """What has changed since the last write."""
        if facts is None or not columns:
            return []
        found = list(findings.of_drift(self._target, facts, columns, self._written, self._options))
        for column, before in self._written.retyped(columns):
            stored = facts.types.get(column.name, column.type)
            if not self._may_become(before, column.type, stored):
                found.append(findings.retyped(self._target, column, before, stored))
        return found

    def _may_become(self, before: str, now: str, stored: str) -> bool:
        """Whether values of the new type have the same meaning as before, and are stored as they are or refused."""
        if bare_type(now) == bare_type(stored):
            return True
        if _TIMES & {kind_of(before), kind_of(now)}:  # their meaning depends on a time zone
            return False
        if {kind_of(now), kind_of(stored)} == {Kind.INTEGER}:
            return True
        with self._session.translated():
            return casts.describe(self._session.connection, [(now, stored)])[0].exact

    def _of_types(self, columns: Sequence[Column]) -> list[Finding]:
        """Types that the target's database lacks, or that are neither PostgreSQL's own nor an extension's."""
        # only types of pg_catalog have an unqualified name
        qualified = [column for column in columns if "." in column.type]
        if not qualified:
            return []
        with self._session.translated(), in_transaction(self._session.connection, CATALOG_NAMES):
            rows = self._session.connection.execute(
                "SELECT coalesce(to_regtype(name)::oid, 0)::bigint AS oid"
                "  FROM unnest(%s::text[]) WITH ORDINALITY AS w(name, place) ORDER BY place",
                [[bare_type(column.type) for column in qualified]],
            ).fetchall()
            facts = types.describe(self._session.connection, [(row["oid"], types.UNSET) for row in rows])
        return [
            findings.missing_type(self._target, column)
            for column, known in zip(qualified, facts, strict=True)
            if known.is_flattened or known.bare != bare_type(column.type)
        ]
