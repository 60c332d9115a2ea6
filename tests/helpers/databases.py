"""Further databases of the test server, with settings of their own."""

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect


@contextmanager
def database(postgres: EmbeddedPostgres, name: str, *, encoding: str = "UTF8") -> Generator[str]:
    """The URL of a new database with the schemas of a source and the locale C; dropped at the end."""
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'")
        admin.execute(statement.format(sql.Identifier(name), sql.Literal(encoding)))
        url = postgres.tcp_url(name)
        with connect(url, name="tests") as opened:
            opened.execute("CREATE SCHEMA content; CREATE SCHEMA ugc; CREATE SCHEMA analytics")
        try:
            yield url
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def set_for_database(connection: Connection, **settings: str) -> None:
    """Settings that every later session of this database starts with."""
    row = connection.execute("SELECT current_database() AS name").fetchone()
    for name, value in settings.items():
        statement = sql.SQL("ALTER DATABASE {} SET {} TO {}")
        parts = sql.Identifier(row["name"] if row else ""), sql.Identifier(name), sql.Literal(value)
        connection.execute(statement.format(*parts))
