"""What a query may read, checked in the transaction that reads it: an owner may redefine a view at any time."""

from collections.abc import Mapping, Sequence

from psycopg import errors, sql
from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings, PostgresSourceOptions
from vitrine.connectors.postgres.source import catalog, copy_out
from vitrine.connectors.postgres.source.definitions import Name, Rules, Walk, Way
from vitrine.connectors.postgres.source.session import SourceSession
from vitrine.errors import ConfigError, TransientError
from vitrine.flow.rows import Finding
from vitrine.policy import ReadOnlySql, parse_calls
from vitrine.postgres import raw

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
            count = sql.SQL(catalog.PLAIN).format(sql.Literal(names))
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
