"""Migrations of the store's schema: idempotent, and safe from several processes at once."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable

import psycopg
from psycopg import IsolationLevel, sql
from psycopg.rows import dict_row

from vitrine.errors import ConfigError, TransientError
from vitrine.postgres import STABLE_PATH, Connection, conninfo, raw, safe_message, translated, with_remedy

LOCK = 0x76697472696E65  # "vitrine" in ASCII: the advisory lock of migrations
SCHEMAS = ("etl", "analytics")

# the name and the form that Alembic gave it, which earlier releases used: they read the same table
_VERSION_TABLE = """
    CREATE TABLE etl.alembic_version (
        version_num varchar(32) NOT NULL,
        CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
    )
"""


def migrate(url: str, *, to: str | None = None) -> str:
    """Apply the missing migrations and return the revision; waits for another process that is migrating.

    `to` is the last one to apply: the store is then as an older release has left it.
    """
    with _refusals(), _connect(url) as connection, connection.transaction():
        # operators and functions that others have created in this database must not run with the owner's rights
        connection.execute(STABLE_PATH)
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [LOCK])
        for schema in SCHEMAS:
            _ensure_schema(connection, schema)
        return _upgrade(connection, to or newest_revision())


def revisions() -> list[str]:
    """Every revision that this release knows, the newest first."""
    return sorted(_scripts(), reverse=True)


def newest_revision() -> str:
    return revisions()[0]


def present_revision(connection: Connection) -> str | None:
    """The revision of the store; None if it was never migrated."""
    with translated("store"):
        return _recorded(connection) if _has_version_table(connection) else None


def _scripts() -> Mapping[str, Traversable]:
    """The files of the migrations by their revisions, the numbers with which their names begin."""
    found = files("vitrine.store").joinpath("migrations").iterdir()
    return {one.name.partition("_")[0]: one for one in found if one.name.endswith(".sql")}


@contextmanager
def _refusals() -> Generator[None]:
    try:
        yield
    except psycopg.OperationalError as exc:
        raise TransientError(f"cannot migrate: {with_remedy(exc, None)}", code="DATABASE_DOWN") from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        raise ConfigError(
            f"cannot migrate: {safe_message(exc, None)}; ask the owner of the database to run CREATE SCHEMA"
            " etl AUTHORIZATION <this account>; CREATE SCHEMA analytics AUTHORIZATION <this account>;",
            code="DATABASE_RIGHTS",
        ) from exc
    except psycopg.Error as exc:
        raise ConfigError(f"cannot migrate: {safe_message(exc, None)}", code="MIGRATION") from exc


def _connect(url: str) -> Connection:
    connection = Connection.connect(
        conninfo(url, "cannot migrate"), autocommit=True, prepare_threshold=None, row_factory=dict_row
    )
    # after the wait for the lock, it must see what the other process has committed; databases may have other defaults
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    return connection


def _ensure_schema(connection: Connection, name: str) -> None:
    # CREATE SCHEMA IF NOT EXISTS needs the right CREATE on the database even if the schema exists
    found = connection.execute("SELECT to_regnamespace(%s) IS NOT NULL AS present", [name]).fetchone()
    if found is None or not found["present"]:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))


def _upgrade(connection: Connection, last: str) -> str:
    """Apply what the store lacks, up to this revision, and return the one that it has then."""
    if not _has_version_table(connection):
        connection.execute(_VERSION_TABLE)
    present = _recorded(connection)
    scripts = _scripts()
    if present is not None and present not in scripts:
        raise ConfigError(
            f"cannot migrate: the store is at revision {present}, which this release does not know: its newest is"
            f" {newest_revision()}; install the release that has migrated the store",
            code="MIGRATION",
        )
    reached = present or ""
    for revision in sorted(scripts):
        if reached < revision <= last:
            # many statements in one message, which the server takes only without parameters; so % needs no doubling
            connection.execute(raw(scripts[revision].read_text("utf-8")))
            reached = revision
    if reached != present:
        connection.execute("DELETE FROM etl.alembic_version")
        connection.execute("INSERT INTO etl.alembic_version (version_num) VALUES (%s)", [reached])
    return reached


def _has_version_table(connection: Connection) -> bool:
    found = connection.execute("SELECT to_regclass('etl.alembic_version') IS NOT NULL AS present").fetchone()
    return found is not None and found["present"]


def _recorded(connection: Connection) -> str | None:
    found = connection.execute("SELECT version_num FROM etl.alembic_version").fetchone()
    return found["version_num"] if found else None
