"""HTTP on one connection: uvicorn's protocol with a time limit for the head of a request."""

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitrine.bounded_listener import BoundedListener

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
