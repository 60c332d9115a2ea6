"""Databases beside the one of the test: another encoding, other defaults."""

import itertools
from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import sql
from pydantic import SecretStr

from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings

_numbers = itertools.count(1)


@contextmanager
def copy_of(postgres: EmbeddedPostgres, template: str, name: str) -> Generator[str]:
    """The name of a copy of a database; dropped at the end. Files are copied, because WAL takes three times as long."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        create = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
        admin.execute(create.format(sql.Identifier(name), sql.Identifier(template)))
        yield name
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def database(postgres: EmbeddedPostgres, *, encoding: str = "UTF8") -> Generator[str]:
    """The URL of a new database with the schemas of a cinema and the locale C; dropped at the end."""
    name = f"beside_{next(_numbers)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C' STRATEGY FILE_COPY")
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(create.format(sql.Identifier(name), sql.Literal(encoding)))
        url = postgres.tcp_url(name)
        try:
            with connect(url, name="tests") as opened:
                opened.execute("CREATE SCHEMA content; CREATE SCHEMA analytics")
            yield url
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def source_database(
    postgres: EmbeddedPostgres, settings: Settings, *, encoding: str = "UTF8", **defaults: str
) -> Generator[tuple[Connection, Settings]]:
    """An empty database, and the settings with it as the default source; `defaults` are its ALTER DATABASE … SET."""
    with database(postgres, encoding=encoding) as url:
        with connect(url, name="tests") as connection:
            set_for_database(connection, **defaults)
        with connect(url, name="tests") as connection:
            yield connection, settings.model_copy(update={"sources": {"default": SecretStr(url)}})


def set_for_database(connection: Connection, **settings: str) -> None:
    """Settings that every later session of this database starts with."""
    row = connection.execute("SELECT current_database() AS name").fetchone()
    for name, value in settings.items():
        statement = sql.SQL("ALTER DATABASE {} SET {} TO {}")
        parts = sql.Identifier(row["name"] if row else ""), sql.Identifier(name), sql.Literal(value)
        connection.execute(statement.format(*parts))
