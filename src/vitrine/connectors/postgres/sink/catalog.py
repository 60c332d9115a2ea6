"""A table in PostgreSQL's catalog: columns, keys, rules, privileges."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from psycopg import sql

from vitrine.connectors.postgres import types
from vitrine.connectors.postgres.types import Operator, TypeFacts
from vitrine.postgres import CATALOG_NAMES, Connection, in_transaction, raw


class ColumnFacts(NamedTuple):
    """A column of a table."""

    name: str
    type: str  # as declared, with length or scale
    facts: TypeFacts
    collation: str | None  # None: that of its type, or none
    deterministic: bool  # its collation finds only equal texts equal
    nullable: bool
    has_default: bool  # a row that does not name the column gets a value
    generated: bool  # cannot be written
    always_identity: bool  # can be inserted, but not updated

    @property
    def identical(self) -> bool:
        """Whether equal values have equal images."""
        return self.facts.identical and self.deterministic


class UniqueFacts(NamedTuple):
    """A unique index; columns is empty if it has expressions or a predicate."""

    name: str
    columns: tuple[str, ...]
    primary: bool
    deferrable: bool
    nulls_distinct: bool
    # whether it finds the same values equal as its columns' types do
    same_equality: bool


class Reference(NamedTuple):
    """A foreign key that refers to the table."""

    name: str
    table: str
    columns: tuple[str, ...]  # to which it refers
    on_delete: str  # the action, as in SQL; empty: the deletion is refused
    is_own: bool  # a row refers to another row of the same table


class Trigger(NamedTuple):
    """A trigger that would fire in a session of ours."""

    name: str
    on_insert: bool
    on_delete: bool
    on_update: bool


@dataclass(frozen=True)
class TableFacts:
    """A table as the catalog describes it."""

    identity: str  # changes if the table is recreated
    kind: str  # relkind of pg_class
    columns: dict[str, ColumnFacts]  # in order; generated ones as well
    uniques: tuple[UniqueFacts, ...]
    references: tuple[Reference, ...]
    triggers: tuple[Trigger, ...]  # also those of single partitions
    rules: tuple[str, ...]  # rewrite rules, by name
    unlogged: tuple[str, ...]  # the table and those of its partitions that a crash of the server empties
    row_security: bool  # policies would hide rows from this session
    deferrable: bool  # a constraint may be checked as late as at COMMIT

    @cached_property
    def types(self) -> dict[str, str]:
        """Types of the columns that can be written, in order."""
        return {column.name: column.type for column in self.columns.values() if not column.generated}

    @cached_property
    def equality(self) -> dict[str, Operator | None]:
        """The operators by which values of each column are equal; None: the type has none."""
        return {column.name: column.facts.equal for column in self.columns.values()}

    @cached_property
    def unique(self) -> frozenset[frozenset[str]]:
        """Column sets that identify a row."""
        return frozenset(frozenset(one.columns) for one in self.uniques if one.columns and one.same_equality)

    @cached_property
    def primary_key(self) -> tuple[str, ...]:
        return next((one.columns for one in self.uniques if one.primary), ())


_FACTS = """
    SELECT c.oid::text AS identity, c.relkind::text AS kind,
           ARRAY(SELECT c.oid::regclass::text WHERE c.relpersistence = 'u') AS unlogged,
           -- an account that may not write only describes the target for one that may, to which other rules apply
           row_security_active(c.oid) AND has_table_privilege(c.oid, 'INSERT') AS row_security,
           (SELECT jsonb_agg(jsonb_build_object(
                       'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'oid', a.atttypid::bigint,
                       'modifier', a.atttypmod, 'nullable', NOT a.attnotnull, 'generated', a.attgenerated <> '',
                       'has_default', a.atthasdef OR a.attidentity <> '' OR t.typdefault IS NOT NULL,
                       'always_identity', a.attidentity = 'a', 'deterministic', coalesce(l.collisdeterministic, true),
                       'collation', CASE WHEN a.attcollation <> t.typcollation
                                         THEN format('%%I.%%I', n.nspname, l.collname) END)
                     ORDER BY a.attnum)
              FROM pg_attribute a
              JOIN pg_type t ON t.oid = a.atttypid
              LEFT JOIN pg_collation l ON l.oid = a.attcollation
              LEFT JOIN pg_namespace n ON n.oid = l.collnamespace
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS columns,
           (SELECT jsonb_agg(jsonb_build_object(
                       'primary', i.indisprimary, 'deferrable', NOT i.indimmediate,
                       'nulls_distinct', NOT i.indnullsnotdistinct,
                       'columns', CASE WHEN i.indpred IS NULL AND i.indexprs IS NULL THEN k.columns END,
                       'name', x.relname, 'classes', k.classes, 'deterministic', k.deterministic))
              FROM pg_index i
              JOIN pg_class x ON x.oid = i.indexrelid
             CROSS JOIN LATERAL (
                   SELECT jsonb_agg((SELECT a.attname FROM pg_attribute a
                                      WHERE a.attrelid = i.indrelid AND a.attnum = k.attnum) ORDER BY place) AS columns,
                          jsonb_agg(k.class::bigint ORDER BY place) AS classes,
                          jsonb_agg(coalesce((SELECT l.collisdeterministic FROM pg_collation l
                                               WHERE l.oid = k.sorted_by), true) ORDER BY place) AS deterministic
                     FROM unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[])
                          WITH ORDINALITY AS k(attnum, class, sorted_by, place)
                    WHERE k.place <= i.indnkeyatts) AS k
             WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid) AS uniques,
           c.relhastriggers OR c.relhasrules OR c.relhassubclass AS is_watched
      FROM pg_class c WHERE c.oid = to_regclass(%s)
