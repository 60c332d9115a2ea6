"""The restricted roles: what each may do with each table of the store, and how they are created."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
from psycopg import sql
from psycopg.rows import DictRow

from vitrine import horizon
from vitrine.errors import ConfigError
from vitrine.postgres import STABLE_PATH, Connection, in_transaction, raw, safe_message

STORE = "etl"

DEFINITION = (
    *("name", "description", "owner", "tags", "type", "source_type", "source", "source_query", "python_task"),
    *("target_table", "mode", "incremental_key", "incremental_id_key", "key_columns", "batch_size"),
    *("batch_size_exact", "enabled", "checks", "options", "schedule_interval", "config_version"),
)
"""Columns of etl_pipelines that configure a pipeline: of the API only."""

FILE = ("file_name", "file_applied_at", "file_digest", "file_differs")
"""Columns of etl_pipelines that say which file manages a definition: of the API only."""

LEASE = ("lease_token", "lease_owner", "lease_expires_at", "heartbeat_at")
"""Columns that say which runner has a pipeline: of runners only."""

OUTCOME = (
    *("postponed", "last_error_code", "last_error_message", "last_error_at"),
    *("alerts", "rejects_noted"),
)
"""Columns with the result of the last run: of runners only."""

REQUEST = (
    *("status", "request_id", "requested_kind", "requested_options", "requested_trigger", "requested_at"),
    *("requested_due_at", "promised_at", "returns_to", "rerun", "rerun_request_id", "rerun_kind", "rerun_options"),
    *("rerun_held", "status_since"),
    *("attempt", "next_attempt_at", "next_due_at", "regular_due_at", "fresh_as_of", "reload_version", "updated_at"),
    *("verified_until", "verdict", "verdict_at", "next_reconcile_at"),
)
"""Columns that both change: the API and the CLI make requests, and a runner makes them from schedules and ends them."""

FIXED = ("id", "created_at")
"""Columns that are never updated."""

CHECKPOINT = (
    *("cursor", "pending_cursor", "pending_since", "cursor_fingerprint", "generation_open", "generation_cursor"),
    *("generation_position", "generation_rows", "target_identity", "sink_facts", "batch_seq", "updated_at"),
)
"""Columns of etl_state that `state: reset` clears."""


AUDITED = ("actor", "role", "via", "address", "operation", "pipeline", "pipeline_id", "before", "after")
"""Columns of etl_audit that a change records; number and time are given by the table, so no account can choose them."""


@dataclass(frozen=True)
class Rights:
    """Privileges on a whole table or sequence, and on single columns of a table."""

    whole: frozenset[str] = frozenset()
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])

    def pairs(self) -> set[tuple[str, str]]:
        """Each privilege with its column; the column is empty for the whole table."""
        return {(one, "") for one in self.whole} | {
            (privilege, column) for privilege, columns in self.columns.items() for column in columns
        }


def _may(*whole: str, **columns: Sequence[str]) -> Rights:
    return Rights(frozenset(whole), {name.upper(): tuple(names) for name, names in columns.items()})


NOTHING = Rights()
READ = _may("SELECT")
EVERY_ROW = _may("SELECT", "INSERT", "UPDATE", "DELETE")
APPEND = _may("SELECT", insert=AUDITED)


@dataclass(frozen=True)
class TableGrants:
    """What runner and API may do with a table; the reader has no right on any table of the store."""

    runner: Rights
    api: Rights


TABLES: Mapping[str, TableGrants] = {
    "etl_pipelines": TableGrants(
        runner=_may("SELECT", update=(*REQUEST, *LEASE, *OUTCOME)),
        # guarantee: K16
        api=_may("SELECT", "DELETE", insert=("id", *DEFINITION, "next_due_at"), update=(*DEFINITION, *FILE, *REQUEST)),
    ),
    "etl_pipeline_tasks": TableGrants(runner=READ, api=_may("SELECT", "INSERT", "DELETE")),
    "etl_chains": TableGrants(runner=_may("SELECT", update=("succeeded_at",)), api=_may("SELECT", "INSERT", "DELETE")),
    "etl_state": TableGrants(runner=_may("SELECT", "INSERT", "UPDATE"), api=_may("SELECT", update=CHECKPOINT)),
    "etl_runs": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_run_logs": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_reconciliations": TableGrants(runner=_may("SELECT", "INSERT", "DELETE"), api=READ),
    "etl_rejects": TableGrants(runner=_may("SELECT", "INSERT", "UPDATE"), api=READ),
    "etl_generations": TableGrants(runner=EVERY_ROW, api=_may("SELECT", "DELETE")),
    "etl_runners": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_installation": TableGrants(runner=READ, api=READ),
    "etl_tokens": TableGrants(runner=NOTHING, api=_may("SELECT", "INSERT", "UPDATE")),
    "etl_sessions": TableGrants(
        runner=NOTHING,
        api=_may("SELECT", "DELETE", insert=("hash", "token_id", "expires_at"), update=("seen_at", "expires_at")),
    ),
    "etl_notifications": TableGrants(runner=EVERY_ROW, api=READ),
    "etl_audit": TableGrants(runner=APPEND, api=APPEND),
    "alembic_version": TableGrants(runner=READ, api=READ),
    "fencing_seq": TableGrants(runner=_may("USAGE"), api=NOTHING),
}
"""By table or sequence. One that an older store does not have is skipped."""


# Only rights of our own roles are granted and revoked; those of PUBLIC and of other roles stay as they are.
DEFAULT_PREFIX = "vitrine"


@dataclass(frozen=True)
class Roles:
    """The names of the three roles; they cannot log in themselves."""

    reader: str
    runner: str
    api: str

    @classmethod
    def of(cls, prefix: str) -> "Roles":
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,50}", prefix) or f"{prefix}_".startswith("pg_"):
            raise ConfigError(
                f"'{prefix}' cannot begin the names of roles; use lower-case letters, digits and underscores, and not"
                " pg, which PostgreSQL reserves",
                code="ROLE_NAME",
            )
        return cls(f"{prefix}_reader", f"{prefix}_runner", f"{prefix}_api")

    def __iter__(self) -> Iterator[str]:
        return iter((self.reader, self.runner, self.api))


@dataclass(frozen=True)
class Places:
    """Where sources and marts are in the database of the store."""

    sources: Sequence[str]  # schemas that pipelines may read
    relations: Sequence[str] = ()  # further relations that they may read, as schema.name
    marts: Sequence[str] = ("analytics",)  # schemas that pipelines may write to


def apply_roles(connection: Connection, roles: Roles, places: Places, *, sources: bool = True) -> list[str]:
    """Create what is missing and revoke what is too much, all or nothing; returns the statements.

    Without `sources`, only the rights on the store and the marts.
    """
    try:
        with connection.transaction():
            statements = plan_roles(connection, roles, places, sources=sources)
            for statement in statements:
                connection.execute(statement)
            return [statement.as_string(connection) for statement in statements]
    except psycopg.errors.InsufficientPrivilege as exc:
        raise ConfigError(
            f"the roles cannot be created: {safe_message(exc)}; connect as a superuser, or give the output of"
            " `vitrine migrate --roles --print-sql` to one",
            code="DATABASE_RIGHTS",
        ) from exc
    except psycopg.Error as exc:
        raise ConfigError(f"the roles cannot be created: {safe_message(exc)}", code="ROLES") from exc


def plan_roles(connection: Connection, roles: Roles, places: Places, *, sources: bool = True) -> list[sql.Composed]:
    """The statements that bring the roles of this database up to date, in order; empty if nothing differs."""
    catalog = _Catalog(connection)
    # under a superuser, operators that others have created must not be found
    with in_transaction(connection, STABLE_PATH):
        return [
            *_roles(catalog, roles),
            *_database(catalog, roles),
            *_schemas(catalog, roles, places),
            *_tables(catalog, roles),
            *_marts(catalog, roles, places),
            *(_reading(catalog, roles, places) if sources else ()),
        ]


def find_prefix(connection: Connection) -> str | None:
    """The prefix with which roles were created for this store before; None if it has none."""
    with in_transaction(connection, STABLE_PATH):
        return _find_prefix(connection)


def _find_prefix(connection: Connection) -> str | None:
    suffix = Roles.of("_").runner.removeprefix("_")
    row = connection.execute(
        "SELECT r.rolname::text AS name FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS a"
        "  JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE n.nspname = %s AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner AND NOT r.rolcanlogin"
        "   AND r.rolname ~ %s ORDER BY r.rolname LIMIT 1",
        [STORE, f"^[a-z_][a-z0-9_]*{suffix}$"],
    ).fetchone()
    if row is None:
        return None
    prefix = row["name"].removesuffix(suffix)
    names = list(Roles.of(prefix))
    known = connection.execute("SELECT FROM pg_roles WHERE rolname = ANY (%s)", [names]).fetchall()
    return prefix if len(known) == len(names) else None


def role_hints(roles: Roles) -> list[str]:
    """What the administrator does next: accounts that can log in, and find nothing that others have created."""
    accounts = {"my_reader": roles.reader, "my_runner": roles.runner, "my_api": roles.api}
    return [
        *(f"CREATE ROLE {name} LOGIN PASSWORD '…' IN ROLE {role};" for name, role in accounts.items()),
        *(f"ALTER ROLE {name} SET search_path = pg_catalog;" for name in accounts),
    ]


def reader_script(roles: Roles, places: Places) -> list[str]:
    """Statements for psql that prepare a further source database for its reader."""
    name = sql.Identifier(roles.reader)
    statements = [
        sql.SQL("CREATE ROLE {} NOLOGIN").format(name),
        *(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(one), name) for one in places.sources),
        *(
            sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(sql.Identifier(one), name)
            for one in places.sources
        ),
        *(sql.SQL("GRANT SELECT ON {} TO {}").format(_relation(one), name) for one in places.relations),
        sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(horizon.SCHEMA)),
        *_create_function(),
        sql.SQL("GRANT EXECUTE ON {} TO {}").format(_FUNCTION, name),
        sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(horizon.SCHEMA), name),
    ]
    return [statement.as_string(None) for statement in statements]


# -- what the catalog says --------------------------------------------------------------------------------------------

Grant = tuple[str, str, str]
"""A role, a privilege, and a column or an empty text for the whole object."""


class _Catalog:
    """The rights that exist in the database of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def rows(self, query: LiteralString, **arguments: object) -> list[DictRow]:
        return self._connection.execute(query, arguments).fetchall()

    def grants(self, query: LiteralString, **arguments: object) -> set[Grant]:
        return {(row["role"], row["privilege"], row["part"]) for row in self.rows(query, **arguments)}

    def on_table(self, schema: str, table: str, roles: Iterable[str]) -> set[Grant]:
        return self.grants(
            """
            SELECT r.rolname::text AS role, a.privilege_type AS privilege, '' AS part
              FROM pg_class c CROSS JOIN aclexplode(c.relacl) AS a JOIN pg_roles r ON r.oid = a.grantee
             WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND c.relname = %(table)s
               AND r.rolname = ANY (%(roles)s) AND a.grantee <> c.relowner
             UNION ALL
            SELECT r.rolname, a.privilege_type, t.attname
              FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid CROSS JOIN aclexplode(t.attacl) AS a
              JOIN pg_roles r ON r.oid = a.grantee
             WHERE c.relnamespace = to_regnamespace(quote_ident(%(schema)s)) AND c.relname = %(table)s
               AND r.rolname = ANY (%(roles)s)
            """,
            schema=schema,
            table=table,
            roles=list(roles),
        )

    def on_schema(self, schema: str, roles: Iterable[str]) -> set[Grant]:
        return self.grants(
            """
            SELECT r.rolname::text AS role, a.privilege_type AS privilege, '' AS part
              FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) AS a JOIN pg_roles r ON r.oid = a.grantee
             WHERE n.nspname = %(schema)s AND r.rolname = ANY (%(roles)s)
            """,
            schema=schema,
            roles=list(roles),
        )

    def has_schema(self, schema: str) -> bool:
        return bool(self.rows("SELECT FROM pg_namespace WHERE nspname = %(schema)s", schema=schema))

    def store_owner(self) -> DictRow:
        """The account that Vitrine has used until now."""
        found = self.rows(
            "SELECT r.oid, r.rolname::text AS name, r.rolsuper AS superuser FROM pg_class c"
            "  JOIN pg_roles r ON r.oid = c.relowner WHERE c.oid = to_regclass('etl.etl_pipelines')"
        )
        if not found:
            raise ConfigError("this database has no store; run `vitrine migrate` first", code="NOT_MIGRATED")
        return found[0]


