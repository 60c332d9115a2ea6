"""Connections to the cluster that can be ended while they send a request."""

import socket
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from elastic_transport import NodeConfig, Urllib3HttpNode


class EndingNode(Urllib3HttpNode):
    """`close` ends requests in progress as well; the client's own timeouts start again with every part of a reply."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._connections: WeakSet[Any] = WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False
        node = self

        class Connection(self.pool.ConnectionCls):  # pyright: ignore[reportUntypedBaseClass, reportGeneralTypeIssues]
            def connect(self) -> None:
                super().connect()  # pyright: ignore[reportUnknownMemberType]
                node._opened(self)

        self.pool.ConnectionCls = Connection  # pyright: ignore[reportAttributeAccessIssue]

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        super().close()
        for connection in connections:
            _end(connection)

    def _opened(self, connection: Any) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._is_closed:
                _end(connection)


def _end(connection: Any) -> None:
    """The cluster drops a request that it has not received as a whole."""
    opened: socket.socket | None = connection.sock
    if opened is not None:
        with suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # that of TLS would wait for the other side
