"""A receiver of webhooks that can refuse messages, or hold them unanswered."""

import json
import ssl
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Received:
    """One request."""

    headers: dict[str, str]
    body: bytes

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.body)


@dataclass
class Receiver:
    """Answers the first requests with these codes, and every other with 200."""

    codes: list[int]
    url: str = ""
    requests: list[Received] = field(default_factory=list[Received])
    answering: threading.Event = field(default_factory=threading.Event)  # until it is set, no request gets an answer

    def texts(self) -> list[str]:
        return [one.content["text"] for one in self.requests]


@contextmanager
def receiver(
    codes: Sequence[int] = (), *, silent: bool = False, certificate: Path | None = None
) -> Generator[Receiver]:
    """A receiver on this machine; with `silent`, it answers only when the test sets `answering`.

    `certificate`: a PEM file with its key, for a receiver that speaks TLS.
    """
    opened = Receiver(list(codes))
    if not silent:
        opened.answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            opened.requests.append(Received(dict(self.headers), body))
            opened.answering.wait()
            code = opened.codes.pop(0) if opened.codes else 200
            self.send_response(code)
            if code in (301, 302, 307, 308):
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    opened.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        opened.url = opened.url.replace("http:", "https:")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield opened
    finally:
        opened.answering.set()
        server.shutdown()
        server.server_close()
        thread.join()