# -- the parts of the plan --------------------------------------------------------------------------------------------


_POWERS = [
    *("pg_execute_server_program", "pg_read_all_data", "pg_read_server_files", "pg_write_all_data"),
    "pg_write_server_files",
]
"""Predefined roles that read or write beyond any grant."""


def _roles(catalog: _Catalog, roles: Roles) -> Iterator[sql.Composed]:
    found = {
        row["name"]: row
        for row in catalog.rows(
            """
            SELECT r.rolname::text AS name,
                   EXISTS (SELECT FROM pg_roles p WHERE pg_has_role(r.oid, p.oid, 'MEMBER')
                              AND (p.rolsuper OR p.rolcreaterole OR p.rolbypassrls OR p.rolname = ANY (%(powers)s)))
                   AS powerful,
                   r.rolcanlogin OR EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = r.oid)
                   OR EXISTS (SELECT FROM pg_shdepend d JOIN pg_database b ON b.oid = d.dbid
                               WHERE d.refclassid = 'pg_authid'::regclass AND d.refobjid = r.oid
                                 AND b.datname <> current_database()) AS used
              FROM pg_roles r WHERE r.rolname = ANY (%(names)s)
            """,
            names=list(roles),
            powers=_POWERS,
        )
    }
    ours = (roles.runner, "CREATE", "") in catalog.on_schema(STORE, [roles.runner])
    for name in roles:
        if name not in found:
            yield sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(name))
        elif found[name]["powerful"]:
            raise ConfigError(
                f"role '{name}' exists and is, or is a member of, a superuser, a role with CREATEROLE or BYPASSRLS, or"
                f" one of {', '.join(_POWERS)}: it would not be restricted; remove that, or give --role-prefix",
                code="ROLE_NAME",
            )
        elif found[name]["used"] and not ours:
            raise ConfigError(
                f"role '{name}' exists, and was not created for this store: it can log in, has members, or has rights"
                " in another database, so its users would get rights on this store; give --role-prefix, or drop"
                " the role",
                code="ROLE_NAME",
            )


