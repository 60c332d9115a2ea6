"""The HTTP port of a runner: `/metrics` for Prometheus, `/ready` and `/live` for process supervisors."""

import errno
import socket
import threading
from collections.abc import Callable, Collection, Generator, Iterable
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Gauge, generate_latest
from prometheus_client.exposition import ThreadingWSGIServer

from vitrine.errors import ConfigError
from vitrine.listening import BoundedListener, HostRule, is_loopback

PLAIN = "text/plain; charset=utf-8"
MAX_CONNECTIONS = 32
IDLE_SECONDS = 5.0
"""How long a connection may send nothing."""


@contextmanager
def serving(
    host: str, port: int, registry: CollectorRegistry, is_ready: Callable[[], bool], *, names: Collection[str] = ()
) -> Generator[int]:
    """Serve in a separate thread until the block ends; yields the port, which is any free one if `port` is 0.

    Clients may use addresses and these names. ConfigError if the port is in use.
    """
    ready = Gauge("vitrine_runner_ready", "1 while the runner reaches its database, 0 otherwise.", registry=registry)
    ready.set_function(lambda: float(is_ready()))
    server = _listen(host, port)
    rule = HostRule(names, exposed=not is_loopback(str(server.server_address[0])))
    server.set_app(_answers(registry, is_ready, rule))
    threading.Thread(target=server.serve_forever, args=(0.1,), name="probes", daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        registry.unregister(ready)


def _answers(
    registry: CollectorRegistry, is_ready: Callable[[], bool], rule: HostRule
) -> Callable[..., Iterable[bytes]]:
    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        # several Host headers arrive as one, separated by commas, which no name contains
        given = [environ["HTTP_HOST"]] if "HTTP_HOST" in environ else []
        if refusal := rule.refuses(given):
            reason = HTTPStatus(refusal.status).phrase
            status, kind, body = f"{refusal.status} {reason}", PLAIN, f"{refusal.detail}\n".encode()
        else:
            status, kind, body = respond(environ["PATH_INFO"])
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
        return [body]

    def respond(path: str) -> tuple[str, str, bytes]:
        match path:
            case "/metrics":
                return "200 OK", CONTENT_TYPE_LATEST, generate_latest(registry)
            case "/live":
                return "200 OK", PLAIN, b"alive\n"
            case "/ready" if is_ready():
                return "200 OK", PLAIN, b"ready\n"
            case "/ready":
                return "503 Service Unavailable", PLAIN, b"the database is unavailable, or the runner is stopping\n"
            case _:
                return "404 Not Found", PLAIN, b"no such path; use /metrics, /ready or /live\n"

    return answer


class _Handler(WSGIRequestHandler):
    timeout = IDLE_SECONDS

    def parse_request(self) -> bool:
        complete = super().parse_request()
        if complete and isinstance(self.server, _Server):
            self.server.listener.set_at_work(self.connection.fileno(), True)
        return complete

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: one line per scrape is too many."""


class _Server(ThreadingWSGIServer):
    """A thread for each connection, and a limited number of connections: one that sends nothing holds no run up."""

    request_queue_size = 128

    def __init__(self, family: int, address: tuple[str, int]) -> None:
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = self.listener = BoundedListener(family, MAX_CONNECTIONS)
        try:
            self.server_bind()
            self.server_activate()
        except BaseException:
            self.server_close()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves, or is too slow, is no error of the runner."""


def _listen(host: str, port: int) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _Server(family, (str(address[0]), port))
    except OSError as exc:
        reason = "is in use by another program" if exc.errno == errno.EADDRINUSE else f"cannot be used: {exc.strerror}"
        raise ConfigError(
            f"port {port} on {host} {reason}; choose another with --metrics-port or VITRINE_METRICS_PORT, one for each"
            " runner of a machine",
            code="PORT_TAKEN",
        ) from exc
