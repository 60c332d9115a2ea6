"""A primary and its standby."""

import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

from tests.helpers.folders import server_folder
from tests.helpers.processes import free_port
from vitrine.embedded import EmbeddedPostgres
from vitrine.postgres import connect


class Replication(NamedTuple):
    """URLs of the database `source` on both servers."""

    primary: str
    standby: str


@contextmanager
def replication(version: int) -> Generator[Replication]:
    """A primary with an empty schema `ugc`, and a standby that streams from it."""
    with server_folder("vitrine-standby-") as folder:
        primary = EmbeddedPostgres(folder / "primary", version=version, port=free_port(), fast=True)
        standby = EmbeddedPostgres(folder / "standby", version=version, port=free_port(), fast=True)
        with primary:
            primary.ensure_database("source")
            with connect(primary.url("source"), name="tests") as connection:
                connection.execute("CREATE SCHEMA ugc")
        _copy(primary, standby)
        with primary, connect(primary.url("source"), name="tests") as connection:
            with (primary.folder / "data" / "pg_hba.conf").open("a", encoding="ascii") as access:
                access.write("host replication all 127.0.0.1/32 trust\n")
            connection.execute("SELECT pg_reload_conf()")
            with standby:
                yield Replication(primary.tcp_url("source"), standby.tcp_url("source"))


def _copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """The files of the stopped primary, with their owner, made a standby's."""
    standby.folder.mkdir()
    data = standby.folder / "data"
    subprocess.run(["cp", "-a", str(primary.folder / "data"), str(data)], check=True)
    (data / "standby.signal").touch()
    settings = f"primary_conninfo = 'host=127.0.0.1 port={primary.port} user=postgres'\n"
    (data / "postgresql.auto.conf").write_text(settings, "ascii")
    shutil.copymode(data / "postgresql.conf", data / "postgresql.auto.conf")
