"""A TCP proxy before PostgreSQL that injects network faults at chosen messages of the protocol."""

import re
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Literal, Self

_ENCRYPTION_REQUESTS = (80877103, 80877104)
_COMMIT = re.compile(rb"(?:^|;)\s*commit\s*(?:;|$)", re.IGNORECASE)
_END = re.compile(rb"(?:^|;)\s*(?:commit|rollback)\s*(?:;|$)", re.IGNORECASE)
_DISCARD = b"Q" + struct.pack("!i", 4 + len(b"DISCARD ALL\0")) + b"DISCARD ALL\0"
_WITH_SQL = [b"Q", b"P"]  # messages that contain SQL: Query and Parse


@dataclass
class Drop:
    """Cuts a session before or after the commit of a transaction whose SQL contains `marker`."""

    what: Literal["request", "reply"]
    marker: bytes
    skip: int  # matching commits that pass first
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Forwards a port of 127.0.0.1 to another one; connections are refused before `open`.

    `drop_notifications` drops the messages of NOTIFY. `pooling` sends DISCARD ALL between any two transactions of a
    session, as if each transaction used another server process. `pool` is the number of transactions at a time: others
    wait.
    """

    def __init__(
        self, target: int, *, drop_notifications: bool = False, pooling: bool = False, pool: int | None = None
    ) -> None:
        self._target = target
        self.slots = None if pool is None else threading.Semaphore(pool)
        self.waits = 0  # transactions that had to wait for another
        self.drop_notifications = drop_notifications
        self.pooling = pooling
        self.refusing = False
        self.discarded = 0
        self._gate = threading.Event()
        self._gate.set()
        self._drops: list[Drop] = []
        self._sessions: set[_Session] = set()
        self._lock = threading.Lock()
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))  # reserves the port; connections are refused until listen()
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, url: str) -> str:
        """The URL of the same database through this proxy."""
        return url.replace(f":{self._target}/", f":{self.port}/")

    def open(self) -> None:
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.resume()
        self.cut()

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self) -> int:
        """Close every connection at once; returns their number."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.end()
        return len(sessions)

    def stall(self) -> None:
        """Hold back all data from now on, with all connections open."""
        self._gate.clear()

    def resume(self) -> None:
        self._gate.set()

    def drop_commit_request(self, marker: bytes, *, skip: int = 0) -> Drop:
        """The commit does not reach the server, and the client loses its connection."""
        return self._arm(Drop("request", marker, skip))

    def drop_commit_reply(self, marker: bytes, *, skip: int = 0) -> Drop:
        """The server commits, and the client loses its connection before the reply."""
        return self._arm(Drop("reply", marker, skip))

    def cancel_drops(self) -> None:
        """Cancel the drops that have not happened yet."""
        with self._lock:
            self._drops.clear()

    def _arm(self, drop: Drop) -> Drop:
        with self._lock:
            self._drops.append(drop)
        return drop

    # -- called by sessions --------------------------------------------------------------------------------------------

    def wait_for_gate(self) -> None:
        self._gate.wait()

    def drop_for(self, statements: bytes) -> Drop | None:
        """The drop that applies to the commit of a transaction with these statements, if any."""
        with self._lock:
            for drop in [drop for drop in self._drops if drop.marker in statements]:
                if drop.skip:
                    drop.skip -= 1
                else:
                    self._drops.remove(drop)
                    return drop
        return None

    def forget(self, session: "_Session") -> None:
        with self._lock:
            self._sessions.discard(session)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        session = _Session(self, client, server)
        with self._lock:
            self._sessions.add(session)
        session.start()


