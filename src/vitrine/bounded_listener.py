"""A listening socket with a limited number of connections: half-open ones make room for new ones."""

import socket
import threading
from contextlib import suppress
from typing import Any


class BoundedListener(socket.socket):
    """Accepts every connection. Above the limit, the oldest one that is not at work is ended.

    A connection is at work from the last byte of a request to the first one of the response; what waits for a client,
    for the first byte, for a header, or for the end of a TLS handshake, is not. So a thousand clients that connect and
    send nothing use a limited number of descriptors, and keep no other client out.
    """

    def __init__(self, family: int, limit: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        # accepted sockets inherit it: without it the second part of a response waits 40 ms, until the client has
        # confirmed the first one
        self.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._limit = limit
        self._lock = threading.Lock()
        self._open: dict[int, _Accepted] = {}  # by descriptor, in the order of their age

    def accept(self) -> tuple[socket.socket, Any]:
        plain, address = super().accept()
        accepted = _Accepted(self, plain)
        with self._lock:
            self._open[accepted.number] = accepted
            # guarantee: K8
            ended = self._choose() if len(self._open) > self._limit else None
        if ended is not None:
            ended.end()
        return accepted, address

    def set_at_work(self, descriptor: int, at_work: bool) -> None:
        """Note whether a response is being made for this connection; one that waits again counts as new."""
        with self._lock:
            connection = self._open.pop(descriptor, None)
            if connection is not None:
                connection.at_work = at_work
                self._open[descriptor] = connection

    @property
    def connections(self) -> int:
        return len(self._open)

    def _choose(self) -> "_Accepted":
        """The oldest that is not at work; if all others are, the new one: it is refused."""
        return self._open.pop(next(one.number for one in self._open.values() if not one.at_work))

    def forget(self, connection: "_Accepted") -> None:
        with self._lock:
            if self._open.get(connection.number) is connection:
                del self._open[connection.number]


class _Accepted(socket.socket):
    """A connection that leaves its listener's list when it is closed."""

    def __init__(self, listener: BoundedListener, plain: socket.socket) -> None:
        family, kind, proto, timeout = plain.family, plain.type, plain.proto, plain.gettimeout()
        super().__init__(family, kind, proto, fileno=plain.detach())
        self.settimeout(timeout)
        self._listener = listener
        self.number = self.fileno()
        self.at_work = False

    def end(self) -> None:
        """The owner of the socket reads the end of the stream, and closes it."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.forget(self)
        super().close()