"""

# Foreign keys and deferrable constraints have triggers of their own; most marts have neither. Rows that are written to
# the table are stored in its partitions or children, whose triggers fire, and to which foreign keys may refer.
_WATCHERS = """
    WITH RECURSIVE parts (oid) AS (
        SELECT to_regclass(%(table)s)::oid
         UNION ALL
        SELECT i.inhrelid FROM parts AS p JOIN pg_inherits AS i ON i.inhparent = p.oid
    )
    SELECT (SELECT jsonb_agg(jsonb_build_object(
                       'name', f.conname, 'table', f.conrelid::regclass::text,
                       'is_own', f.conrelid IN (SELECT oid FROM parts), 'on_delete',
                       CASE f.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT'
                                          ELSE '' END,
                       'columns', (SELECT jsonb_agg(a.attname) FROM pg_attribute a
                                    WHERE a.attrelid = f.confrelid AND a.attnum = ANY (f.confkey)))
                     ORDER BY f.conrelid::regclass::text, f.conname)
              FROM pg_constraint f
             WHERE f.contype = 'f' AND f.conparentid = 0 AND f.confrelid IN (SELECT oid FROM parts)) AS referring,
           (SELECT jsonb_agg(DISTINCT jsonb_build_object(
                       'name', g.tgname, 'on_insert', g.tgtype & 4 > 0, 'on_delete', g.tgtype & 8 > 0,
                       'on_update', g.tgtype & 16 > 0))
              FROM pg_trigger g
             WHERE g.tgrelid IN (SELECT oid FROM parts) AND NOT g.tgisinternal
               AND g.tgenabled IN ('O', 'A')) AS triggers,
           (SELECT array_agg(w.rulename::text ORDER BY w.rulename) FROM pg_rewrite w
             WHERE w.ev_class = c.oid AND w.ev_type <> '1' AND w.ev_enabled IN ('O', 'A')) AS rules,
           EXISTS (SELECT FROM pg_constraint d JOIN parts AS p ON p.oid IN (d.conrelid, d.confrelid)
                    WHERE d.condeferrable)
           OR EXISTS (SELECT FROM pg_trigger d JOIN parts AS p ON p.oid = d.tgrelid
                       WHERE d.tgdeferrable) AS deferrable,
           ARRAY(SELECT u.oid::regclass::text FROM pg_class u JOIN parts AS p ON p.oid = u.oid
                  WHERE u.relpersistence = 'u' ORDER BY u.oid::regclass::text) AS unlogged
      FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
"""

# Of operator classes that do not come with the server; in the others, equality is that of the type
_OPERATORS = """
    SELECT o.oid::bigint AS class, n.nspname AS schema, p.oprname AS name
      FROM pg_opclass o
      JOIN pg_amop m ON m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype
       AND m.amoprighttype = o.opcintype AND m.amopstrategy = 3
      JOIN pg_operator p ON p.oid = m.amopopr
      JOIN pg_namespace n ON n.oid = p.oprnamespace
     WHERE o.oid = ANY (%s::oid[])
