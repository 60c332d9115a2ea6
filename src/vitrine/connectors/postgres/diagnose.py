"""Looks at configured sources for people: checks for `vitrine doctor`, tables for `vitrine discover`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from psycopg.rows import DictRow

from vitrine.connectors.postgres import PostgresSettings
from vitrine.connectors.postgres.source import watermark
from vitrine.connectors.postgres.source.session import SourceConnections
from vitrine.core.rows import CursorCandidate, SourceColumn, SourceTable, TableKind
from vitrine.definition.connectors import Diagnosis
from vitrine.errors import ConfigError, VitrineError
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
        found = watermark.read_horizon(connection)
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


_KINDS = {"r": TableKind.TABLE, "p": TableKind.PARTITIONED, "v": TableKind.VIEW, "m": TableKind.MATERIALIZED}

# A partition is read through its table. A key counts only if it holds for every row and has no NULL.
_TABLES = """
    SELECT n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
           CASE c.relkind WHEN 'v' THEN NULL
                WHEN 'p' THEN (SELECT sum(NULLIF(l.reltuples, -1))::bigint FROM pg_partition_tree(c.oid) AS t
                                 JOIN pg_class AS l ON l.oid = t.relid WHERE t.isleaf)
                ELSE NULLIF(c.reltuples, -1)::bigint END AS rows,
           coalesce((SELECT ARRAY(SELECT a.attname::text
                                    FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                                    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                                   WHERE k.place <= i.indnkeyatts ORDER BY k.place)
                       FROM pg_index AS i
                      WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indimmediate
                        AND i.indpred IS NULL AND i.indexprs IS NULL
                        AND NOT EXISTS (SELECT FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
                                          JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                                         WHERE k.place <= i.indnkeyatts AND NOT a.attnotnull)
                      ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1), '{}') AS key,
           (SELECT jsonb_agg(jsonb_build_object(
                       'name', a.attname, 'type', format_type(a.atttypid, a.atttypmod), 'nullable', NOT a.attnotnull,
                       'indexed', EXISTS (SELECT FROM pg_index AS i
                                           WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL
                                             AND i.indkey[0] = a.attnum)) ORDER BY a.attnum)
              FROM pg_attribute AS a
             WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
               AND has_column_privilege(c.oid, a.attnum, 'SELECT')) AS columns
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE n.nspname = ANY (%(schemas)s) AND c.relkind IN ('r', 'p', 'v', 'm') AND NOT c.relispartition
       AND (%(table)s::text IS NULL OR c.relname = %(table)s)
       AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
       AND (n.nspname, c.relname) > (%(after_schema)s, %(after_name)s)
     ORDER BY n.nspname, c.relname
     LIMIT %(limit)s
"""

_TIMES = ("timestamp with time zone", "timestamp without time zone")
_INTEGERS = ("bigint", "integer")
_MODIFICATION = re.compile(r"(^|_)(modified|updated|changed|last_update|mtime|last_modified)(_|$)")
_CREATION = re.compile(r"(^|_)(created|inserted|added)(_|$)")


def list_tables(
    url: str,
    settings: PostgresSettings,
    *,
    schema: str | None = None,
    table: str | None = None,
    after: tuple[str, str] = ("", ""),
    limit: int = 100,
) -> list[SourceTable]:
    """Readable tables of the allowed schemas in the order of their names; ConfigError for another schema."""
    allowed = settings.allowed_source_schemas
    if schema is not None and schema not in allowed:
        raise ConfigError(
            f"schema '{schema}' is not one of the schemas that may be read ({', '.join(allowed)}); add it to"
            " VITRINE_ALLOWED_SOURCE_SCHEMAS",
            code="SCHEMA_NOT_ALLOWED",
        )
    arguments = {
        "schemas": list(allowed) if schema is None else [schema],
        "table": table,
        "after_schema": after[0],
        "after_name": after[1],
        "limit": limit,
    }
    connections = SourceConnections(url, "vitrine:tables", settings)
    try:
        with translated("source"), connections.reading() as reading:
            return [_table(row) for row in reading.execute(_TABLES, arguments)]
    finally:
        connections.close()


def _table(row: DictRow) -> SourceTable:
    columns = tuple(SourceColumn(**one) for one in row["columns"])
    readable = {column.name for column in columns}
    key = tuple(row["key"]) if readable.issuperset(row["key"]) else ()
    kind = _KINDS[row["kind"]]
    return SourceTable(row["schema"], row["name"], kind, row["rows"], columns, key, tuple(_candidates(columns, key)))


def _candidates(columns: Sequence[SourceColumn], key: Sequence[str]) -> Iterator[CursorCandidate]:
    """Times by their names, then indexed times, then integer keys, each with the reasons for it."""
    ranked = [
        (_rank(column, key), place, column)
        for place, column in enumerate(columns)
        if column.type.startswith(_TIMES) or column.type in _INTEGERS
    ]
    for rank, _, column in sorted(ranked, key=lambda one: one[:2]):
        if rank < _UNFIT:
            yield CursorCandidate(column.name, column.type, tuple(_reasons(column)), _is_modification(column))


_UNFIT = 4


def _rank(column: SourceColumn, key: Sequence[str]) -> int:
    """0 is the best; a column of rank _UNFIT is not offered."""
    if _is_modification(column):
        return int(column.nullable) if column.indexed else 1 + int(column.nullable)
    if column.type in _INTEGERS:
        # other integers are references to rows of other tables, and say nothing about time
        return 3 if [column.name] == list(key) else _UNFIT
    return 2 if column.indexed or _CREATION.search(column.name) else _UNFIT


def _is_modification(column: SourceColumn) -> bool:
    return column.type.startswith(_TIMES) and _MODIFICATION.search(column.name) is not None


def _reasons(column: SourceColumn) -> Iterator[str]:
    if _is_modification(column):
        yield "named like the time of a change"
    elif column.type in _INTEGERS:
        yield "grows with new rows; a changed row is not read again"
    elif _CREATION.search(column.name):
        yield "named like the time of creation; a changed row is not read again"
    yield "indexed" if column.indexed else "not indexed"
    if column.nullable:
        yield "may be NULL"
