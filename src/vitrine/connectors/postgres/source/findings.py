"""What `validate` reports about the cursor of a query."""

from collections.abc import Mapping, Sequence
from typing import Any

from vitrine.connectors.postgres import PostgresSourceOptions
from vitrine.connectors.postgres.source import clock, cursor_indexes, cursor_tables, lineage
from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.connectors.postgres.source.query import SourceColumn, SourceQuery
from vitrine.flow.rows import Finding
from vitrine.model import format_duration
from vitrine.policy import ReadOnlySql
from vitrine.policy.cursor_lineage import lineage_of
from vitrine.postgres import translated
from vitrine.settings import format_bytes


class CursorFindings:
    """Findings about the cursor column of an incremental pipeline."""

    def __init__(
        self,
        query: SourceQuery,
        checked: ReadOnlySql,
        connections: SourceConnections,
        options: PostgresSourceOptions,
    ) -> None:
        self._query = query
        self._checked = checked
        self._connections = connections
        self._options = options

    def of(self, name: str, tie_breaker: str | None, *, skip_null: bool) -> tuple[Finding, ...]:
        column = self._query.column(name)
        order = (name,) if tie_breaker is None else (name, tie_breaker)
        return (
            *self._of_lookback(),
            *self._of_zone(column),
            *self._of_disorder(column),
            *self._of_tables(order, skip_null=skip_null),
        )

    def _of_tables(self, order: Sequence[str], *, skip_null: bool) -> tuple[Finding, ...]:
        """What follows from the tables that the cursor takes its values from."""
        with self._query.reading() as connection:
            tables = cursor_tables.describe(connection, sorted(self._checked.relations))
            columns = {relation: table.columns for relation, table in tables.items()}
            found = lineage_of(self._checked.text, order[0], columns)
            if found is None:
                return ()
            ignored = cursor_tables.ignored(connection, self._checked, tables, order[0], found)
        return ignored + cursor_indexes.missing(self._query, order, found, skip_null=skip_null)

    def _of_lookback(self) -> tuple[Finding, ...]:
        if self._options.lookback is None:
            return ()
        lookback = format_duration(self._options.lookback)
        text = f"options.lookback: rows of a transaction that stays open longer than {lookback} may never be read"
        return (Finding("LOOKBACK", text),)

    def _of_zone(self, column: SourceColumn) -> tuple[Finding, ...]:
        if column.type_oid not in (codec.TIMESTAMP, codec.DATE) or self._options.cursor_timezone is not None:
            return ()
        with translated("source"), self._connections.formatting() as connection:
            zone = clock.use_database_zone(connection)
        text = (
            f"options.cursor_timezone is not set: '{column.name}' is taken for the local time of {zone}, the TimeZone"
            " of the source database; set the option if the application writes times of another zone"
        )
        return (Finding("CURSOR_TIMEZONE", text, column=column.name),)

    def _of_disorder(self, column: SourceColumn) -> tuple[Finding, ...]:
        if column.type_oid not in codec.INTEGERS or self._options.cursor_is_monotonic:
            return ()
        disorder = self._options.cursor_disorder
        with self._query.reading() as connection:
            found = lineage.cached_sequences(connection, self._query.bound(None), self._checked.relations, column.name)
        warned = [
            f"sequence {sequence.name} hands out numbers in advance (CACHE {sequence.cache}), so a row below the"
            f" highest number of '{column.name}' may appear late and never be read; set its CACHE to 1, or"
            " options.cursor_disorder to how many numbers below the highest one may still appear"
            for sequence in found
            if disorder < sequence.cache
        ]
        findings = [Finding("SEQUENCE_CACHE", text, column=column.name) for text in warned]
        if disorder:
            text = f"options.cursor_disorder: a row more than {disorder} below the highest number may never be read"
            findings.append(Finding("CURSOR_DISORDER", text, column=column.name))
        return tuple(findings)


EXPENSIVE = 1e9
"""In the planner's units: reading one page of a table costs 1."""


def of_cost(plan: Mapping[str, Any], max_bytes: int) -> tuple[Finding, ...]:
    """A query that the planner expects to take very long, or to return more than a run may read."""
    found: list[Finding] = []
    if plan["Total Cost"] > EXPENSIVE:
        text = (
            f"the planner expects the query to be very slow (cost {plan['Total Cost']:.0e}); check its joins for a"
            " missing condition"
        )
        found.append(Finding("EXPENSIVE_QUERY", text))
    if plan["Plan Rows"] * plan["Plan Width"] > max_bytes:
        text = (
            f"the planner expects {plan['Plan Rows']:.0e} rows, more than a run may read ({format_bytes(max_bytes)},"
            " VITRINE_MAX_RESULT_BYTES)"
        )
        found.append(Finding("RESULT_TOO_LARGE", text))
    return tuple(found)


def of_settings(connections: SourceConnections) -> tuple[Finding, ...]:
    """The settings that a query may depend on, unless they are those that most servers have."""
    if not connections.has_own_times:
        return ()
    named = ", ".join(f"{name} {value}" for name, value in connections.times.items())
    text = f"the query runs under the settings of its own database, as in psql: {named}"
    return (Finding("SOURCE_SETTINGS", text),)