"""
_FIRST_OWN_OID = 16384
_EQUAL = Operator("pg_catalog", "=")
_UNWATCHED: dict[str, Any] = {"referring": None, "triggers": None, "rules": None, "deferrable": False}


def describe(connection: Connection, table: sql.Identifier) -> TableFacts | None:
    """The table, or None if it does not exist. Type names are schema-qualified, inside a transaction or outside."""
    with in_transaction(connection, CATALOG_NAMES):
        row = connection.execute(_FACTS, [name_of(table)]).fetchone()
        if row is None:
            return None
        watched = connection.execute(_WATCHERS, {"table": name_of(table)}).fetchone() if row["is_watched"] else None
        row |= watched or _UNWATCHED
        operators = _operators(connection, row["uniques"] or ())
        described: list[dict[str, Any]] = row["columns"] or []
        facts = types.describe(connection, [(column.pop("oid"), column.pop("modifier")) for column in described])
    columns = {
        column["name"]: ColumnFacts(**column, facts=known) for column, known in zip(described, facts, strict=True)
    }
    return TableFacts(
        identity=row["identity"],
        kind=row["kind"],
        columns=columns,
        uniques=tuple(_unique(index, columns, operators) for index in row["uniques"] or ()),
        references=tuple(Reference(**one | {"columns": tuple(one["columns"])}) for one in row["referring"] or ()),
        triggers=tuple(Trigger(**trigger) for trigger in row["triggers"] or ()),
        rules=tuple(row["rules"] or ()),
        unlogged=tuple(row["unlogged"]),
        row_security=row["row_security"],
        deferrable=row["deferrable"],
    )


def _operators(connection: Connection, uniques: Sequence[Mapping[str, Any]]) -> dict[int, Operator]:
    """The operators by which indexes find values equal, by class; those that are missing are PostgreSQL's own."""
    own = sorted({oid for index in uniques for oid in index["classes"] if oid >= _FIRST_OWN_OID})
    rows = connection.execute(_OPERATORS, [own]).fetchall() if own else []
    return {row["class"]: Operator(row["schema"], row["name"]) for row in rows}


def _unique(
    index: Mapping[str, Any], columns: Mapping[str, ColumnFacts], operators: Mapping[int, Operator]
) -> UniqueFacts:
    names: list[str] = index["columns"] or []
    classes: list[int] = index["classes"] if names else []
    deterministic: list[bool] = index["deterministic"] if names else []
    return UniqueFacts(
        name=index["name"],
        columns=tuple(names),
        primary=index["primary"],
        deferrable=index["deferrable"],
        nulls_distinct=index["nulls_distinct"],
        same_equality=all(
            columns[name].facts.equal == operators.get(oid, _EQUAL) and columns[name].deterministic == same
            for name, oid, same in zip(names, classes, deterministic, strict=True)
        ),
    )


_OF_ROWS = """
    WITH RECURSIVE parts (oid) AS (
        SELECT to_regclass(%(table)s)::oid
         UNION ALL
        SELECT i.inhrelid FROM parts AS p JOIN pg_inherits AS i ON i.inhparent = p.oid
    )
    SELECT c.oid::text AS identity,
           EXISTS (SELECT FROM pg_trigger g JOIN parts AS p ON p.oid = g.tgrelid
                    WHERE NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')) AS has_triggers,
           (SELECT jsonb_object_agg(a.attname, format_type(a.atttypid, a.atttypmod)) FROM pg_attribute a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped) AS types
      FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
"""


def is_as(connection: Connection, table: sql.Identifier, facts: TableFacts, columns: Iterable[str]) -> bool:
    """Whether the table is still the one that the facts describe, as far as rows of these columns are concerned."""
    row = connection.execute(_OF_ROWS, {"table": name_of(table)}).fetchone()
    if row is None or row["identity"] != facts.identity or (row["has_triggers"] and not facts.triggers):
        return False
    types: dict[str, str] = row["types"] or {}
    return all(types.get(name) == facts.types.get(name) for name in columns)


def name_of(table: sql.Identifier) -> str:
    return table.as_string(None)


def exists(connection: Connection, table: sql.Identifier) -> bool:
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL AS yes", [name_of(table)]).fetchone()
    return bool(row and row["yes"])


