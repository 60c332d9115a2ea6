"""The server and its databases: `src` and `dst` for work between databases, `mart` for work inside one."""

import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from psycopg import sql

from bench.database import Database
from vitrine.demo import cinema
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings
from vitrine.store.migrate import migrate

RESULTS = Path(__file__).parent / "results"
HOME = RESULTS / ".home"

RATINGS, FILMS = 2_000_000, 200_000


@dataclass(frozen=True)
class Stage:
    """Everything a workload needs: data of one size, in databases that are made anew for every benchmark."""

    src: Database
    dst: Database
    mart: Database
    scale: float
    rounds: int
    ratings: int
    films: int
    notes: list[str] = field(default_factory=list[str])

    @property
    def settings(self) -> Settings:
        """Store and marts in `dst`, the cinema in `src`."""
        return _settings(self.dst.url, self.src.url)

    @property
    def mart_settings(self) -> Settings:
        """Everything in `mart`."""
        return _settings(self.mart.url, self.mart.url)

    def calm(self, *databases: Database) -> None:
        """Before each measurement: nothing left to be written, whoever worked before."""
        for database in databases or (self.dst,):
            database.execute("CHECKPOINT")


def _settings(store: str, source: str) -> Settings:
    return Settings.model_validate(
        {"database_url": store, "sources": {"cinema": source}, "transform_modules": ("bench.transforms",)}
    )


@contextmanager
def set_up(scale: float, rounds: int, *, port: int | None = None) -> Generator[Stage]:
    """Afterwards nothing runs; the generated cinema stays in the folder for the next benchmark of that size.

    The server keeps everything that makes it safe (fsync, WAL) unless it must listen on TCP, which only a server for
    tests may.
    """
    ratings, films = round(RATINGS * scale), round(FILMS * scale)
    folder = HOME / ("tcp" if port else "socket")
    with EmbeddedPostgres(folder, port=port, fast=port is not None) as server, ExitStack() as stack:
        url = server.tcp_url if port else server.url
        admin = stack.enter_context(connect(server.url("postgres"), name="bench"))
        # its turns would fall into one measurement and not into the other; the workloads vacuum between them
        admin.execute("ALTER SYSTEM SET autovacuum = off")
        admin.execute("SELECT pg_reload_conf()")
        template = _cinema(server, admin, ratings, films)
        _recreate(admin, {"src": template, "dst": "template1", "mart": template})

        def opened(name: str) -> Database:
            return Database(url(name), stack.enter_context(connect(url(name), name="bench")))

        for name in ("dst", "mart"):
            migrate(url(name))
        stage = Stage(opened("src"), opened("dst"), opened("mart"), scale, rounds, ratings, films)
        for database in (stage.dst, stage.mart):
            database.execute("CREATE SCHEMA IF NOT EXISTS hand")
        yield stage


def _cinema(server: EmbeddedPostgres, admin: Connection, ratings: int, films: int) -> str:
    """The name of a database with the sample cinema, filled by its own generator or by an earlier benchmark."""
    name = f"cinema_{ratings}_{films}_by_time"
    known = admin.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone()
    if known is None:
        unfinished = f"{name}_unfinished"
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(unfinished)))
        server.ensure_database(unfinished)
        with connect(server.url(unfinished), name="bench") as connection:
            cinema.create_schema(connection)
            cinema.fill(connection, films=films, ratings=ratings)
            connection.execute("TRUNCATE ugc.likes, ugc.views")
            # a table lies in the order in which its rows came, and a random key in none; the generator sorts by it
            connection.execute("CLUSTER ugc.ratings USING ratings_modified_id")
            connection.execute("VACUUM (ANALYZE, FREEZE)")
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        admin.execute(rename.format(sql.Identifier(unfinished), sql.Identifier(name)))
    return name


def _recreate(admin: Connection, templates: dict[str, str]) -> None:
    for name, template in templates.items():
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )


def forget() -> None:
    """Remove the generated data."""
    shutil.rmtree(HOME, ignore_errors=True)
