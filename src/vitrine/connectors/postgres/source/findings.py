"""What `validate` reports about the cursor of a query: its tables, its indexes, its settings."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import sql

from vitrine.connectors.postgres import PostgresSourceOptions, cursor_codec
from vitrine.connectors.postgres.source import relations, watermark
from vitrine.connectors.postgres.source.query import OrderedQuery, SourceColumn, SourceQuery
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.core.rows import Finding, Lane, Position, Read
from vitrine.definition.model import format_duration
from vitrine.errors import ConfigError, DataError
from vitrine.postgres import Connection, translated
from vitrine.settings import format_bytes
from vitrine.sql.checkpoint import Lineage, Origin, Relation, lineage_of
from vitrine.sql.policy import ReadOnlySql

SMALL_TABLE_ROWS = 10_000
"""A table with fewer rows is read in milliseconds without an index."""

_HIGHEST = {cursor_codec.INT2: "32767", cursor_codec.INT4: "2147483647", cursor_codec.INT8: "9223372036854775807"}

# A table with its partitions or children. An index with a condition may not contain the rows.
_TREE = """
    WITH RECURSIVE tree AS (
        SELECT c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = %(schema)s AND c.relname = %(name)s AND c.relkind IN ('r', 'p', 'm')
         UNION
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid
    )
    SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, c.reltuples AS rows,
           EXISTS (SELECT FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
                    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
                      AND a.attname = %(column)s) AS is_indexed
      FROM tree JOIN pg_class AS c USING (oid) JOIN pg_namespace AS n ON n.oid = c.relnamespace
"""


def missing_index(
    query: SourceQuery, order: Sequence[str], lineage: Lineage, *, skip_null: bool
) -> tuple[Finding, ...]:
    """Warnings about large tables that a run after a checkpoint reads from the first row to the last."""
    checkpoint = _likely_checkpoint(query.column(order[0]).type_oid)
    if checkpoint is None:
        return ()
    read = Read(Lane.COPY, tuple(order), Position((checkpoint,)), skip_null=skip_null)
    statement = OrderedQuery(query, read).rows_statement(read.after.cursor)
    served = {*lineage.filtered, *(lineage.origins if lineage.is_plain else ())}
    try:
        with query.reading() as connection:
            scanned = set(_scanned(connection, statement))
            find = _unindexed if served else _computed
            return tuple(find(connection, order[0], served or lineage.origins, scanned)) if scanned else ()
    except (ConfigError, DataError):
        return ()  # the planner computes `$1 + 1`, which the highest number does not allow


def _likely_checkpoint(type_oid: int) -> str | None:
    """A value above nearly every row, so that the planner expects few rows, as it does in a run."""
    if type_oid not in cursor_codec.TIMES:
        return _HIGHEST.get(type_oid)
    tomorrow = datetime.now(UTC) + timedelta(days=1)  # of local times as well
    return tomorrow.date().isoformat() if type_oid == cursor_codec.DATE else tomorrow.isoformat()


def _scanned(connection: Connection, statement: sql.Composed) -> Iterator[Relation]:
    """The tables that the planner would read in full."""
    row = connection.execute(sql.SQL("EXPLAIN (VERBOSE, FORMAT JSON) {}").format(statement)).fetchone()
    pending: list[Mapping[str, Any]] = [row["QUERY PLAN"][0]["Plan"]] if row else []
    while pending:
        node = pending.pop()
        if node["Node Type"] == "Seq Scan":
            yield node["Schema"], node["Relation Name"]
        pending.extend(node.get("Plans", ()))


def _unindexed(
    connection: Connection, cursor: str, columns: Iterable[Origin], scanned: set[Relation]
) -> Iterator[Finding]:
    for relation, column in sorted(columns):
        rows, kind = _rows_without_index(connection, relation, column, scanned)
        if rows < SMALL_TABLE_ROWS:
            continue
        # PostgreSQL builds no index of a partitioned table concurrently
        form = sql.SQL("CREATE INDEX ON {} ({})" if kind == "p" else "CREATE INDEX CONCURRENTLY ON {} ({})")
        statement = form.format(sql.Identifier(*relation), sql.Identifier(column)).as_string(connection)
        yield Finding(
            "CURSOR_NOT_INDEXED",
            f"every run reads all of {'.'.join(relation)} (about {rows:,} rows), because no index of it begins with"
            f" '{column}'; this statement would help: {statement}",
            cursor,
        )


def _computed(
    connection: Connection, cursor: str, columns: Iterable[Origin], scanned: set[Relation]
) -> Iterator[Finding]:
    sizes = {relation: _rows_without_index(connection, relation, None, scanned)[0] for relation, _ in sorted(columns)}
    large = [
        f"{'.'.join(relation)} (about {rows:,} rows)" for relation, rows in sizes.items() if rows >= SMALL_TABLE_ROWS
    ]
    if large:
        yield Finding(
            "CURSOR_NOT_INDEXED",
            f"every run reads all of {', '.join(large)}, because '{cursor}' is computed and no index serves a condition"
            " on it; compare the columns behind it with $1 inside the query",
            cursor,
        )


def _rows_without_index(
    connection: Connection, relation: Relation, column: str | None, scanned: set[Relation]
) -> tuple[int, str]:
    """Rows of a table, or of those of its partitions, that are read without an index; and its kind."""
    arguments = {"schema": relation[0], "name": relation[1], "column": column}
    tree = connection.execute(_TREE, arguments).fetchall()
    read = [one for one in tree if (one["schema"], one["name"]) in scanned and not one["is_indexed"]]
    kind = next((one["kind"] for one in tree if (one["schema"], one["name"]) == relation), "r")
    return sum(max(0, int(one["rows"])) for one in read), kind


_COLUMNS = r"""
    SELECT n.nspname::text AS schema, c.relname::text AS name, a.attname::text AS column,
           a.atttypid IN ('timestamp'::regtype, 'timestamptz'::regtype) AS is_time,
           a.attname ~* '(modif|updat|chang)' AS is_named,
           coalesce(pg_get_expr(d.adbin, d.adrelid) ~* '(now\(\)|_timestamp|localtimestamp)', false) AS is_now
      FROM unnest(%(schemas)s::name[], %(names)s::name[]) AS named(schema, name)
      JOIN pg_namespace AS n ON n.nspname = named.schema
      JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = named.name
      JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
      LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
     ORDER BY schema, name, a.attnum
