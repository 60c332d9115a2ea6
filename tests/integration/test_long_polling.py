"""Clients that wait for the end of a request, at an API in a process of its own."""

import asyncio
import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.helpers import processes
from tests.helpers.pipelines import create
from tests.helpers.waiting import wait_until
from vitrine.core.status import Event, RunStatus
from vitrine.definition.pipeline import Claim
from vitrine.postgres import Connection
from vitrine.settings import Settings
from vitrine.store import pipelines, queue

WAITING = 300


@dataclass(frozen=True)
class Api:
    port: int
    started: processes.Started

    async def send(self, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return reader, writer

    async def get(self, path: str) -> tuple[int, Any]:
        reader, writer = await self.send(path)
        try:
            head, _, body = (await asyncio.wait_for(reader.read(), 90)).partition(b"\r\n\r\n")
            return int(head.split(b" ")[1]), json.loads(body)
        finally:
            writer.close()

    def answers(self) -> bool:
        try:
            return asyncio.run(self.get("/health/live"))[0] == 200
        except OSError:
            return False

    def threads(self) -> int:
        status = Path(f"/proc/{self.started.process.pid}/status").read_text()
        return int(status.partition("Threads:")[2].split()[0])


@contextmanager
def serving(url: str, folder: Path) -> Generator[Api]:
    port = processes.free_port()
    with processes.started(["api"], folder, processes.environment(url, VITRINE_API_PORT=str(port))) as started:
        api = Api(port, started)
        wait_until(api.answers, 60, "the API answers")
        yield api


@pytest.fixture
def api(database_url: str, tmp_path: Path) -> Generator[Api]:
    with serving(database_url, tmp_path) as api:
        yield api


def claim_requested(connection: Connection, settings: Settings) -> tuple[Claim, str]:
    create(connection, "genres")
    _, request_id = pipelines.request_run(connection, "genres", trigger="api")
    claim = queue.claim_next(connection, runner="worker-1", ttl=settings.lease_ttl)
    assert claim is not None
    return claim, str(request_id)


def waiting_statements(connection: Connection) -> int:
    row = connection.execute("""SELECT count(*) AS n FROM pg_stat_activity
        WHERE application_name = 'vitrine:api' AND datname = current_database()""").fetchone()
    return row["n"] if row else 0


def test_many_waiting_clients_hold_neither_threads_nor_connections_and_are_answered_at_the_end(
    connection: Connection, settings: Settings, api: Api
) -> None:
    claim, request_id = claim_requested(connection, settings)

    async def scenario() -> None:
        clients = [asyncio.create_task(api.get(f"/requests/{request_id}?wait=60s")) for _ in range(WAITING)]
        # each has been read once as soon as this one, sent after them, is answered
        await api.get(f"/requests/{request_id}?wait=1s")
        assert not any(client.done() for client in clients)
        others: list[float] = []
        for _ in range(50):
            started = time.monotonic()
            assert (await api.get("/pipelines/genres/status"))[0] == 200
            others.append(time.monotonic() - started)
        assert sorted(others)[25] < 0.5
        assert api.threads() < 80
        assert waiting_statements(connection) <= 8
        assert not any(client.done() for client in clients)
        queue.end_run(connection, claim, Event.FINISH, RunStatus.SUCCESS)
        ended = time.monotonic()
        answers = await asyncio.gather(*clients)
        assert time.monotonic() - ended < 15
        assert {(status, body["state"]) for status, body in answers} == {(200, "succeeded")}

    asyncio.run(scenario())


@pytest.mark.parametrize("event", [Event.FINISH, Event.FAIL])
def test_the_answer_is_sent_as_soon_as_the_request_has_ended(
    connection: Connection, settings: Settings, api: Api, event: Event
) -> None:
    claim, request_id = claim_requested(connection, settings)

    async def scenario() -> None:
        client = asyncio.create_task(api.get(f"/requests/{request_id}?wait=60s"))
        assert (await api.get(f"/requests/{request_id}?wait=500ms"))[1]["state"] == "running"
        assert not client.done()
        outcome = RunStatus.SUCCESS if event is Event.FINISH else RunStatus.FAILED
        queue.end_run(connection, claim, event, outcome, error_code="X", error_message="it failed")
        started = time.monotonic()
        _, body = await client
        assert time.monotonic() - started < 5
        assert body["state"] == ("succeeded" if event is Event.FINISH else "failed")
        assert body["run"]["status"] == outcome

    asyncio.run(scenario())


def test_a_request_that_does_not_end_is_returned_as_it_is_when_the_time_is_over(
    connection: Connection, settings: Settings, api: Api
) -> None:
    _, request_id = claim_requested(connection, settings)
    started = time.monotonic()
    status, body = asyncio.run(api.get(f"/requests/{request_id}?wait=1s"))
    assert (status, body["state"]) == (200, "running")
    assert time.monotonic() - started >= 1


def test_a_request_that_has_ended_or_is_unknown_is_answered_at_once(
    connection: Connection, settings: Settings, api: Api
) -> None:
    claim, request_id = claim_requested(connection, settings)
    queue.end_run(connection, claim, Event.FINISH, RunStatus.SUCCESS)
    started = time.monotonic()
    assert asyncio.run(api.get(f"/requests/{request_id}?wait=60s"))[1]["state"] == "succeeded"
    assert asyncio.run(api.get(f"/requests/{uuid4()}?wait=60s"))[0] == 404
    assert time.monotonic() - started < 30


def test_a_request_whose_pipeline_is_deleted_ends_the_wait(
    connection: Connection, settings: Settings, api: Api
) -> None:
    _, request_id = claim_requested(connection, settings)

    async def scenario() -> None:
        client = asyncio.create_task(api.get(f"/requests/{request_id}?wait=60s"))
        await api.get(f"/requests/{request_id}?wait=500ms")
        pipelines.delete(connection, "genres", force=True)
        assert (await asyncio.wait_for(client, 20))[0] == 404

    asyncio.run(scenario())


def test_clients_that_are_gone_leave_their_places(connection: Connection, settings: Settings, api: Api) -> None:
    _, request_id = claim_requested(connection, settings)

    async def fill(count: int) -> list[asyncio.StreamWriter]:
        return [(await api.send(f"/requests/{request_id}?wait=60s"))[1] for _ in range(count)]

    async def scenario() -> None:
        writers = await fill(520)  # more than places: a poll below may take one of them
        while (answer := await api.get(f"/requests/{request_id}?wait=10ms"))[0] == 200:
            pass
        assert (answer[0], answer[1]["code"]) == (503, "TOO_MANY_WAITING")
        # without wait, a request is read as ever
        assert (await api.get(f"/requests/{request_id}"))[0] == 200
        for writer in writers:
            writer.close()
        while (await api.get(f"/requests/{request_id}?wait=10ms"))[0] != 200:
            pass

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_a_server_that_stops_answers_its_waiting_clients(connection: Connection, settings: Settings, api: Api) -> None:
    _, request_id = claim_requested(connection, settings)

    async def scenario() -> None:
        client = asyncio.create_task(api.get(f"/requests/{request_id}?wait=60s"))
        await api.get(f"/requests/{request_id}?wait=500ms")
        api.started.process.terminate()
        status, body = await asyncio.wait_for(client, 20)
        assert (status, body["state"]) == (200, "running")

    asyncio.run(scenario())
    assert api.started.process.wait(20) == 0
    assert "error" not in api.started.output().lower()