def _database(catalog: _Catalog, roles: Roles) -> Iterator[sql.Composed]:
    (row,) = catalog.rows("SELECT current_database()::text AS name")
    existing = catalog.grants(
        """
        SELECT r.rolname::text AS role, a.privilege_type AS privilege, '' AS part
          FROM pg_database d CROSS JOIN aclexplode(d.datacl) AS a JOIN pg_roles r ON r.oid = a.grantee
         WHERE d.datname = current_database() AND r.rolname = ANY (%(roles)s)
        """,
        roles=list(roles),
    )
    # batches are merged from temporary tables
    wanted = {*((one, "CONNECT", "") for one in roles), (roles.runner, "TEMPORARY", "")}
    yield from _differences(wanted, existing, sql.SQL("DATABASE {}").format(sql.Identifier(row["name"])))


def _schemas(catalog: _Catalog, roles: Roles, places: Places) -> Iterator[sql.Composed]:
    # loads are staged in the store's schema
    wanted = {(roles.runner, "USAGE", ""), (roles.runner, "CREATE", ""), (roles.api, "USAGE", "")}
    for schema in (STORE, *places.marts):
        if catalog.has_schema(schema):
            on = sql.SQL("SCHEMA {}").format(sql.Identifier(schema))
            yield from _differences(wanted, catalog.on_schema(schema, roles), on)


