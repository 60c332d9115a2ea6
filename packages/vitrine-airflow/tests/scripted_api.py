"""An HTTP server that gives the answers of a script and remembers the requests."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer; without a status, the connection is closed instead."""

    status: int | None = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def problem(status: int, code: str, detail: str, **headers: str) -> Reply:
    return Reply(status, {"status": status, "code": code, "detail": detail}, headers)


@dataclass
class Script:
    """The answers that are left, and what was asked: method, path and body."""

    port: int
    replies: list[Reply]
    asked: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    authorization: list[str | None] = field(default_factory=list[str | None])


@contextmanager
def scripted(*replies: Reply) -> Generator[Script]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            script.asked.append((self.command, self.path, json.loads(self.rfile.read(size)) if size else None))
            script.authorization.append(self.headers.get("Authorization"))
            reply = script.replies.pop(0)
            if reply.status is None:
                self.close_connection = True
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        script = Script(server.server_address[1], list(replies))
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield script
        finally:
            server.shutdown()
            thread.join()