class _Session:
    """A connection of a client, and the matching connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending_bytes = 0  # one-byte replies to encryption requests that have not arrived yet
        self._statements = b""  # of the open transaction
        self._drop: Drop | None = None
        self._idle = False  # outside a transaction; session state of the last one may remain
        self._discarding = False
        self._discarded = threading.Event()
        self._ended = False
        self._has_slot = False
        self._slot_lock = threading.Lock()

    def start(self) -> None:
        threading.Thread(target=self._serve, name="proxy", daemon=True).start()

    def end(self) -> None:
        self._ended = True
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._discarded.set()
        self._leave_pool()

    def _enter_pool(self) -> None:
        slots = self._proxy.slots
        if slots is None or self._has_slot:
            return
        if not slots.acquire(blocking=False):
            self._proxy.waits += 1
            while not slots.acquire(timeout=0.05):
                if self._ended or self._is_closed():
                    raise EOFError
        with self._slot_lock:
            self._has_slot = True

    def _is_closed(self) -> bool:
        """Whether the client has closed its connection while it waits."""
        with suppress(BlockingIOError):
            return self._client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        return False

    def _leave_pool(self) -> None:
        with self._slot_lock:
            if self._has_slot and self._proxy.slots is not None:
                self._has_slot = False
                self._proxy.slots.release()

    def _serve(self) -> None:
        down = threading.Thread(target=self._downstream, name="proxy", daemon=True)
        down.start()
        self._upstream()
        down.join()
        for one in (self._client, self._server):
            one.close()
        self._proxy.forget(self)

    # -- from the client ----------------------------------------------------------------------------------------------

    def _upstream(self) -> None:
        with suppress(OSError, EOFError), self._client.makefile("rb") as incoming:
            self._start_up(incoming)
            while True:
                kind = _read(incoming, 1)
                body = _read_body(incoming)
                if kind != b"X":
                    self._enter_pool()
                self._discard_session_state(kind)
                self._inspect(kind, body[4:])
                self._pass(self._server, kind + body)
        self.end()

    def _start_up(self, incoming: IO[bytes]) -> None:
        """Packets without a type byte: encryption requests, each answered by one byte, then the startup message."""
        while True:
            packet = _read_body(incoming)
            before_start = struct.unpack("!i", packet[4:8])[0] in _ENCRYPTION_REQUESTS
            self._pending_bytes += before_start
            self._pass(self._server, packet)
            if not before_start:
                return

    def _discard_session_state(self, kind: bytes) -> None:
        if self._proxy.pooling and self._idle and kind != b"X":
            self._discarding = True
            self._server.sendall(_DISCARD)
            self._discarded.wait()
            self._discarded.clear()
            self._proxy.discarded += 1
        self._idle = False

    def _inspect(self, kind: bytes, body: bytes) -> None:
        if kind not in _WITH_SQL:
            return
        text = body.split(b"\0")[_WITH_SQL.index(kind)]  # in a Parse message the statement's name comes first
        self._statements += text
        if _COMMIT.search(text) and (drop := self._proxy.drop_for(self._statements)) is not None:
            if drop.what == "request":
                drop.done.set()
                raise EOFError
            self._drop = drop
        if _END.search(text):
            self._statements = b""

    # -- from the server ----------------------------------------------------------------------------------------------

    def _downstream(self) -> None:
        with suppress(OSError, EOFError), self._server.makefile("rb") as incoming:
            while True:
                kind = _read(incoming, 1)
                if self._pending_bytes:
                    self._pending_bytes -= 1
                    self._pass(self._client, kind)
                    continue
                body = _read_body(incoming)
                if not self._is_dropped(kind, body[4:]):
                    self._pass(self._client, kind + body)
        self.end()

    def _is_dropped(self, kind: bytes, body: bytes) -> bool:
        if self._discarding:
            if kind == b"Z":
                self._discarding = False
                self._discarded.set()
            return True
        if kind == b"Z":
            self._idle = body == b"I"
            if self._idle:
                self._leave_pool()
        if self._drop is not None:
            if (kind, body) == (b"C", b"COMMIT\0"):
                self._drop.done.set()
                raise EOFError
            return True
        return kind == b"A" and self._proxy.drop_notifications

    def _pass(self, to: socket.socket, data: bytes) -> None:
        self._proxy.wait_for_gate()
        to.sendall(data)


def _read(incoming: IO[bytes], length: int) -> bytes:
    data = incoming.read(length)
    if len(data) < length:
        raise EOFError
    return data


def _read_body(incoming: IO[bytes]) -> bytes:
    """A length, which includes itself, and as many bytes as it says."""
    length = _read(incoming, 4)
    return length + _read(incoming, struct.unpack("!i", length)[0] - 4)