def _tables(catalog: _Catalog, roles: Roles) -> Iterator[sql.Composed]:
    kinds = {
        row["name"]: row["kind"]
        for row in catalog.rows(
            "SELECT relname::text AS name, relkind::text AS kind FROM pg_class"
            " WHERE relnamespace = to_regnamespace(%(schema)s) AND relkind IN ('r', 'p', 'S')",
            schema=STORE,
        )
    }
    for table, grants in TABLES.items():
        if table not in kinds:
            continue
        # nothing for the reader: what it has is revoked
        wanted = {*_wanted(roles.runner, grants.runner), *_wanted(roles.api, grants.api)}
        on = sql.SQL("SEQUENCE {}" if kinds[table] == "S" else "TABLE {}").format(sql.Identifier(STORE, table))
        yield from _differences(wanted, catalog.on_table(STORE, table, roles), on)


def _wanted(role: str, rights: Rights) -> Iterator[Grant]:
    return ((role, privilege, column) for privilege, column in rights.pairs())


def _marts(catalog: _Catalog, roles: Roles, places: Places) -> Iterator[sql.Composed]:
    """Tables of the account that Vitrine used until now move to the role of the runners."""
    owner = catalog.store_owner()
    runner = sql.Identifier(roles.runner)
    if not owner["superuser"] and not _is_member(catalog, owner["name"], roles.runner):
        # it keeps its rights on its tables, and processes that still use it continue
        yield sql.SQL("GRANT {} TO {}").format(runner, sql.Identifier(owner["name"]))
    for row in catalog.rows(
        """
        SELECT n.nspname::text AS schema, c.relname::text AS name
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p') AND c.relowner = %(owner)s
           AND (n.nspname = ANY (%(marts)s)
                OR n.nspname = %(store)s AND c.relname ~ '^stage_[0-9a-f]{32}_g[0-9]+$')
         ORDER BY 1, 2
        """,
        owner=owner["oid"],
        marts=list(places.marts),
        store=STORE,
    ):
        yield sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.Identifier(row["schema"], row["name"]), runner)
    yield from _default_privileges(catalog, owner, roles, places)
    yield from _foreign_targets(catalog, owner, roles, places)


