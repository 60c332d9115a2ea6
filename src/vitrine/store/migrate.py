"""Migrations of the store's schema: idempotent, and safe from several processes at once."""

from pathlib import Path

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError, OperationalError

from vitrine.errors import ConfigError, TransientError
from vitrine.postgres import check_url, safe_message

LOCK = 0x76697472696E65  # "vitrine" in ASCII: the advisory lock of migrations
SCHEMAS = ("etl", "analytics")


def migrate(url: str) -> str:
    """Apply the missing migrations and return the revision; waits for another process that is migrating."""
    check_url(url, "cannot migrate")
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: _connect(url))
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    try:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
            for schema in SCHEMAS:
                _ensure_schema(connection, schema)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            found = connection.execute(sqlalchemy.text("SELECT version_num FROM etl.alembic_version"))
            return str(found.scalar_one())
    except OperationalError as exc:
        raise TransientError(f"cannot migrate: {safe_message(exc.orig)}", code="DATABASE_DOWN") from exc
    except DBAPIError as exc:
        if isinstance(exc.orig, psycopg.errors.InsufficientPrivilege):
            raise ConfigError(
                f"cannot migrate: {safe_message(exc.orig)}; ask the owner of the database to run CREATE SCHEMA etl"
                " AUTHORIZATION <this account>; CREATE SCHEMA analytics AUTHORIZATION <this account>;",
                code="DATABASE_RIGHTS",
            ) from exc
        raise ConfigError(f"cannot migrate: {safe_message(exc.orig)}", code="MIGRATION") from exc
    finally:
        engine.dispose()


def _connect(url: str):
    return psycopg.connect(url, prepare_threshold=None, connect_timeout=10)


def _ensure_schema(connection: sqlalchemy.Connection, name: str) -> None:
    # CREATE SCHEMA IF NOT EXISTS needs the right CREATE on the database even if the schema exists
    exists = sqlalchemy.text("SELECT to_regnamespace(:name) IS NOT NULL")
    if not connection.execute(exists, {"name": name}).scalar_one():
        connection.execute(sqlalchemy.schema.CreateSchema(name))
