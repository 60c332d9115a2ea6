"""A table in PostgreSQL's catalog: columns, keys, rules, privileges."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from vitrine.postgres import Connection, raw


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalog describes it."""

    identity: str  # changes if the table is recreated
    types: dict[str, str]  # column: type, in order; without generated columns
    unique: frozenset[frozenset[str]]  # column sets that identify a row
    primary_key: tuple[str, ...]
    cascades: tuple[str, ...]  # tables whose rows are deleted with a row of this one


_FACTS = """
    SELECT c.oid::text AS identity,
           (SELECT jsonb_object_agg(a.attnum, jsonb_build_array(a.attname, format_type(a.atttypid, a.atttypmod)))
              FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '') AS columns,
           (SELECT jsonb_agg(jsonb_build_array(i.indisprimary, (
                       SELECT jsonb_agg(a.attname ORDER BY k.place)
                         FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
                         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                        WHERE k.place <= i.indnkeyatts)))
              FROM pg_index i
             WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
               AND i.indexprs IS NULL) AS keys,
           (SELECT array_agg(f.conrelid::regclass::text ORDER BY 1) FROM pg_constraint f
             WHERE f.contype = 'f' AND f.confdeltype = 'c' AND f.confrelid = c.oid) AS cascades
      FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


def describe(connection: Connection, table: sql.Identifier) -> TableFacts | None:
    """The table, or None if it does not exist. Type names are schema-qualified, inside a transaction or outside."""
    with connection.transaction():
        connection.execute("SET LOCAL search_path = pg_catalog")
        row = connection.execute(_FACTS, [name_of(table)]).fetchone()
    if row is None:
        return None
    columns: dict[str, tuple[str, str]] = row["columns"] or {}
    keys: list[tuple[bool, list[str]]] = row["keys"] or []
    return TableFacts(
        identity=row["identity"],
        types=dict(columns[number] for number in sorted(columns, key=int)),
        unique=frozenset(frozenset(columns) for _, columns in keys),
        primary_key=next((tuple(columns) for is_primary, columns in keys if is_primary), ()),
        cascades=tuple(row["cascades"] or ()),
    )


def name_of(table: sql.Identifier) -> str:
    return table.as_string(None)


def exists(connection: Connection, table: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS yes", [name_of(table)]).fetchone()
    return bool(row and row["yes"])


def free_name(connection: Connection, schema: str, name: str) -> str:
    """The name, or the first one with a numeric suffix that no relation of the schema has."""
    rows = connection.execute(
        "SELECT relname::text AS name FROM pg_class WHERE relnamespace = %s::regnamespace AND starts_with(relname, %s)",
        [name_of(sql.Identifier(schema)), name],
    ).fetchall()
    taken = {row["name"] for row in rows}
    numbered = (f"{name}{number}" for number in itertools.count(1))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def column_types(connection: Connection, table: sql.Identifier) -> dict[str, str]:
    """Columns that can be written, with their types, in order."""
    rows = connection.execute(
        "SELECT attname AS name, format_type(atttypid, atttypmod) AS type FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        [name_of(table)],
    ).fetchall()
    return {row["name"]: row["type"] for row in rows}


def bare_types(connection: Connection, table: sql.Identifier) -> dict[str, str]:
    """Types without length or scale: a cast to them checks nothing; the later assignment does."""
    rows = connection.execute(
        "SELECT attname AS name, format_type(atttypid, NULL) AS type FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
        [name_of(table)],
    ).fetchall()
    return {row["name"]: row["type"] for row in rows}


def primary_key_name(connection: Connection, table: sql.Identifier) -> str | None:
    row = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", [name_of(table)]
    ).fetchone()
    return row["conname"] if row else None


def rules(connection: Connection, table: sql.Identifier, columns: Sequence[str]) -> list[sql.Composed]:
    """The CHECK and NOT NULL rules that concern these columns alone, as actions of ALTER TABLE."""
    arguments = {"table": name_of(table), "columns": list(columns)}
    checks = connection.execute(
        "SELECT pg_get_constraintdef(oid) AS rule FROM pg_constraint WHERE conrelid = %(table)s::regclass"
        "   AND contype = 'c' AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = conrelid"
        "   AND a.attnum = ANY (conkey) AND a.attname <> ALL (%(columns)s))",
        arguments,
    ).fetchall()
    required = connection.execute(
        "SELECT attname AS name FROM pg_attribute WHERE attrelid = %(table)s::regclass AND attnotnull"
        "   AND attnum > 0 AND NOT attisdropped AND attname = ANY (%(columns)s)",
        arguments,
    ).fetchall()
    return [
        *(sql.SQL("ADD {}").format(raw(row["rule"])) for row in checks),
        *(sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(row["name"])) for row in required),
    ]


def default_grants(connection: Connection, table: sql.Identifier) -> list[sql.Composed]:
    """What ALTER DEFAULT PRIVILEGES grants on a new table of this name, found by creating one; it must not exist."""
    connection.execute(sql.SQL("CREATE TABLE {} ()").format(table))
    rows = connection.execute(
        "SELECT a.privilege_type AS privilege, r.rolname AS role, a.is_grantable FROM pg_class c"
        "  CROSS JOIN aclexplode(c.relacl) AS a LEFT JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE c.oid = %s::regclass AND a.grantee <> c.relowner",
        [name_of(table)],
    ).fetchall()
    connection.execute(sql.SQL("DROP TABLE {}").format(table))
    return [
        sql.SQL("GRANT {} ON {} TO {}{}").format(
            raw(row["privilege"]),
            table,
            sql.Identifier(row["role"]) if row["role"] else sql.SQL("PUBLIC"),
            sql.SQL(" WITH GRANT OPTION" if row["is_grantable"] else ""),
        )
        for row in rows
    ]
