"""What a route depends on: the context of the service, with connections to the store from a small pool."""

from contextlib import suppress
from typing import Annotated, Any, cast

import psycopg
from fastapi import Depends, Request
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool

from vitrine.api.long_polling import RequestWaiting
from vitrine.postgres import Connection, leave
from vitrine.service.context import Caller, Context
from vitrine.settings import Settings

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
