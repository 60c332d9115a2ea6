"""What is wrong with the accounts that an installation uses, and what it costs."""

from collections.abc import Iterator
from dataclasses import dataclass

from vitrine.accounts import roles
from vitrine.accounts.grants import DEFINITION, LEASE
from vitrine.errors import VitrineError
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings


@dataclass(frozen=True)
class AccountFinding:
    """One sentence with its remedy; `code` is stable."""

    code: str
    text: str


def check_accounts(connection: Connection, settings: Settings) -> list[AccountFinding]:
    """Findings about the account of this connection to the store, and about the accounts that read the sources."""
    return [
        *_of_store(connection),
        *_of_search_path(connection),
        *_of_default_source(settings),
        *(finding for name in {"default", *map(str.lower, settings.sources)} for finding in _of_source(settings, name)),
        *_of_roles(connection),
    ]


_STORE = """
    SELECT current_user::text AS name, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
           (SELECT bool_or(has_column_privilege('etl.etl_pipelines', c, 'UPDATE'))
              FROM unnest(%(definition)s::text[]) AS c) AS configures,
           (SELECT bool_or(has_column_privilege('etl.etl_pipelines', c, 'UPDATE'))
              FROM unnest(%(lease)s::text[]) AS c) AS runs
"""


def _of_store(connection: Connection) -> Iterator[AccountFinding]:
    row = connection.execute(_STORE, {"definition": list(DEFINITION), "lease": list(LEASE)}).fetchone()
    if row is None:
        return
    if row["superuser"]:
        yield AccountFinding(
            "ACCOUNT_SUPERUSER",
            f"the store is used as '{row['name']}', a superuser, whom no right limits; run `vitrine migrate --roles`"
            " with it once, and give the API and the runners accounts of their own",
        )
    elif row["configures"] and row["runs"]:
        yield AccountFinding(
            "ONE_ACCOUNT",
            f"'{row['name']}' may change the configuration and the leases: if the API or a runner is broken into, the"
            " other one's data is open as well; run `vitrine migrate --roles`, and give each an account of its own",
        )


_SEARCHED = """
    SELECT current_user::text AS name, quote_ident(n.nspname) AS schema, r.rolname::text AS role
      FROM pg_namespace n CROSS JOIN pg_roles r
     WHERE n.nspname = ANY (current_schemas(false)) AND n.nspname <> 'pg_catalog'
       AND NOT r.rolsuper AND r.rolname <> current_user AND r.rolname !~ '^pg_'
       AND has_schema_privilege(r.oid, n.oid, 'CREATE')
     ORDER BY r.rolname LIMIT 1
"""


def _of_search_path(connection: Connection) -> Iterator[AccountFinding]:
    row = connection.execute(_SEARCHED).fetchone()
    if row is not None:
        yield AccountFinding(
            "SEARCH_PATH",
            f"the store is used as '{row['name']}', whose search_path has schema {row['schema']}: operators and"
            f" functions that role '{row['role']}' creates there may run with its rights; run ALTER ROLE {row['name']}"
            " SET search_path = pg_catalog",
        )


def _of_default_source(settings: Settings) -> Iterator[AccountFinding]:
    if "default" not in map(str.lower, settings.sources):
        yield AccountFinding(
            "SOURCE_ACCOUNT",
            "the default source is read with the account of the store, which may write: only the checks of source"
            " queries stand between a pipeline and the data; set VITRINE_SOURCES__DEFAULT to an account that can only"
            " read",
        )


# has_table_privilege includes what a role has by membership; templates and temporary tables are left out
_READER = """
    SELECT current_user::text AS name,
           (SELECT rolsuper OR rolcreaterole OR rolbypassrls FROM pg_roles WHERE rolname = current_user) AS powerful,
           (SELECT string_agg(r.rolname, ', ') FROM pg_roles r
             WHERE r.rolname IN ('pg_write_all_data', 'pg_write_server_files', 'pg_execute_server_program')
               AND pg_has_role(r.oid, 'MEMBER')) AS roles,
           (SELECT format('%I.%I', n.nspname, c.relname)
              FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
             WHERE c.relkind IN ('r', 'p', 'v', 'f') AND n.nspname !~ '^(pg_|information_schema$)'
               AND (has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
                    OR has_any_column_privilege(c.oid, 'INSERT, UPDATE'))
             ORDER BY 1 LIMIT 1) AS writable,
           (SELECT quote_ident(n.nspname) FROM pg_namespace n
             WHERE n.nspname !~ '^pg_' AND has_schema_privilege(n.oid, 'CREATE') ORDER BY 1 LIMIT 1) AS creatable
"""


def _of_source(settings: Settings, name: str) -> Iterator[AccountFinding]:
    if name == "default" and settings.source_url(name) == settings.store_url:
        return  # reported already
    try:
        with connect(settings.source_url(name), name="vitrine:doctor", side=f"source '{name}'") as source:
            row = source.execute(_READER).fetchone()
    except VitrineError as exc:
        yield AccountFinding("NOT_CHECKED", f"the account of source '{name}' was not checked: {exc}")
        return
    if row is None:
        return
    reasons = {
        "is a superuser, or has CREATEROLE or BYPASSRLS": row["powerful"],
        f"is a member of {row['roles']}": row["roles"],
        f"may write to {row['writable']}": row["writable"],
        f"may create tables in schema {row['creatable']}": row["creatable"],
    }
    if reason := next((reason for reason, applies in reasons.items() if applies), None):
        yield AccountFinding(
            "READER_WRITES",
            f"source '{name}' is read as '{row['name']}', who {reason}: only the checks of source queries stand between"
            " a pipeline and the data; give it an account that can only read (`vitrine migrate --reader-sql`)",
        )


def _of_roles(connection: Connection) -> Iterator[AccountFinding]:
    prefix = roles.find_prefix(connection)
    if prefix is None:
        return
    missing = roles.plan(connection, roles.Roles.of(prefix), roles.Places(sources=()), sources=False)
    if missing:
        yield AccountFinding(
            "GRANTS_OUTDATED",
            f"the rights of the roles {prefix}_… are not those of this release; run `vitrine migrate` as the owner of"
            f" the store, which executes {len(missing)} statement(s), for example {missing[0].as_string(connection)}",
        )
