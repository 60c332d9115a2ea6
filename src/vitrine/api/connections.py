"""What a route depends on: the context of the service, with connections to the store from a small pool."""

from typing import Annotated, cast

import psycopg
from fastapi import Depends, Request
from psycopg.rows import DictRow, dict_row
from psycopg_pool import ConnectionPool

from vitrine.api.long_polling import RequestWaiting
from vitrine.postgres import Connection
from vitrine.service.context import Caller, Context
from vitrine.settings import Settings

Pool = ConnectionPool[Connection]

WAIT_SECONDS = 5.0
CALLER = "vitrine.caller"
"""Where the guard leaves the caller in the scope of a request."""


def make_pool(url: str) -> Pool:
    """A closed pool: the lifespan of the application opens it without waiting for the database."""
    return ConnectionPool(
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
