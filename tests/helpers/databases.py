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
def source_database(
    postgres: EmbeddedPostgres, settings: Settings, *, encoding: str = "UTF8", **defaults: str
) -> Generator[tuple[Connection, Settings]]:
    """An empty database, and the settings with it as the default source; `defaults` are its ALTER DATABASE … SET."""
    name = f"source_{next(_numbers)}"
    create = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'")
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as admin:
        admin.execute(create.format(sql.Identifier(name), sql.Literal(encoding)))
        for setting, value in defaults.items():
            change = sql.SQL("ALTER DATABASE {} SET {} = {}")
            admin.execute(change.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value)))
        try:
            url = postgres.tcp_url(name)
            with connect(url, name="tests") as connection:
                connection.execute("CREATE SCHEMA content")
                yield connection, settings.model_copy(update={"sources": {"default": SecretStr(url)}})
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
