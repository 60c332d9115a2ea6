"""Serves the API until SIGTERM or Ctrl-C."""

import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from vitrine.api import binding
from vitrine.api.app import create_app
from vitrine.api.long_polling import RequestWaiting
from vitrine.api.protocol import TimedProtocol
from vitrine.settings import Settings

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
    context = binding.tls_context(settings)
    app = create_app(settings)
    if attach is not None:
        attach(app)
    with binding.listen(settings) as listener:
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