"""


@dataclass(frozen=True)
class Table:
    """A relation that the query names."""

    columns: tuple[str, ...]
    change: str | None  # the column that most likely has the time of the last change


def describe_ignored(connection: Connection, relations: Sequence[Relation]) -> dict[Relation, Table]:
    arguments = {"schemas": [schema for schema, _ in relations], "names": [name for _, name in relations]}
    found: dict[Relation, list[Mapping[str, object]]] = {}
    for row in connection.execute(_COLUMNS, arguments):
        found.setdefault((row["schema"], row["name"]), []).append(row)
    return {
        relation: Table(tuple(str(row["column"]) for row in rows), _change(rows)) for relation, rows in found.items()
    }


def _change(columns: Sequence[Mapping[str, object]]) -> str | None:
    times = [one for one in columns if one["is_time"]]
    likely = [one for one in times if one["is_named"]] or [one for one in times if one["is_now"]]
    return str(likely[0]["column"]) if likely else None


def ignored_tables(
    connection: Connection, query: ReadOnlySql, tables: Mapping[Relation, Table], cursor: str, lineage: Lineage
) -> tuple[Finding, ...]:
    """One warning about all tables whose changes do not move the cursor."""
    sources = {relation for relation, _ in lineage.origins}
    others = sorted(set(tables) - sources)
    if not sources or not others:
        return ()
    # a run reads only rows whose cursor is above the checkpoint, whatever the query selects
    filtered = {relation for relation, _ in lineage.filtered}
    not_enough = " (a condition on $1 alone does not change that)" if filtered.intersection(others) else ""
    text = (
        f"a change in {_listed(others, 'or')} alone never reaches this mart, because the cursor '{cursor}' takes its"
        f" values from {_listed(sorted(sources), 'and')} only{not_enough};"
        f" {_remedy(connection, tables, cursor, others)}"
    )
    place = query.place_of_relation(*others[0])
    return (Finding("CURSOR_IGNORES_TABLE", text, cursor, place=place),)


def _remedy(connection: Connection, tables: Mapping[Relation, Table], cursor: str, others: Sequence[Relation]) -> str:
    changes = [(one, change) for one in others if (change := tables[one].change) is not None]
    without = [one for one in others if tables[one].change is None]
    remedies: list[str] = []
    if changes:
        times = [(sql.Identifier(*one), sql.Identifier(one[1], change)) for one, change in changes]
        query = sql.SQL("greatest(…, {}) AS {} … WHERE … IN (SELECT … WHERE … >= $1 UNION {})").format(
            sql.SQL(", ").join(sql.SQL("max({})").format(time) for _, time in times),
            sql.Identifier(cursor),
            sql.SQL(" UNION ").join(sql.SQL("SELECT … FROM {} … WHERE {} >= $1").format(*one) for one in times),
        )
        remedies.append(f"a query that includes it has this form: {query.as_string(connection)}")
    if without:
        have = "have" if len(without) > 1 else "has"
        remedies.append(f"{_listed(without, 'and')} {have} no column with the time of a change, so use mode: full")
    return "; ".join(remedies)


def _listed(relations: Sequence[Relation], word: str) -> str:
    *names, last = [".".join(relation) for relation in relations]
    return f"{', '.join(names)} {word} {last}" if names else last


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
            tables = describe_ignored(connection, sorted(self._checked.relations))
            columns = {relation: table.columns for relation, table in tables.items()}
            found = lineage_of(self._checked.text, order[0], columns)
            if found is None:
                return ()
            ignored = ignored_tables(connection, self._checked, tables, order[0], found)
        return ignored + missing_index(self._query, order, found, skip_null=skip_null)

    def _of_lookback(self) -> tuple[Finding, ...]:
        if self._options.lookback is None:
            return ()
        lookback = format_duration(self._options.lookback)
        text = f"options.lookback: rows of a transaction that stays open longer than {lookback} may never be read"
        return (Finding("LOOKBACK", text),)

    def _of_zone(self, column: SourceColumn) -> tuple[Finding, ...]:
        if (
            column.type_oid not in (cursor_codec.TIMESTAMP, cursor_codec.DATE)
            or self._options.cursor_timezone is not None
        ):
            return ()
        with translated("source"), self._connections.formatting() as connection:
            zone = watermark.use_database_zone(connection)
        text = (
            f"options.cursor_timezone is not set: '{column.name}' is taken for the local time of {zone}, the TimeZone"
            " of the source database; set the option if the application writes times of another zone"
        )
        return (Finding("CURSOR_TIMEZONE", text, column=column.name),)

    def _of_disorder(self, column: SourceColumn) -> tuple[Finding, ...]:
        if column.type_oid not in cursor_codec.INTEGERS or self._options.cursor_is_monotonic:
            return ()
        disorder = self._options.cursor_disorder
        with self._query.reading() as connection:
            found = relations.cached_sequences(
                connection, self._query.bound(None), self._checked.relations, column.name
            )
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
