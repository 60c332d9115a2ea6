"""What the catalog knows about a table: its columns, its keys, its rules, and who may use it."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from vitrine.postgres import Connection, raw


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalog describes it."""

    types: dict[str, str]  # column: type, in order; generated columns are left out
    unique: frozenset[frozenset[str]]  # column sets that identify a row
    primary_key: tuple[str, ...]


def describe(connection: Connection, table: sql.Identifier) -> TableFacts | None:
    """The table, or None if there is none."""
    if not exists(connection, table):
        return None
    keys = connection.execute(
        "SELECT i.indisprimary AS is_primary, array_agg(a.attname::text ORDER BY k.place) AS columns"
        "  FROM pg_index i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place), pg_attribute a"
        " WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL"
        "   AND i.indisvalid AND k.place <= i.indnkeyatts AND a.attrelid = i.indrelid AND a.attnum = k.attnum"
        " GROUP BY i.indexrelid, i.indisprimary",
        [name_of(table)],
    ).fetchall()
    return TableFacts(
        types=column_types(connection, table),
        unique=frozenset(frozenset(row["columns"]) for row in keys),
        primary_key=next((tuple(row["columns"]) for row in keys if row["is_primary"]), ()),
    )


def name_of(table: sql.Identifier) -> str:
    return table.as_string(None)


def exists(connection: Connection, table: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS yes", [name_of(table)]).fetchone()
    return bool(row and row["yes"])


def free_name(connection: Connection, schema: str, name: str) -> str:
    """The name, or the first with a number behind it, that no relation of the schema bears."""
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
    """Types without length or scale: a cast to those checks nothing, the assignment that follows does."""
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
    """What ALTER DEFAULT PRIVILEGES gives to a table of this name, which must not exist: found by creating one."""
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


def cascading_tables(connection: Connection, table: sql.Identifier) -> list[str]:
    """Tables whose rows go when a row of this one goes."""
    rows = connection.execute(
        "SELECT conrelid::regclass::text AS name FROM pg_constraint WHERE contype = 'f' AND confdeltype = 'c'"
        " AND confrelid = to_regclass(%s) ORDER BY 1",
        [name_of(table)],
    ).fetchall()
    return [row["name"] for row in rows]