def _is_member(catalog: _Catalog, name: str, role: str) -> bool:
    return bool(
        catalog.rows(
            "SELECT FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid JOIN pg_roles u ON u.oid = m.member"
            " WHERE r.rolname = %(role)s AND u.rolname = %(name)s",
            role=role,
            name=name,
        )
    )


def _default_privileges(catalog: _Catalog, owner: DictRow, roles: Roles, places: Places) -> Iterator[sql.Composed]:
    """Marts that are created later get the grants that tables of the earlier owner would have had."""
    for row in catalog.rows(
        """
        WITH found AS (
            SELECT d.defaclrole, n.nspname, a.privilege_type, g.rolname, a.grantee, a.is_grantable
              FROM pg_default_acl d LEFT JOIN pg_namespace n ON n.oid = d.defaclnamespace
             CROSS JOIN aclexplode(d.defaclacl) AS a LEFT JOIN pg_roles g ON g.oid = a.grantee
             WHERE d.defaclobjtype = 'r' AND (n.nspname IS NULL OR n.nspname = ANY (%(marts)s))
               AND a.grantee <> d.defaclrole
        )
        SELECT old.nspname::text AS schema, old.privilege_type AS privilege, old.rolname::text AS grantee
          FROM found old
         WHERE old.defaclrole = %(owner)s AND NOT EXISTS (
               SELECT FROM found new JOIN pg_roles r ON r.oid = new.defaclrole
                WHERE r.rolname = %(runner)s AND new.nspname IS NOT DISTINCT FROM old.nspname
                  AND new.privilege_type = old.privilege_type AND new.grantee = old.grantee)
         ORDER BY 1, 2, 3
        """,
        owner=owner["oid"],
        runner=roles.runner,
        marts=list(places.marts),
    ):
        yield sql.SQL("ALTER DEFAULT PRIVILEGES FOR ROLE {} {} GRANT {} ON TABLES TO {}").format(
            sql.Identifier(roles.runner),
            sql.SQL("IN SCHEMA {}").format(sql.Identifier(row["schema"])) if row["schema"] else sql.SQL(""),
            raw(row["privilege"]),
            sql.Identifier(row["grantee"]) if row["grantee"] else sql.SQL("PUBLIC"),
        )


def _foreign_targets(catalog: _Catalog, owner: DictRow, roles: Roles, places: Places) -> Iterator[sql.Composed]:
    """Targets that belong to other roles: the runner may write their rows, as the earlier account could.

    Only in schemas of marts: the account of the API could store a pipeline with any table as its target.
    """
    for row in catalog.rows(
        """
        SELECT n.nspname::text AS schema, c.relname::text AS name
          FROM etl.etl_pipelines p
          JOIN pg_class c ON c.oid = to_regclass(CASE WHEN p.target_table ~ '^[a-z_0-9]+[.][a-z_0-9]+$'
                                                      THEN p.target_table END)
          JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_roles r ON r.oid = c.relowner
         WHERE c.relkind IN ('r', 'p') AND c.relowner <> %(owner)s AND r.rolname <> %(runner)s
           AND n.nspname = ANY (%(marts)s)
         GROUP BY 1, 2 ORDER BY 1, 2
        """,
        owner=owner["oid"],
        runner=roles.runner,
        marts=list(places.marts),
    ):
        wanted = {(roles.runner, one, "") for one in ("SELECT", "INSERT", "UPDATE", "DELETE")}
        existing = catalog.on_table(row["schema"], row["name"], [roles.runner])
        on = sql.SQL("TABLE {}").format(sql.Identifier(row["schema"], row["name"]))
        yield from _differences(wanted, existing, on, revoke=False)


