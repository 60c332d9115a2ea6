"""Checks of the configured sources for `vitrine doctor`: account, sessions, encoding, time zone."""

from collections.abc import Iterator, Mapping
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from vitrine.connectors.postgres import PostgresSettings
from vitrine.connectors.postgres.source import horizon
from vitrine.errors import ConfigError, VitrineError
from vitrine.plugins import Diagnosis
from vitrine.postgres import Connection, connect, translated

# A schema that may be read and has tables, but none of them for this account, is the usual missing grant
_FACTS = """
    SELECT current_user::text AS role, current_setting('server_encoding') AS encoding,
           current_setting('TimeZone') AS zone,
           (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
           (SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
             WHERE n.nspname = ANY (%(schemas)s) AND c.relkind IN ('r', 'p')
               AND has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')) AS writable
"""
_SCHEMAS = """
    SELECT wanted.name, n.oid IS NOT NULL AS present, coalesce(has_schema_privilege(n.oid, 'USAGE'), false) AS usable,
           (SELECT count(*) FROM pg_class AS c
             WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm')) AS relations,
           (SELECT count(*) FROM pg_class AS c
             WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm')
               AND has_any_column_privilege(c.oid, 'SELECT')) AS readable
      FROM unnest(%(schemas)s::text[]) WITH ORDINALITY AS wanted (name, place)
      LEFT JOIN pg_namespace AS n ON n.nspname = wanted.name ORDER BY wanted.place
"""


def diagnose(settings: PostgresSettings, sources: Mapping[str, str]) -> Iterator[Diagnosis]:
    for name, url in sources.items():
        subject = f"source {name}"
        try:
            with connect(url, name="vitrine:doctor", side="source", own_times=True) as connection:
                yield from _checks(subject, connection, settings)
        except VitrineError as exc:
            variable = "VITRINE_SOURCES__DEFAULT or VITRINE_DATABASE_URL" if name == "default" else _variable(name)
            yield Diagnosis(subject, "error", str(exc), f"check {variable}")


def _variable(name: str) -> str:
    return f"VITRINE_SOURCES__{name.upper()}"


def _checks(subject: str, connection: Connection, settings: PostgresSettings) -> Iterator[Diagnosis]:
    schemas = {"schemas": list(settings.allowed_source_schemas)}
    with translated("source"):
        facts = connection.execute(_FACTS, schemas).fetchone() or {}
        found = connection.execute(_SCHEMAS, schemas).fetchall()
    yield _account(subject, facts)
    yield from _readable(subject, found, str(facts["role"]))
    yield _horizon(subject, connection)
    yield _encoding(subject, str(facts["encoding"]))
    yield _time_zone(subject, str(facts["zone"]))


def _account(subject: str, facts: Mapping[str, object]) -> Diagnosis:
    role = facts["role"]
    if facts["superuser"]:
        remedy = f"give it an account that may only read: set {_variable('default')}, see docs/cli.md#doctor"
        return Diagnosis(f"{subject}, account", "warning", f"'{role}' is a superuser and may read everything", remedy)
    if facts["writable"]:
        remedy = f"REVOKE INSERT, UPDATE, DELETE, TRUNCATE ON those tables FROM {role}, or read by another account"
        text = f"'{role}' may write to {facts['writable']} table(s) that pipelines read"
        return Diagnosis(f"{subject}, account", "warning", text, remedy)
    return Diagnosis(f"{subject}, account", "ok", f"'{role}' may read and not write")


def _readable(subject: str, schemas: list[dict[str, object]], role: str) -> Iterator[Diagnosis]:
    subject = f"{subject}, schemas"
    for one in schemas:
        name = one["name"]
        if not one["present"]:
            remedy = "create it, or correct VITRINE_ALLOWED_SOURCE_SCHEMAS"
            yield Diagnosis(subject, "warning", f"there is no schema '{name}'", remedy)
        elif not one["usable"]:
            yield Diagnosis(
                subject, "warning", f"'{role}' may not use schema '{name}'", f"GRANT USAGE ON SCHEMA {name} TO {role}"
            )
        elif one["relations"] and not one["readable"]:
            remedy = f"GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}"
            yield Diagnosis(subject, "warning", f"'{role}' may read no table of schema '{name}'", remedy)
        else:
            yield Diagnosis(subject, "ok", f"{one['readable']} table(s) and views of schema '{name}' can be read")


def _horizon(subject: str, connection: Connection) -> Diagnosis:
    subject = f"{subject}, open transactions"
    try:
        found = horizon.read(connection)
    except ConfigError as exc:
        reason, _, remedy = str(exc).partition("; ")
        return Diagnosis(subject, "error", f"{reason}: incremental pipelines are refused", remedy)
    if found.blocker is None:
        return Diagnosis(subject, "ok", "they are visible, and none holds back a checkpoint")
    seconds = found.lag.total_seconds()
    text = f"{found.blocker}, open for {seconds:.0f} s, holds back the checkpoints of incremental pipelines"
    if seconds < _LONG_TRANSACTION_SECONDS:
        return Diagnosis(subject, "ok", text)
    return Diagnosis(subject, "warning", text, "end that transaction; rows are still written, and read again each run")


_LONG_TRANSACTION_SECONDS = 600


def _encoding(subject: str, encoding: str) -> Diagnosis:
    subject = f"{subject}, encoding"
    if encoding == "SQL_ASCII":
        remedy = "create the database with encoding UTF8 and load it again; text with other characters fails a run"
        return Diagnosis(
            subject, "warning", "SQL_ASCII: the server does not know which characters its bytes are", remedy
        )
    return Diagnosis(subject, "ok", encoding)


def _time_zone(subject: str, zone: str) -> Diagnosis:
    subject = f"{subject}, time zone"
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        remedy = "ALTER DATABASE … SET TimeZone = 'Europe/Berlin' or another name of the IANA list"
        text = f"'{zone}' is not the name of a zone, so that times without a zone may be read differently"
        return Diagnosis(subject, "warning", text, remedy)
    return Diagnosis(subject, "ok", zone)
