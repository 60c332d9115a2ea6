"""Tables of a source that the reader's account may read, with keys and cursor candidates."""

import re
from collections.abc import Iterator, Sequence

from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings
from vitrine.connectors.postgres.source.connections import SourceConnections
from vitrine.errors import ConfigError
from vitrine.flow.catalog import CursorCandidate, SourceColumn, SourceTable, TableKind
from vitrine.postgres import translated

_KINDS = {"r": TableKind.TABLE, "p": TableKind.PARTITIONED, "v": TableKind.VIEW, "m": TableKind.MATERIALIZED}

# A partition is read through its table. A key counts only if it holds for every row and has no NULL.
_TABLES = """
    SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           CASE c.relkind WHEN 'v' THEN NULL
                WHEN 'p' THEN (SELECT sum(NULLIF(l.reltuples, -1))::bigint FROM pg_partition_tree(c.oid) AS t
                                 JOIN pg_class AS l ON l.oid = t.relid WHERE t.isleaf)
                ELSE NULLIF(c.reltuples, -1)::bigint END AS rows,
           coalesce((SELECT ARRAY(SELECT a.attname::text
                                    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                                    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                                   WHERE k.place <= i.indnkeyatts ORDER BY k.place)
                       FROM pg_index AS i
                      WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                        AND i.indpred IS NULL AND i.indexprs IS NULL
                        AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                                          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                                         WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull)
                      ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1), '{}') AS key,
           (SELECT jsonb_agg(jsonb_build_object(
                       'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
                       'indexed', EXISTS (SELECT FROM pg_index AS i
                                           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
                                             AND i.indkey[0] = a.attnum)) ORDER BY a.attnum)
              FROM pg_attribute AS a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS columns
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = ANY (%(schemas)s) AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
       AND (%(table)s::text IS NULL OR c.relname = %(table)s)
       AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
       AND (n.nspname, c.relname) > (%(after_schema)s, %(after_name)s)
     ORDER BY n.nspname, c.relname
     LIMIT %(limit)s
"""

_TIMES = ("timestamp with time zone", "timestamp without time zone")
_INTEGERS = ("bigint", "integer")
_MODIFICATION = re.compile(r"(^|_)(modified|updated|changed|last_update|mtime|last_modified)(_|$)")
_CREATION = re.compile(r"(^|_)(created|inserted|added)(_|$)")


def list_tables(
    url: str,
    settings: PostgresSettings,
    *,
    schema: str | None = None,
    table: str | None = None,
    after: tuple[str, str] = ("", ""),
    limit: int = 100,
) -> list[SourceTable]:
    """Readable tables of the allowed schemas in the order of their names; ConfigError for another schema."""
    allowed = settings.allowed_source_schemas
    if schema is not None and schema not in allowed:
        raise ConfigError(
            f"schema '{schema}' is not one of the schemas that may be read ({', '.join(allowed)}); add it to"
            " VITRINE_ALLOWED_SOURCE_SCHEMAS",
            code="SCHEMA_NOT_ALLOWED",
        )
    arguments = {
        "schemas": list(allowed) if schema is None else [schema],
        "table": table,
        "after_schema": after[0],
        "after_name": after[1],
        "limit": limit,
    }
    connections = SourceConnections(url, "vitrine:tables", settings)
    try:
        with translated("source"), connections.reading() as reading:
            return [_table(row) for row in reading.execute(_TABLES, arguments)]
    finally:
        connections.close()


def _table(row: DictRow) -> SourceTable:
    columns = tuple(SourceColumn(**one) for one in row["columns"])
    readable = {column.name for column in columns}
    key = tuple(row["key"]) if readable.issuperset(row["key"]) else ()
    kind = _KINDS[row["kind"]]
    return SourceTable(row["schema"], row["name"], kind, row["rows"], columns, key, tuple(_candidates(columns, key)))


def _candidates(columns: Sequence[SourceColumn], key: Sequence[str]) -> Iterator[CursorCandidate]:
    """Times by their names, then indexed times, then integer keys, each with the reasons for it."""
    ranked = [
        (_rank(column, key), place, column)
        for place, column in enumerate(columns)
        if column.type.startswith(_TIMES) or column.type in _INTEGERS
    ]
    for rank, _, column in sorted(ranked, key=lambda one: one[:2]):
        if rank < _UNFIT:
            yield CursorCandidate(column.name, column.type, tuple(_reasons(column)), _is_modification(column))


_UNFIT = 4


def _rank(column: SourceColumn, key: Sequence[str]) -> int:
    """0 is the best; a column of rank _UNFIT is not offered."""
    if _is_modification(column):
        return int(column.nullable) if column.indexed else 1 + int(column.nullable)
    if column.type in _INTEGERS:
        # other integers are references to rows of other tables, and say nothing about time
        return 3 if [column.name] == list(key) else _UNFIT
    return 2 if column.indexed or _CREATION.search(column.name) else _UNFIT


def _is_modification(column: SourceColumn) -> bool:
    return column.type.startswith(_TIMES) and _MODIFICATION.search(column.name) is not None


def _reasons(column: SourceColumn) -> Iterator[str]:
    if _is_modification(column):
        yield "named like the time of a change"
    elif column.type in _INTEGERS:
        yield "grows with new rows; a changed row is not read again"
    elif _CREATION.search(column.name):
        yield "named like the time of creation; a changed row is not read again"
    yield "indexed" if column.indexed else "not indexed"
    if column.nullable:
        yield "may be NULL"
