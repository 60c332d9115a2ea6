"""Whether an index serves the statement that a run executes after a checkpoint."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import sql

from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.connectors.postgres.source.ordered import OrderedQuery
from vitrine.connectors.postgres.source.query import SourceQuery
from vitrine.errors import ConfigError, DataError
from vitrine.flow.rows import Finding, Lane, Position, Read
from vitrine.policy.cursor_lineage import Lineage, Origin, Relation
from vitrine.postgres import Connection

SMALL_TABLE_ROWS = 10_000
"""A table with fewer rows is read in milliseconds without an index."""

_HIGHEST = {codec.INT2: "32767", codec.INT4: "2147483647", codec.INT8: "9223372036854775807"}

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


def missing(query: SourceQuery, order: Sequence[str], lineage: Lineage, *, skip_null: bool) -> tuple[Finding, ...]:
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
    if type_oid not in codec.TIMES:
        return _HIGHEST.get(type_oid)
    tomorrow = datetime.now(UTC) + timedelta(days=1)  # of local times as well
    return tomorrow.date().isoformat() if type_oid == codec.DATE else tomorrow.isoformat()


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
