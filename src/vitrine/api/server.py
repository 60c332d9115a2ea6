"""Serves the API until SIGTERM or Ctrl-C."""

import asyncio
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrine.api import addresses
from vitrine.api.app import create_app
from vitrine.api.connections import RequestWaiting
from vitrine.listening import BoundedListener
from vitrine.settings import Settings

HEAD_SECONDS = 10.0
"""From the connection, or from the end of the last response, to the end of a request's head."""

WEBSOCKETS = "/console/"
"""Paths below which a connection may become a websocket."""


class TimedProtocol(H11Protocol):
    """Ends a connection whose next request does not arrive in time, and reports to the listener which are at work."""

    def __init__(self, listener: BoundedListener, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._listener = listener
        self._descriptor = -1
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._descriptor = transport.get_extra_info("socket").fileno()
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """An open page sends no further head; it is not ended to make room for new connections."""
        self._stop_timer()
        self._listener.set_at_work(self._descriptor, True)
        super().handle_websocket_upgrade(event)

    def _should_upgrade_to_ws(self) -> bool:
        """Elsewhere the header means nothing: the API answers as it does without websockets."""
        return self.scope["path"].startswith(WEBSOCKETS) and super()._should_upgrade_to_ws()

    def on_response_complete(self) -> None:
        self._expect_head()
        super().on_response_complete()
        self._update()

    def _update(self) -> None:
        cycle = self.cycle
        # Python's value is None before the first request, which the annotation of uvicorn leaves out
        if cast(Any, cycle) is None or cycle.response_complete:
            return
        self._stop_timer()
        if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE):
            self._listener.set_at_work(self._descriptor, not cycle.response_started)

    def _expect_head(self) -> None:
        self._stop_timer()
        self._listener.set_at_work(self._descriptor, False)
        self._limit = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None


GRACE_SECONDS = 5
MAX_MESSAGE_BYTES = 1_000_000
"""Of a websocket."""

SWITCH_SECONDS = 0.001
"""A thread that reads for a page or a route must not hold back the event loop for Python's five milliseconds."""


def serve(
    settings: Settings,
    *,
    ready: Callable[[], None] | None = None,
    attach: Callable[[FastAPI], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then return; calls `ready` once requests are accepted.

    `attach` adds pages with websockets to the application.

    ConfigError when the port is in use, or if other machines could reach an API that is not protected.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    context = addresses.tls_context(settings)
    app = create_app(settings)
    if attach is not None:
        attach(app)
    with addresses.listen(settings) as listener:
        config = uvicorn.Config(
            app,
            # one that calls the accept() of the listener
            loop="asyncio",
            http=cast(Any, partial(TimedProtocol, listener)),
            ws="none" if attach is None else "websockets-sansio",
            ws_max_size=MAX_MESSAGE_BYTES,
            # a message is a few kilobytes; each socket would keep 300 kB, and each message take longer
            ws_per_message_deflate=False,
            # the guard decides which proxies are believed; uvicorn would believe every local client
            proxy_headers=False,
            ssl_context_factory=(lambda _, __: context) if context else None,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        _Server(config, ready, app.state.waiting).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None, waiting: RequestWaiting) -> None:
        super().__init__(config)
        self._ready = ready
        self._waiting = waiting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Clients that wait for a request are answered first: uvicorn waits for all of them."""
        self._waiting.close()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Unlike uvicorn, do not raise the signal again at the end: the caller must still release its resources."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