# An array that PostgreSQL has named itself makes way for a table of its name, and so does a type without a definition.
# A composite type is a relation as well.
_TYPE_OF_NAME = """
    SELECT t.typtype::text AS kind FROM pg_catalog.pg_type t JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
     WHERE n.nspname = %s AND t.typname = %s AND t.typisdefined
       AND NOT EXISTS (SELECT FROM pg_catalog.pg_type e WHERE e.oid = t.typelem AND e.typarray = t.oid)
"""


def kind_of_type(connection: Connection, schema: str, name: str) -> str | None:
    """The typtype of a type that keeps a table of its name from being created; None: there is no such type."""
    row = connection.execute(_TYPE_OF_NAME, [schema, name]).fetchone()
    return row["kind"] if row else None


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


def create(connection: Connection, statement: sql.Composed) -> None:
    """Create a table, in the open transaction; it belongs to the role that all runners share, if there is one.

    A table of a single runner's account could not be altered, or dropped, under another account.
    """
    owner = _shared_owner(connection)
    if owner is None:
        connection.execute(statement)
        return
    connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(owner)))
    # after an error, the transaction or its savepoint is rolled back, and the role with it
    connection.execute(statement)
    connection.execute("SET LOCAL ROLE NONE")


def _shared_owner(connection: Connection) -> str | None:
    """The role without a login that may create tables in the store, if this account is a member of it."""
    member = "SET" if connection.info.server_version >= 160_000 else "MEMBER"
    row = connection.execute(
        "SELECT r.rolname::text AS name FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS a"
        "  JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE n.nspname = %s AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND NOT r.rolcanlogin"
        "   AND r.rolname <> current_user AND pg_has_role(r.oid, %s) ORDER BY r.rolname LIMIT 1",
        ["etl", member],
    ).fetchone()
    return row["name"] if row else None


def primary_key_name(connection: Connection, table: sql.Identifier) -> str | None:
    row = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", [name_of(table)]
    ).fetchone()
    return row["conname"] if row else None


def rules(connection: Connection, table: sql.Identifier, columns: Sequence[str]) -> list[sql.Composed]:
    """The CHECK and NOT NULL rules that concern these columns alone, as actions of ALTER TABLE.

    Rules that are not valid are left out: rows that the target already has may break them.
    """
    arguments = {"table": name_of(table), "columns": list(columns)}
    checks = connection.execute(
        "SELECT pg_get_constraintdef(oid) AS rule FROM pg_constraint WHERE conrelid = %(table)s::regclass"
        "   AND contype = 'c' AND convalidated AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = conrelid"
        "   AND a.attnum = ANY (conkey) AND a.attname <> ALL (%(columns)s))",
        arguments,
    ).fetchall()
    required = connection.execute(
        "SELECT attname AS name FROM pg_attribute a WHERE attrelid = %(table)s::regclass AND attnotnull"
        "   AND attnum > 0 AND NOT attisdropped AND attname = ANY (%(columns)s)"
        "   AND NOT EXISTS (SELECT FROM pg_constraint n WHERE n.conrelid = a.attrelid AND n.contype = 'n'"
        "   AND NOT n.convalidated AND a.attnum = ANY (n.conkey))",
        arguments,
    ).fetchall()
    return [
        *(sql.SQL("ADD {}").format(raw(row["rule"])) for row in checks),
        *(sql.SQL("ALTER {} SET NOT NULL").format(sql.Identifier(row["name"])) for row in required),
    ]


def default_grants(connection: Connection, table: sql.Identifier) -> list[sql.Composed]:
    """What ALTER DEFAULT PRIVILEGES grants on a new table of this name, found by creating one; it must not exist."""
    create(connection, sql.SQL("CREATE TABLE {} ()").format(table))
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


PAGES_PER_PART = 2
"""How many pages of a large table are read for each part into which it is cut."""


def sample_clause(connection: Connection, table: sql.Identifier, parts: int) -> sql.Composed | None:
    """The TABLESAMPLE that reads enough rows of a large table to cut it into parts; None for any other relation."""
    row = connection.execute(
        "SELECT pg_relation_size(oid) / current_setting('block_size')::integer AS pages FROM pg_class"
        " WHERE oid = %s::regclass AND relkind = 'r'",
        [name_of(table)],
    ).fetchone()
    pages, wanted = row["pages"] if row else 0, parts * PAGES_PER_PART
    if pages <= 2 * wanted:
        return None
    return sql.SQL("TABLESAMPLE SYSTEM ({})").format(sql.Literal(round(100 * wanted / pages, 4)))
