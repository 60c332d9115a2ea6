"""The relations behind a query: its tables, what its views read, and their partitions."""

from collections.abc import Collection
from typing import NamedTuple

from vitrine.connectors.postgres.source import copy_out
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.policy import Call
from vitrine.postgres import Connection

Relations = Collection[tuple[str, str]]
"""Schema and name of each relation that a query names."""

# A view depends on what it reads by its rule. A function depends on relations only if its body is SQL that PostgreSQL
# has parsed (BEGIN ATOMIC); the relations in a body of text are unknown.
_BEHIND = """
    WITH RECURSIVE behind AS (
        SELECT 'pg_class'::regclass::oid AS class, c.oid AS object
          FROM unnest(%(schemas)s::name[], %(names)s::name[]) AS named(schema, name)
          JOIN pg_namespace AS n ON n.nspname = named.schema
          JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = named.name
         UNION
        SELECT 'pg_proc'::regclass::oid, p.oid
          FROM unnest(%(function_schemas)s::name[], %(function_names)s::name[]) AS called(schema, name)
          JOIN pg_namespace AS n ON n.nspname = called.schema
          JOIN pg_proc AS p ON p.pronamespace = n.oid AND p.proname = called.name
         UNION
        SELECT found.class, found.object
          FROM behind AS b CROSS JOIN LATERAL (
              SELECT 'pg_class'::regclass::oid, i.inhrelid FROM pg_inherits AS i
               WHERE b.class = 'pg_class'::regclass AND i.inhparent = b.object
               UNION ALL
              SELECT d.refclassid, d.refobjid
                FROM pg_rewrite AS r JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
               WHERE b.class = 'pg_class'::regclass AND r.ev_class = b.object AND r.ev_type = '1'
               UNION ALL
              SELECT d.refclassid, d.refobjid FROM pg_depend AS d
               WHERE b.class <> 'pg_class'::regclass AND d.classid = b.class AND d.objid = b.object
          ) AS found(class, object)
         WHERE found.class IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_operator'::regclass)
    )
"""

_OUTSIDE = """
    SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind
      FROM behind AS b JOIN pg_class AS c ON c.oid = b.object JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE b.class = 'pg_class'::regclass AND c.relkind IN ('f', 'm')
     ORDER BY schema, name LIMIT 1
"""

# By the default of the column, or by ownership: an identity column has no default
_SEQUENCES = """
    SELECT DISTINCT n.nspname::text AS schema, c.relname::text AS name, s.seqcache AS cache
      FROM behind AS b JOIN pg_attribute AS a ON a.attrelid = b.object AND a.attnum > 0
      JOIN LATERAL (
          SELECT d.objid FROM pg_depend AS d
           WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum
             AND d.classid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
           UNION ALL
          SELECT d.refobjid FROM pg_attrdef AS f JOIN pg_depend AS d ON d.objid = f.oid
           WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum
             AND d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass
      ) AS used(sequence) ON true
      JOIN pg_sequence AS s ON s.seqrelid = used.sequence
      JOIN pg_class AS c ON c.oid = s.seqrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE b.class = 'pg_class'::regclass AND s.seqcache > 1 AND (%(column)s::name IS NULL OR a.attname = %(column)s)
     ORDER BY schema, name
"""

_COLUMN = """
    SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind, a.attname::text AS column
      FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE a.attrelid = %s AND a.attnum = %s
"""


class Outside(NamedTuple):
    """A relation whose rows appear in other ways than by a transaction of a session of this database."""

    name: str
    is_foreign: bool  # a foreign table; otherwise a materialized view
    is_named: bool  # the query names it itself


def outside(connection: Connection, relations: Relations, functions: Collection[Call] = ()) -> Outside | None:
    """A foreign table or materialized view behind the relations and functions of the query, if there is any."""
    if not relations and not functions:
        return None
    row = connection.execute(_BEHIND + _OUTSIDE, _names(relations, functions)).fetchone()
    if row is None:
        return None
    found = (row["schema"], row["name"])
    return Outside(".".join(found), row["kind"] == "f", found in relations)


class CachedSequence(NamedTuple):
    """A sequence that hands out numbers to sessions in advance."""

    name: str
    cache: int


def cached_sequences(
    connection: SourceSession, query: str, relations: Relations, column: str
) -> tuple[CachedSequence, ...]:
    """Sequences with CACHE that may assign a column of the query: all behind it, if its own column is unknown."""
    table, name = _origin(connection, query, column)
    arguments = {"column": name, **_names([table] if table else relations)}
    rows = connection.execute(_BEHIND + _SEQUENCES, arguments).fetchall()
    return tuple(CachedSequence(f"{row['schema']}.{row['name']}", row["cache"]) for row in rows)


def _origin(connection: SourceSession, query: str, column: str) -> tuple[tuple[str, str] | None, str | None]:
    """Relation and column that a column of the query shows unchanged; a view hides its column, an expression both."""
    found = copy_out.origin(connection, query, column)
    row = connection.execute(_COLUMN, found).fetchone() if found else None
    if row is None:
        return None, None
    return (row["schema"], row["name"]), None if row["kind"] == "v" else row["column"]


def _names(relations: Relations, functions: Collection[Call] = ()) -> dict[str, list[str]]:
    return {
        "schemas": [schema for schema, _ in relations],
        "names": [name for _, name in relations],
        "function_schemas": [schema for schema, _, _ in functions],
        "function_names": [name for _, name, _ in functions],
    }