def _reading(catalog: _Catalog, roles: Roles, places: Places) -> Iterator[sql.Composed]:
    """What the reader may read; rights that an administrator has added are kept."""
    name = sql.Identifier(roles.reader)
    named = [tuple(one.split(".", 1)) for one in places.relations]
    for schema in dict.fromkeys((*places.sources, *(schema for schema, _ in named))):
        if catalog.has_schema(schema):
            on = sql.SQL("SCHEMA {}").format(sql.Identifier(schema))
            existing = catalog.on_schema(schema, [roles.reader])
            yield from _differences({(roles.reader, "USAGE", "")}, existing, on, revoke=False)
    for row in catalog.rows(
        """
        SELECT n.nspname::text AS schema, c.relname::text AS name
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND (n.nspname = ANY (%(schemas)s) OR n.nspname || '.' || c.relname = ANY (%(relations)s))
           AND NOT EXISTS (SELECT FROM aclexplode(c.relacl) AS a JOIN pg_roles r ON r.oid = a.grantee
                            WHERE r.rolname = %(reader)s AND a.privilege_type = 'SELECT')
         ORDER BY 1, 2
        """,
        schemas=list(places.sources),
        relations=list(places.relations),
        reader=roles.reader,
    ):
        yield sql.SQL("GRANT SELECT ON TABLE {} TO {}").format(sql.Identifier(row["schema"], row["name"]), name)
    yield from _showing_transactions(catalog, roles)


def _showing_transactions(catalog: _Catalog, roles: Roles) -> Iterator[sql.Composed]:
    name = sql.Identifier(roles.reader)
    schema = sql.Identifier(horizon.SCHEMA)
    if not catalog.has_schema(horizon.SCHEMA):
        yield sql.SQL("CREATE SCHEMA {}").format(schema)
    existing = catalog.on_schema(horizon.SCHEMA, [roles.reader])
    yield from _differences({(roles.reader, "USAGE", "")}, existing, sql.SQL("SCHEMA {}").format(schema), revoke=False)
    if not catalog.rows(horizon.FIND, schema=horizon.SCHEMA, name=horizon.NAME, body=horizon.BODY):
        yield from _create_function()
    granted = catalog.rows(
        "SELECT FROM pg_proc p CROSS JOIN aclexplode(p.proacl) AS a JOIN pg_roles r ON r.oid = a.grantee"
        " WHERE p.oid = to_regprocedure(%(signature)s) AND r.rolname = %(reader)s",
        signature=horizon.SIGNATURE,
        reader=roles.reader,
    )
    if not granted:
        yield sql.SQL("GRANT EXECUTE ON {} TO {}").format(_FUNCTION, name)


_FUNCTION = sql.SQL("FUNCTION {}()").format(sql.Identifier(horizon.SCHEMA, horizon.NAME))


def _create_function() -> Iterator[sql.Composed]:
    yield sql.Composed([raw(horizon.CREATE)])
    # PostgreSQL gives PUBLIC this right on every new function, and so on this one of ours
    yield sql.SQL("REVOKE ALL ON {} FROM PUBLIC").format(_FUNCTION)


def _differences(
    wanted: set[Grant], existing: set[Grant], on: sql.Composable, *, revoke: bool = True
) -> Iterator[sql.Composed]:
    """One statement per role and privilege: first what is too much, then what is missing."""
    for role, privilege, columns in _grouped(existing - wanted) if revoke else ():
        yield sql.SQL("REVOKE {}{} ON {} FROM {}").format(raw(privilege), columns, on, sql.Identifier(role))
    for role, privilege, columns in _grouped(wanted - existing):
        yield sql.SQL("GRANT {}{} ON {} TO {}").format(raw(privilege), columns, on, sql.Identifier(role))


def _grouped(grants: set[Grant]) -> Iterator[tuple[str, str, sql.Composable]]:
    keys = sorted({(role, privilege, bool(column)) for role, privilege, column in grants})
    for role, privilege, has_columns in keys:
        columns = sorted(
            column for one, other, column in grants if (one, other, bool(column)) == (role, privilege, has_columns)
        )
        names = sql.SQL(", ").join(map(sql.Identifier, columns))
        yield role, privilege, sql.SQL(" ({})").format(names) if has_columns else sql.SQL("")


def _relation(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split(".", 1))
