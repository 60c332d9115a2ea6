"""A cluster that crashes and starts again in the middle of a run."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import search_cluster
from tests.helpers.processes import free_port
from tests.helpers.running import once_read, succeed
from tests.helpers.search_cluster import INCREMENTAL, Cluster
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine_devserver import DevServer

ROWS, BATCH = 200, 20
WAITS = (0.5,) * 120
"""Attempts for as long as a server needs to start."""


class CrashingServer:
    """A server of its own, which keeps its data and its port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._server = self._start()
        self._starting = threading.Thread()

    @property
    def url(self) -> str:
        return self._server.url

    def crash(self) -> None:
        """Ends it without a warning; it starts again while the run makes its attempts."""
        assert self._server.pid is not None
        os.kill(self._server.pid, signal.SIGKILL)
        self._starting = threading.Thread(target=self._restart, name="restart")
        self._starting.start()

    def wait(self) -> None:
        self._starting.join()

    def stop(self) -> None:
        self._server.stop()

    def _restart(self) -> None:
        self._server.stop()
        self._server = self._start()

    def _start(self) -> DevServer:
        return DevServer.start(self._folder, self._port, fast=True)


@pytest.fixture
def server(elasticsearch_url: str, tmp_path: Path) -> Iterator[CrashingServer]:
    """`elasticsearch_url`: skipped where no server can be started."""
    del elasticsearch_url
    server = CrashingServer(tmp_path / "elasticsearch")
    yield server
    server.stop()


@pytest.fixture
def cluster(server: CrashingServer, index_name: str, settings: Settings, connection: Connection) -> Iterator[Cluster]:
    with search_cluster.opened(server.url, index_name, settings, connection) as opened:
        yield opened


@pytest.mark.nightly
@pytest.mark.promise("F4")
def test_a_load_and_a_run_of_changes_survive_a_crash_of_the_cluster(cluster: Cluster, server: CrashingServer) -> None:
    cluster.fill(1, ROWS)
    pipeline = cluster.create(**INCREMENTAL, batch_size=BATCH)

    def run(**options: Any) -> None:
        crash = once_read(3 * BATCH, server.crash)
        executed = succeed(cluster.connection, cluster.settings, pipeline, waits=WAITS, watch=crash, **options)
        server.wait()
        assert executed.counts.read >= ROWS

    def notes() -> set[str]:
        """Of all documents; there is one for each row."""
        found = cluster.notes()
        assert len(found) == ROWS
        return set(found.values())

    run()
    assert notes() == {f"note {number}" for number in range(1, ROWS + 1)}
    for note, is_full in (("changed", False), ("rebuilt", True)):
        cluster.connection.execute("UPDATE content.numbers SET note = %s, modified = clock_timestamp()", [note])
        run(full=is_full)
        assert notes() == {note}
    assert len(cluster.search.indexes(cluster.name)) == 2  # what readers see, and what they saw before
