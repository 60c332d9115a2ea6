"""Many open pages of the console, as browsers open them: they show the same, and the process stops in time."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench import page_clients
from tests.helpers.console import Site, served
from tests.helpers.pipelines import create
from tests.helpers.waiting import wait_until
from vitrine.postgres import Connection, connect

PAGES = 20
STOP_SECONDS = 8
"""Open requests have five seconds; the rest is the end of the interpreter on a busy machine."""


@pytest.fixture
def marts(connection: Connection) -> None:
    for number in range(3):
        create(connection, f"mart_{number}")


@contextmanager
def locked(url: str, connection: Connection) -> Generator[None]:
    """The poller waits for a table until the end of the block."""
    with connect(url, name="tests") as holder, holder.transaction():
        holder.execute("LOCK TABLE etl.etl_pipelines")
        wait_until(lambda: _waits(connection), what="a read of the poller that waits")
        yield


def _waits(connection: Connection) -> bool:
    query = """SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND application_name = 'vitrine:api'"""
    return connection.execute(query).fetchone() is not None


def stop(site: Site) -> float:
    began = time.monotonic()
    assert site.process.stop(signal.SIGTERM) == 0, site.process.output()
    return time.monotonic() - began


@pytest.mark.usefixtures("marts")
def test_twenty_pages_show_every_change_and_a_stop_stays_within_its_promise(
    connection: Connection, database_url: str, tmp_path: Path
) -> None:
    with served(database_url, tmp_path) as site, page_clients.opened(site.address, PAGES) as clients:

        def all_show(*statuses: str) -> bool:
            found = clients.ask()
            return found["equal"] and [row["status"] for row in found["shown"]["rows"]] == list(statuses)

        wait_until(lambda: all_show("Idle", "Idle", "Idle"), what="three marts on every page")
        sent = clients.ask()["tables"]
        connection.execute("UPDATE etl.etl_pipelines SET status = 'PAUSED' WHERE name = 'mart_1'")
        wait_until(lambda: all_show("Idle", "Paused", "Idle"), what="the change on every page")
        assert clients.ask()["tables"] == sent, "only the changed row is sent"
        assert stop(site) < STOP_SECONDS
        wait_until(lambda: clients.ask()["closed"] == PAGES, what="the end of every socket")


@pytest.mark.usefixtures("marts")
def test_a_stop_does_not_wait_for_a_read_that_the_database_holds_up(
    connection: Connection, database_url: str, tmp_path: Path
) -> None:
    with (
        served(database_url, tmp_path) as site,
        page_clients.opened(site.address, PAGES),
        locked(database_url, connection),
    ):
        assert stop(site) < STOP_SECONDS
