"""Examines an installation: settings, database, store, accounts, clock, sources, runners, webhook."""

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitrine.definition import connectors
from vitrine.definition.connectors import Diagnosis
from vitrine.errors import ConfigError, VitrineError
from vitrine.operations.bodies.overview import DoctorReport, of_definitions
from vitrine.postgres import Connection, connect, translated
from vitrine.settings import Settings, known_variables, unknown_variables
from vitrine.store import history, migrate, pipelines, roles
from vitrine.store.pipelines import Invalid
from vitrine.store.roles import DEFINITION, LEASE


@dataclass(frozen=True)
class AccountFinding:
    """One sentence with its remedy; `code` is stable."""

    code: str
    text: str


def check_accounts(connection: Connection, settings: Settings) -> list[AccountFinding]:
    """Findings about the account of this connection to the store, and about the accounts that read the sources."""
    return [
        *_of_store_account(connection),
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


def _of_store_account(connection: Connection) -> Iterator[AccountFinding]:
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
    missing = roles.plan_roles(connection, roles.Roles.of(prefix), roles.Places(sources=()), sources=False)
    if missing:
        yield AccountFinding(
            "GRANTS_OUTDATED",
            f"the rights of the roles {prefix}_… are not those of this release; run `vitrine migrate` as the owner of"
            f" the store, which executes {len(missing)} statement(s), for example {missing[0].as_string(connection)}",
        )


OLDEST_POSTGRES = 15
RUNNER_SEEN_WITHIN = timedelta(seconds=15)
WEBHOOK_SECONDS = 5.0
CLOCK_SECONDS = 2.0
"""A larger difference between two clocks is noticed by people: in times of logs, and in schedules."""

_ACCOUNT = """
    SELECT current_user::text AS role, current_database()::text AS database,
           -- the account of the API changes pipelines but no lease, and writes no rows
           NOT EXISTS (SELECT FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                        WHERE n.nspname = 'etl' AND c.relname = 'etl_pipelines'
                          AND has_any_column_privilege(c.oid, 'UPDATE')
                          AND NOT has_column_privilege(c.oid, 'lease_token', 'UPDATE')) AS runs,
           has_database_privilege(current_database(), 'TEMPORARY') AS temporary,
           ARRAY(SELECT n.nspname::text FROM pg_namespace AS n
                  WHERE n.nspname = ANY (%(schemas)s) AND NOT has_schema_privilege(n.oid, 'CREATE')) AS closed
"""
_SERVER = """
    SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS number,
           current_setting('server_encoding') AS encoding, current_setting('TimeZone') AS zone
"""


def examine(load: Callable[[], Settings]) -> DoctorReport:
    """Every check that is possible: without valid settings or a database, the others are left out."""
    return DoctorReport.of(list(_diagnoses(load)))


def _diagnoses(load: Callable[[], Settings]) -> Iterator[Diagnosis]:
    try:
        settings = load()
    except ConfigError as exc:
        yield Diagnosis("settings", "error", str(exc), "correct the variable or the file .env; .env.sample lists all")
        return
    yield from _of_settings(settings)
    if settings.database_url is None:
        yield Diagnosis(
            "database",
            "error",
            "no database is configured, and the embedded one is not running",
            "set VITRINE_DATABASE_URL=postgresql://user:password@host:5432/database, or start `vitrine up`",
        )
    else:
        yield from _of_database(settings)
    yield from _of_connectors(settings)
    yield from _of_webhook(settings)


def _of_settings(settings: Settings) -> Iterator[Diagnosis]:
    unknown = unknown_variables(connectors.variables())
    if unknown:
        named = ", ".join(f"{name} (did you mean {close}?)" if (close := _closest(name)) else name for name in unknown)
        yield Diagnosis("settings", "warning", f"not a setting: {named}", "remove it, or correct its name")
    else:
        where = f"{Path('.env').resolve()}" if Path(".env").is_file() else "the environment"
        yield Diagnosis("settings", "ok", f"read from {where}")
    yield Diagnosis("schedules", "ok", f"time zone {settings.timezone}")


def _closest(name: str) -> str | None:
    from difflib import get_close_matches

    known = known_variables(connectors.variables())
    return next(iter(get_close_matches(name, known, 1, 0.75)), None)


def _of_database(settings: Settings) -> Iterator[Diagnosis]:
    try:
        with connect(settings.store_url, name="vitrine:doctor", own_times=True) as connection:
            yield from _of_server(connection)
            yield _of_clock(connection)
            yield from _of_account(connection)
            yield from _of_store(connection, settings)
    except VitrineError as exc:
        yield Diagnosis("database", "error", str(exc).removeprefix("database: "), "its URL is VITRINE_DATABASE_URL")


def _one(connection: Connection, statement: Any, **arguments: Any) -> Mapping[str, Any]:
    with translated("database"):
        return connection.execute(statement, arguments).fetchone() or {}


def _of_server(connection: Connection) -> Iterator[Diagnosis]:
    found = _one(connection, _SERVER)
    version = f"PostgreSQL {found['version']}"
    if found["number"] // 10_000 < OLDEST_POSTGRES:
        yield Diagnosis("database", "error", f"{version} is too old", f"use PostgreSQL {OLDEST_POSTGRES} or newer")
    else:
        yield Diagnosis("database", "ok", f"{version} answers")
    if found["encoding"] != "UTF8":
        text = f"{found['encoding']}: characters that it lacks fail a run"
        yield Diagnosis("database, encoding", "warning", text, "create the database with encoding UTF8")
    else:
        yield Diagnosis("database, encoding", "ok", "UTF8")
    yield Diagnosis("database, time zone", "ok", str(found["zone"]))


def _of_clock(connection: Connection) -> Diagnosis:
    before = time.monotonic()
    now = _one(connection, "SELECT clock_timestamp() AS now")["now"]
    # the answer was made somewhere in between
    took = time.monotonic() - before
    difference = (datetime.now(UTC) - now).total_seconds() - took / 2
    text = f"differs from this machine by {abs(difference):.1f} s"
    if abs(difference) <= max(CLOCK_SECONDS, took):
        return Diagnosis("database, clock", "ok", text)
    return Diagnosis("database, clock", "warning", text, "synchronise both machines with NTP")


def _of_account(connection: Connection) -> Iterator[Diagnosis]:
    found = _one(connection, _ACCOUNT, schemas=list(migrate.SCHEMAS))
    role, wrong = found["role"], False
    if not found["runs"]:
        yield Diagnosis("database, account", "ok", f"'{role}' has rights for the API, not for a runner")
        return
    if not found["temporary"]:
        wrong = True
        remedy = f"GRANT TEMPORARY ON DATABASE {found['database']} TO {role}"
        yield Diagnosis("database, account", "error", f"'{role}' may not create temporary tables", remedy)
    for schema in found["closed"]:
        wrong = True
        remedy = f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {role}"
        yield Diagnosis("database, account", "error", f"'{role}' may not create tables in schema '{schema}'", remedy)
    if not wrong:
        yield Diagnosis("database, account", "ok", f"'{role}' has the rights that it needs")


def _of_store(connection: Connection, settings: Settings) -> Iterator[Diagnosis]:
    newest = migrate.newest_revision()
    present = migrate.present_revision(connection)
    if present != newest:
        is_newer = present is not None and present not in migrate.revisions()
        text = f"at revision {present or 'none'}; this release needs {newest}"
        remedy = "install the release of the other processes" if is_newer else "run `vitrine migrate`"
        yield Diagnosis("store", "error", text, remedy)
        return
    yield Diagnosis("store", "ok", f"at revision {newest}")
    for finding in check_accounts(connection, settings):
        text, _, remedy = finding.text.rpartition("; ")
        yield Diagnosis("accounts", "warning", text, remedy)
    stored = pipelines.list_all(connection)
    yield from of_definitions((one.name, one.reason) for one in stored if isinstance(one, Invalid))
    alive = history.count_live_runners(connection, RUNNER_SEEN_WITHIN)
    if alive:
        yield Diagnosis("runners", "ok", f"{alive} active")
    else:
        yield Diagnosis(
            "runners",
            "warning",
            "none is active: requested and scheduled runs wait",
            "start one with `vitrine runner`, or run a pipeline with `vitrine run NAME`",
        )


def _of_connectors(settings: Settings) -> Iterator[Diagnosis]:
    names = ["default", *sorted({name.lower() for name in settings.sources} - {"default"})]
    urls = {name: settings.source_url(name) for name in names if _is_configured(settings, name)}
    for connector in connectors.installed().values():
        if connector.diagnose is None:
            continue
        try:
            diagnose = connectors.load_class(connector, connector.diagnose)
            section = settings.section(connector.name, connector.settings)
            yield from diagnose(section, urls)
        except ConfigError as exc:
            yield Diagnosis(connector.name, "error", str(exc), "correct the settings of this connector")


def _of_webhook(settings: Settings) -> Iterator[Diagnosis]:
    """Whether its host accepts connections, and whether messages arrive; no message is sent."""
    if settings.webhook_url is None:
        return
    parts = urlsplit(settings.webhook_url.get_secret_value())
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), WEBHOOK_SECONDS).close()
        yield Diagnosis("webhook", "ok", f"{parts.hostname}:{port} accepts connections")
    except OSError as exc:
        text = f"cannot connect to {parts.hostname}:{port} ({exc.strerror or type(exc).__name__})"
        yield Diagnosis("webhook", "error", text, "correct VITRINE_WEBHOOK_URL, or start the receiver")
    if settings.database_url is None:
        return
    try:
        with connect(settings.store_url, name="vitrine:doctor") as connection:
            waiting = history.notification_backlog(connection, settings.webhook_events)
    except VitrineError:
        return  # the check of the database has the reason
    if waiting.failing:
        text = f"{waiting.failing} message(s) could not be sent yet: {waiting.last_error}"
        yield Diagnosis("webhook, messages", "warning", text, "check the receiver; runners repeat them for a day")
    else:
        yield Diagnosis("webhook, messages", "ok", f"{waiting.waiting} waiting")


def _is_configured(settings: Settings, name: str) -> bool:
    return name != "default" or settings.database_url is not None or "default" in map(str.lower, settings.sources)
