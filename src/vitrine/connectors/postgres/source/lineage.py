"""The relations behind a query: its tables, what its views read, and their partitions."""

from collections.abc import Collection
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Outside:
    """A relation whose rows appear in other ways than by a transaction of a session of this database."""

    name: str
    is_foreign: bool  # a foreign table; otherwise a materialized view
    is_named: bool  # the query names it itself


def outside(connection: Connection, relations: Relations) -> Outside | None:
    """A foreign table or materialized view behind the query, if there is any."""
    row = connection.execute(_BEHIND + _OUTSIDE, _names(relations)).fetchone()
    if row is None:
        return None
    found = (row["schema"], row["name"])
    return Outside(".".join(found), row["kind"] == "f", found in relations)


def _names(relations: Relations) -> dict[str, list[str]]:
    return {"schemas": [schema for schema, _ in relations], "names": [name for _, name in relations]}
