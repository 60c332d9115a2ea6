"""What a route depends on: the context of an operation, connections to the store, and waits for requests."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Any, cast
from uuid import UUID

import psycopg
from fastapi import Depends, Request
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool
from starlette.concurrency import run_in_threadpool

from vitrine.errors import TransientError, VitrineError
from vitrine.operations.context import Caller, Context
from vitrine.operations.history import POLL_SECONDS
from vitrine.postgres import Connection, leave
from vitrine.settings import Settings

MAX_WAITING = 500
"""Clients that may wait at once: each has an open socket, and a process may often have no more than 1024 files open."""

LONGEST = timedelta(seconds=60)

ListOpen = Callable[[Iterable[UUID]], frozenset[UUID]]


class RequestWaiting:
    """Used in the event loop only. While a client waits, one task asks which of the awaited requests are open."""

    def __init__(self, list_open: ListOpen) -> None:
        self._list_open = list_open
        self._waiting: dict[UUID, set[asyncio.Event]] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def count(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def until_ended(self, request_id: UUID, seconds: float, gone: Coroutine[Any, Any, None]) -> None:
        """Returns when the request has ended, the time is over, the client is `gone`, or the server stops."""
        if self.count >= MAX_WAITING:
            gone.close()
            raise TransientError(
                f"{MAX_WAITING} clients are waiting already; ask without wait, or later", code="TOO_MANY_WAITING"
            )
        ended = asyncio.Event()
        self._waiting.setdefault(request_id, set()).add(ended)
        if self._closed:
            ended.set()
        elif self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        reasons = [asyncio.create_task(ended.wait()), asyncio.create_task(gone)]
        try:
            await asyncio.wait(reasons, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for reason in reasons:
                reason.cancel()
            self._remove(request_id, ended)

    def close(self) -> None:
        """Answer every waiting client now."""
        self._closed = True
        for waiting in self._waiting.values():
            for ended in waiting:
                ended.set()

    def _remove(self, request_id: UUID, ended: asyncio.Event) -> None:
        waiting = self._waiting[request_id]
        waiting.discard(ended)
        if not waiting:
            del self._waiting[request_id]

    async def _watch(self) -> None:
        while self._waiting and not self._closed:
            await asyncio.sleep(POLL_SECONDS)
            awaited = list(self._waiting)
            still_open = frozenset(awaited)
            # while the database is unavailable, clients wait on
            with suppress(psycopg.OperationalError, VitrineError):
                still_open = await run_in_threadpool(self._list_open, awaited)
            for request_id in set(awaited) - still_open:
                for ended in self._waiting.get(request_id, ()):
                    ended.set()


WAIT_SECONDS = 5.0
CANCEL_SECONDS = 0.5
CALLER = "vitrine.caller"
"""Where the guard leaves the caller in the scope of a request."""


class Pool(ConnectionPool[Connection]):
    """It knows the connections that are in use: the end of the process does not wait for what they execute."""

    def __init__(self, url: str, **options: Any) -> None:
        self._in_use: set[Connection] = set()
        super().__init__(url, **options)

    def getconn(self, timeout: float | None = None) -> Connection:
        connection = super().getconn(timeout)
        self._in_use.add(connection)
        return connection

    def putconn(self, conn: Connection) -> None:
        self._in_use.discard(conn)
        super().putconn(conn)

    def end(self) -> None:
        """Close the pool, and end every statement: Python waits for its threads, and one may wait for a lock."""
        self.close()
        for connection in list(self._in_use):
            with suppress(psycopg.Error, OSError):
                connection.cancel_safe(timeout=CANCEL_SECONDS)
            leave(connection)


def make_pool(url: str) -> Pool:
    """A closed pool: the lifespan of the application opens it without waiting for the database."""
    return Pool(
        url,
        connection_class=psycopg.Connection[DictRow],
        kwargs={
            "application_name": "vitrine:api",
            "autocommit": True,
            "prepare_threshold": None,
            "row_factory": dict_row,
            "connect_timeout": 5,
        },
        min_size=1,
        max_size=8,
        open=False,
        # a restart of the database leaves dead connections, and a request on one of them would fail
        check=ConnectionPool[Connection].check_connection,
        timeout=WAIT_SECONDS,
        # after an outage the next request connects at once instead of waiting for the end of a long backoff
        reconnect_timeout=WAIT_SECONDS,
        name="vitrine-api",
    )


def make_context(settings: Settings, pool: Pool, caller: Caller) -> Context:
    return Context(settings, caller, pool.connection)


# Dependencies are coroutines that do not wait: each plain function would cost a change of threads


async def _pool(request: Request) -> Pool:
    return cast(Pool, request.app.state.pool)


def _settings(request: Request) -> Settings:
    return cast(Settings, request.app.state.settings)


async def _context(request: Request) -> Context:
    return make_context(_settings(request), cast(Pool, request.app.state.pool), request.scope[CALLER])


async def _waiting(request: Request) -> RequestWaiting:
    return cast(RequestWaiting, request.app.state.waiting)


# A service function takes its connections itself. A dependency would hold a connection while the route waits for a
# thread of the same thread pool: a burst of requests would deadlock.
Service = Annotated[Context, Depends(_context)]
Waiting = Annotated[RequestWaiting, Depends(_waiting)]
StorePool = Annotated[Pool, Depends(_pool)]
