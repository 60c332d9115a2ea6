"""Migrations of the store's schema: idempotent, and safe from several processes at once."""

from pathlib import Path

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.conninfo import make_conninfo
from sqlalchemy.exc import DBAPIError, OperationalError

from vitrine.errors import ConfigError, TransientError
from vitrine.postgres import STABLE_PATH, Connection, check_url, safe_message, translated, with_remedy

LOCK = 0x76697472696E65  # "vitrine" in ASCII: the advisory lock of migrations
SCHEMAS = ("etl", "analytics")


def migrate(url: str) -> str:
    """Apply the missing migrations and return the revision; waits for another process that is migrating."""
    parts = check_url(url, "cannot migrate").keywords()
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: _connect(parts))
    config = _configuration()
    try:
        with engine.begin() as connection:
            # operators and functions that others have created in this database must not run with the owner's rights
            connection.execute(sqlalchemy.text(STABLE_PATH))
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            for schema in SCHEMAS:
                _ensure_schema(connection, schema)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            found = connection.execute(sqlalchemy.text("SELECT version_num FROM etl.alembic_version"))
            return str(found.scalar_one())
    except OperationalError as exc:
        reason = with_remedy(exc.orig, None) if isinstance(exc.orig, psycopg.Error) else str(exc.orig)
        raise TransientError(f"cannot migrate: {reason}", code="DATABASE_DOWN") from exc
    except DBAPIError as exc:
        if isinstance(exc.orig, psycopg.errors.InsufficientPrivilege):
            raise ConfigError(
                f"cannot migrate: {safe_message(exc.orig, None)}; ask the owner of the database to run CREATE SCHEMA"
                " etl AUTHORIZATION <this account>; CREATE SCHEMA analytics AUTHORIZATION <this account>;",
                code="DATABASE_RIGHTS",
            ) from exc
        raise ConfigError(f"cannot migrate: {safe_message(exc.orig, None)}", code="MIGRATION") from exc
    finally:
        engine.dispose()


def revisions() -> list[str]:
    """Every revision that this release knows, the newest first."""
    return [one.revision for one in ScriptDirectory.from_config(_configuration()).walk_revisions()]


def newest_revision() -> str:
    return revisions()[0]


def present_revision(connection: Connection) -> str | None:
    """The revision of the store; None if it was never migrated."""
    with translated("store"):
        row = connection.execute("SELECT to_regclass('etl.alembic_version') IS NOT NULL AS present").fetchone()
        if row is None or not row["present"]:
            return None
        found = connection.execute("SELECT version_num FROM etl.alembic_version").fetchone()
    return str(found["version_num"]) if found else None


def _configuration() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    return config


def _connect(parts: dict[str, str]):
    return psycopg.connect(make_conninfo(**parts | {"connect_timeout": "10"}), prepare_threshold=None)


def _ensure_schema(connection: sqlalchemy.Connection, name: str) -> None:
    # CREATE SCHEMA IF NOT EXISTS needs the right CREATE on the database even if the schema exists
    exists = sqlalchemy.text("SELECT to_regnamespace(:name) IS NOT NULL")
    if not connection.execute(exists, {"name": name}).scalar_one():
        connection.execute(sqlalchemy.schema.CreateSchema(name))
