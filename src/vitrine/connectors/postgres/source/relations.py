"""The relations behind a query, and what of them it may read."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from psycopg import errors, sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions
from vitrine.connectors.postgres.source import copy_out, definitions
from vitrine.connectors.postgres.source.definitions import Name, Rules, Walk, Way
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.core.rows import Finding
from vitrine.errors import ConfigError, TransientError
from vitrine.postgres import Connection, raw
from vitrine.sql.functions import Call, parse_calls
from vitrine.sql.policy import ReadOnlySql

RelationTree = Collection[tuple[str, str]]
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


def find_outside(connection: Connection, relations: RelationTree, functions: Collection[Call] = ()) -> Outside | None:
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
    connection: SourceSession, query: str, relations: RelationTree, column: str
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


def _names(relations: RelationTree, functions: Collection[Call] = ()) -> dict[str, list[str]]:
    return {
        "schemas": [schema for schema, _ in relations],
        "names": [name for _, name in relations],
        "function_schemas": [schema for schema, _, _ in functions],
        "function_names": [name for _, name, _ in functions],
    }


_IDENTITIES = """
    SELECT to_regclass(format('%%I.%%I', a.schema, a.name))::oid AS oid
      FROM unnest(%(schemas)s::text[], %(names)s::text[]) WITH ORDINALITY AS a (schema, name, place) ORDER BY place
"""


class Relations:
    """Everything that one query leads to."""

    def __init__(self, query: ReadOnlySql, settings: PostgresSettings, options: PostgresSourceOptions) -> None:
        self._query = query
        self._respect = options.row_security == "respect"
        self._rules = Rules(
            frozenset(settings.allowed_source_schemas),
            frozenset(settings.allowed_relations),
            parse_calls(settings.allowed_functions),
            self._respect,
        )
        self._lock: sql.SQL | None = None
        self._limited: tuple[str, ...] = ()
        self.are_plain = False  # as of the last check: tables without children, and nothing behind them

    def check(self, connection: SourceSession) -> None:
        """Call it first in a transaction that plans or executes the query; ConfigError names what is refused."""
        if self._respect:
            connection.execute("SET LOCAL row_security = on")
        relations = sorted(self._query.relations)
        plain = self._lock_and_count(connection, relations)
        may_be_plain = relations and not (self._respect or self._query.types or self._query.functions)
        self.are_plain = bool(may_be_plain and plain == len(relations))
        if self.are_plain:
            return
        unlocked = [one for one in relations if not _is_locked(connection, one)] if plain is None else []
        walk = Walk(connection, self._rules)
        found = walk.start(self._query.relations, self._query.types, self._query.functions)
        walk.run()
        unlimited = {f"{row['schema']}.{row['name']}" for row in found if not row["limited"]}
        guarded = {name: way for name, way in walk.guarded.items() if name not in unlimited}
        if self._respect:
            self._limited = tuple(sorted(guarded))
        # guarantee: J34
        elif guarded:
            self._refuse_row_security(connection, guarded)
        self._refuse_unlocked(connection, walk, unlocked, {(row["schema"], row["name"]): row["oid"] for row in found})

    def _lock_and_count(self, connection: SourceSession, relations: Sequence[Name]) -> int | None:
        """Lock the relations and count the plain tables among them; None: not every relation can be locked.

        Nothing that is locked can be redefined, nor what a locked view reads. They are locked before the first
        statement that takes the snapshot, so that the snapshot shows what will be executed.
        """
        if not relations:
            return 0
        if self._lock is None:  # composed once: every transaction of a run that reads the query begins with it
            names = [sql.Identifier(*one).as_string(connection) for one in relations]
            count = sql.SQL(definitions.PLAIN).format(sql.Literal(names))
            self._lock = raw((_lock(relations) + count).as_string(connection))
        found = _locked(connection, self._lock)
        return None if found is None else found["tables"]

    def findings(self) -> tuple[Finding, ...]:
        """What `validate` and `reconcile` report about the last check."""
        if not self._limited:
            return ()
        tables = ", ".join(self._limited)
        text = f"options.row_security: respect: rows that policies of {tables} hide from the reader are not in the mart"
        return (Finding("ROW_SECURITY", text),)

    def _refuse_row_security(self, connection: SourceSession, guarded: Mapping[str, Way]) -> None:
        """PostgreSQL decides whether a policy applies: behind a view, to the rights of the view's owner."""
        try:
            copy_out.prepare(connection, self._query.text)
        except errors.InsufficientPrivilege as exc:
            message = exc.diag.message_primary or ""
            for name, way in guarded.items():
                if f'"{name.partition(".")[2]}"' in message:
                    role = way.role or connection.info.user
                    raise ConfigError(
                        f"source query: row-level security of {name} hides rows from role {role}; let that role read"
                        f" all rows (ALTER ROLE {role} BYPASSRLS), or set options.row_security: respect if the mart is"
                        " to hold only what the policies show",
                        code="ROW_SECURITY",
                    ) from exc
            raise

    def _refuse_unlocked(
        self, connection: SourceSession, walk: Walk, unlocked: Sequence[Name], checked: Mapping[Name, int]
    ) -> None:
        """A relation without a lock may be replaced after its check."""
        unlocked = [name for name in unlocked if ".".join(name) not in self._rules.relations]
        if not unlocked:
            return
        for name in (".".join(name) for name in unlocked):
            if walk.kinds.get(name) == "v":
                raise ConfigError(
                    f"source query: view {name} cannot be protected from being redefined while it is read; grant SELECT"
                    f" on the whole view to role {connection.info.user}, and on what it reads to the view's owner",
                    code="VIEW_NOT_LOCKED",
                )
        copy_out.prepare(connection, self._query.text)  # locks what the names stand for now
        arguments = {"schemas": [schema for schema, _ in unlocked], "names": [name for _, name in unlocked]}
        present = [row["oid"] for row in connection.execute(_IDENTITIES, arguments)]
        if present != [checked.get(name) for name in unlocked]:
            raise TransientError(
                "source query: a relation was replaced while it was checked; the next attempt checks it again",
                code="SCHEMA_CHANGED",
            )


def _is_locked(connection: SourceSession, relation: Name) -> bool:
    return _locked(connection, _lock([relation]) + sql.SQL("SELECT true AS locked")) is not None


def _lock(relations: Sequence[Name]) -> sql.Composed:
    names = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(*one)) for one in relations)
    return sql.SQL("SAVEPOINT lock; LOCK TABLE {} IN ACCESS SHARE MODE; RELEASE lock;").format(names)


def _locked(connection: SourceSession, statements: sql.SQL | sql.Composed) -> DictRow | None:
    """The row of a query that follows the lock in the same message; None: a relation cannot be locked."""
    try:
        answers = connection.execute(statements)
    except (errors.WrongObjectType, errors.InsufficientPrivilege):
        # a materialized view, a foreign table, or rights on single columns only
        connection.execute("ROLLBACK TO lock")
        return None
    while answers.nextset():
        pass
    return answers.fetchone()
