"""The PostgreSQL server of the benchmarks, and the databases on it."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql

from bench.database import Connection, connect
from bench.processor import parent_of
from vitrine.embedded import EmbeddedPostgres

RESULTS = Path(__file__).parent / "results"
HOME = RESULTS / ".home"


class Server:
    """The embedded PostgreSQL with an open connection to its database `postgres`."""

    def __init__(self, embedded: EmbeddedPostgres, admin: Connection) -> None:
        self._embedded = embedded
        self.admin = admin

    def url(self, database: str) -> str:
        return self._embedded.tcp_url(database) if self._embedded.port else self._embedded.url(database)

    def has(self, database: str) -> bool:
        return self.admin.execute("SELECT FROM pg_database WHERE datname = %s", [database]).fetchone() is not None

    def recreate(self, database: str, template: str = "template1") -> None:
        """Afterwards the database is a copy of the template; both lose their other sessions."""
        self.drop(database)
        # CREATE DATABASE refuses a template that has sessions, and a process that has just ended may still have one
        self.admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [template]
        )
        self.admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(database), sql.Identifier(template)
            )
        )

    def drop(self, database: str) -> None:
        self.admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))

    def rename(self, database: str, name: str) -> None:
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        self.admin.execute(rename.format(sql.Identifier(database), sql.Identifier(name)))

    @property
    def process(self) -> int:
        """The process that starts one for every session."""
        return parent_of(self.admin.info.backend_pid)

    def checkpoint(self) -> None:
        """Write all dirty pages, so that no measurement pays for the writes of the work before it."""
        self.admin.execute("CHECKPOINT")


@contextmanager
def running(name: str, *, port: int | None = None) -> Generator[Server]:
    """A server on a folder of that name, stopped at the end; its databases are kept for the next benchmark.

    It has durable settings (fsync on) unless it listens on TCP: the embedded server opens a port for tests only.
    """
    with (
        EmbeddedPostgres(HOME / name, port=port, fast=port is not None) as embedded,
        connect(embedded.url("postgres")) as admin,
    ):
        # autovacuum would work during some measurements and not during others; the benchmarks vacuum explicitly
        admin.execute("ALTER SYSTEM SET autovacuum = off")
        admin.execute("SELECT pg_reload_conf()")
        yield Server(embedded, admin)
