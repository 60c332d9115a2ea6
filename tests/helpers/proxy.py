"""A TCP proxy before PostgreSQL that breaks connections on purpose, and knows just enough of the protocol for it."""

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
_TEXTS = [b"Q", b"P"]  # messages that hold SQL: a simple query, or the parse of an extended one


@dataclass
class Drop:
    """Waits for a commit in a transaction that said `marker`, and cuts its session before or after it."""

    what: Literal["request", "reply"]
    marker: bytes
    skip: int  # so many of them pass
    done: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """A port of 127.0.0.1 that leads to another one. Nobody listens on it before `open`.

    `drop_notifications` swallows what NOTIFY sends; `pooling` sends DISCARD ALL between any two transactions of a
    session, as if each of them met another server process.
    """

    def __init__(self, target: int, *, drop_notifications: bool = False, pooling: bool = False) -> None:
        self._target = target
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
        self._listener.bind(("127.0.0.1", 0))  # taken, but refusing
        self.port: int = self._listener.getsockname()[1]

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, url: str) -> str:
        """The same database, through this proxy."""
        return url.replace(f":{self._target}/", f":{self.port}/")

    def open(self) -> None:
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.go_on()
        self.cut()

    # -- faults -------------------------------------------------------------------------------------------------------

    def cut(self) -> int:
        """End every connection as it stands; how many there were."""
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.end()
        return len(sessions)

    def stall(self) -> None:
        """From now on nothing passes, and nobody is told."""
        self._gate.clear()

    def go_on(self) -> None:
        self._gate.set()

    def drop_commit_request(self, marker: bytes, *, skip: int = 0) -> Drop:
        """The server never gets the commit, the client sees its connection end."""
        return self._arm(Drop("request", marker, skip))

    def drop_commit_reply(self, marker: bytes, *, skip: int = 0) -> Drop:
        """The server has committed, and the client sees its connection end."""
        return self._arm(Drop("reply", marker, skip))

    def forget_drops(self) -> None:
        """What has not happened yet will not happen."""
        with self._lock:
            self._drops.clear()

    def _arm(self, drop: Drop) -> Drop:
        with self._lock:
            self._drops.append(drop)
        return drop

    # -- what sessions ask --------------------------------------------------------------------------------------------

    def wait_for_gate(self) -> None:
        self._gate.wait()

    def drop_for(self, said: bytes) -> Drop | None:
        """What is to happen to a commit after all this was said in its transaction."""
        with self._lock:
            for drop in [drop for drop in self._drops if drop.marker in said]:
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
    """One connection of a client, and ours to the server on its behalf."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lone_bytes = 0  # answers of one byte that are still to come, to requests before the start
        self._said = b""  # in the transaction that is open
        self._drop: Drop | None = None
        self._idle = False  # the server waits outside a transaction, and may remember the one before
        self._discarding = False
        self._discarded = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._serve, name="proxy", daemon=True).start()

    def end(self) -> None:
        for one in (self._client, self._server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._discarded.set()

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
                self._forget_the_past(kind)
                self._listen_to(kind, body[4:])
                self._pass(self._server, kind + body)
        self.end()

    def _start_up(self, incoming: IO[bytes]) -> None:
        """Packets without a type: requests for encryption, each answered by one byte, then the start itself."""
        while True:
            packet = _read_body(incoming)
            before_start = struct.unpack("!i", packet[4:8])[0] in _ENCRYPTION_REQUESTS
            self._lone_bytes += before_start
            self._pass(self._server, packet)
            if not before_start:
                return

    def _forget_the_past(self, kind: bytes) -> None:
        if self._proxy.pooling and self._idle and kind != b"X":
            self._discarding = True
            self._server.sendall(_DISCARD)
            self._discarded.wait()
            self._discarded.clear()
            self._proxy.discarded += 1
        self._idle = False

    def _listen_to(self, kind: bytes, body: bytes) -> None:
        if kind not in _TEXTS:
            return
        text = body.split(b"\0")[_TEXTS.index(kind)]  # a parse has the statement's name before it
        self._said += text
        if _COMMIT.search(text) and (drop := self._proxy.drop_for(self._said)) is not None:
            if drop.what == "request":
                drop.done.set()
                raise EOFError
            self._drop = drop
        if _END.search(text):
            self._said = b""

    # -- from the server ----------------------------------------------------------------------------------------------

    def _downstream(self) -> None:
        with suppress(OSError, EOFError), self._server.makefile("rb") as incoming:
            while True:
                kind = _read(incoming, 1)
                if self._lone_bytes:
                    self._lone_bytes -= 1
                    self._pass(self._client, kind)
                    continue
                body = _read_body(incoming)
                if not self._is_swallowed(kind, body[4:]):
                    self._pass(self._client, kind + body)
        self.end()

    def _is_swallowed(self, kind: bytes, body: bytes) -> bool:
        if self._discarding:
            if kind == b"Z":
                self._discarding = False
                self._discarded.set()
            return True
        if kind == b"Z":
            self._idle = body == b"I"
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
    """A length, which counts itself, and what it announces."""
    length = _read(incoming, 4)
    return length + _read(incoming, struct.unpack("!i", length)[0] - 4)
