"""An HTTP proxy before a real Elasticsearch, which loses, delays, blocks or scripts replies on demand."""

import gzip
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

_POLL_SECONDS = 0.02
_PRODUCT = {"x-elastic-product": "Elasticsearch", "content-type": "application/json"}


@dataclass
class Reply:
    """What the client receives; None as the body of a lost reply."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


class Lost(Exception):
    """The connection ends without a reply."""


@dataclass
class Request:
    """One request of the client."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    upstream: tuple[str, int]
    is_client_there: Callable[[], bool] = lambda: True

    @property
    def is_bulk(self) -> bool:
        return self.path.partition("?")[0].endswith("/_bulk")

    @property
    def lines(self) -> list[bytes]:
        return self.plain_body().splitlines(keepends=True)

    def plain_body(self) -> bytes:
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body

    def forward(self, body: bytes | None = None) -> Reply:
        """The reply of the real server."""
        headers = {name: value for name, value in self.headers.items() if name not in ("host", "content-length")}
        if body is not None:
            headers.pop("content-encoding", None)
        connection = http.client.HTTPConnection(*self.upstream, timeout=30)
        try:
            connection.request(self.method, self.path, self.body if body is None else body, headers)
            reply = connection.getresponse()
            data = reply.read()
            return Reply(reply.status, data, {name.lower(): value for name, value in reply.getheaders()})
        finally:
            connection.close()


Rule = Callable[[Request], Reply | None]
"""Handles a request, or returns None for the next rule; may raise Lost."""


class SearchProxy:
    """Forwards every request that no rule handles."""

    def __init__(self, url: str, certificate: Path | None = None) -> None:
        parts = urlsplit(url)
        self._upstream = (parts.hostname or "127.0.0.1", parts.port or 9200)
        self.rules: list[Rule] = []
        self.requests: list[Request] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body, proxy._upstream, self._is_open)
                proxy.requests.append(request)
                try:
                    reply = proxy._reply(request)
                except (Lost, OSError):
                    self.close_connection = True
                    with suppress(OSError):
                        self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self._answer(reply)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def _answer(self, reply: Reply) -> None:
                data = reply.data()
                self.send_response(reply.status)
                for name, value in (_PRODUCT | reply.headers).items():
                    if name not in ("content-length", "transfer-encoding"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(data)

            def _is_open(self) -> bool:
                try:
                    return bool(self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
                except BlockingIOError:
                    return True
                except OSError:
                    return False

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True)
        self._thread.start()

    @classmethod
    @contextmanager
    def opened(cls, url: str, certificate: Path | None = None) -> "Generator[SearchProxy]":
        proxy = cls(url, certificate)
        try:
            yield proxy
        finally:
            proxy.close()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_address[1]}"

    @property
    def bulks(self) -> list[Request]:
        return [request for request in self.requests if request.is_bulk]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _reply(self, request: Request) -> Reply:
        for rule in list(self.rules):
            reply = rule(request)
            if reply is not None:
                return reply
        return request.forward()

    # -- faults ---------------------------------------------------------------------------------------------------

    @contextmanager
    def following(self, rule: Rule) -> Generator[None]:
        """The rule holds until the block ends."""
        self.rules.insert(0, rule)
        try:
            yield
        finally:
            self.rules.remove(rule)

    def once(self, act: Callable[[Request], Reply]) -> Rule:
        """A rule for the next bulk request, and only that one."""
        waiting = [act]

        def rule(request: Request) -> Reply | None:
            return waiting.pop()(request) if waiting and request.is_bulk else None

        return rule

    @contextmanager
    def down(self) -> Generator[None]:
        with self.following(_lose):
            yield

    @contextmanager
    def losing_reply(self) -> Generator[None]:
        def lose(request: Request) -> Reply:
            request.forward()
            raise Lost

        with self.following(self.once(lose)):
            yield

    @contextmanager
    def applying_late(self) -> Generator[None]:
        late: list[Request] = []

        def postpone(request: Request) -> Reply:
            late.append(request)
            raise Lost

        with self.following(self.once(postpone)):
            yield
        for request in late:
            request.forward()

    @contextmanager
    def blocked(self) -> Generator[None]:
        """Requests wait until the block ends; one whose client has ended is not forwarded."""
        released = threading.Event()

        def block(request: Request) -> Reply | None:
            released.wait()
            if not request.is_client_there():
                raise Lost
            return None

        with self.following(block):
            try:
                yield
            finally:
                released.set()

    @contextmanager
    def refusing(self, value: str) -> Generator[None]:
        """The cluster refuses documents that contain this value in `note`."""

        def refuse(request: Request) -> Reply | None:
            return _without_refused(request, value) if request.is_bulk else None

        with self.following(refuse):
            yield


def _lose(request: Request) -> Reply:
    raise Lost


def _without_refused(request: Request, value: str) -> Reply:
    """The other documents reach the real server."""
    lines, kept, refused = request.lines, list[bytes](), list[int]()
    place = number = 0
    while place < len(lines):
        (action,) = json.loads(lines[place])
        width = 1 if action == "delete" else 2
        document: dict[str, Any] = json.loads(lines[place + 1]) if width == 2 else {}
        if value in (document.get("note"), document.get("doc", {}).get("note")):
            refused.append(number)
        else:
            kept += lines[place : place + width]
        place, number = place + width, number + 1
    reply = request.forward(b"".join(kept)) if kept else Reply(200, b'{"items":[]}')
    content = cast(dict[str, Any], json.loads(reply.data()))
    error = {
        "type": "document_parsing_exception",
        "reason": f"[1:1] failed to parse field [note] of type [text]. Preview of field's value: '{value}'",
    }
    for at in refused:
        content.setdefault("items", []).insert(at, {"index": {"status": 400, "error": error}})
    return Reply(reply.status, content)
