"""Serves the API on a loopback port until SIGTERM or Ctrl-C."""

import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from vitrine.api.app import create_app
from vitrine.errors import ConfigError
from vitrine.settings import Settings

BACKLOG = 2048
GRACE_SECONDS = 5


def serve(settings: Settings, *, ready: Callable[[], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then return; calls `ready` once requests are accepted.

    ConfigError when the port is in use or the address is not a loopback address.
    """
    app = create_app(settings)
    with listen(settings.api_host, settings.api_port) as listener:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        _Server(config, ready).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A listening socket: unlike a check, it reserves the port until the server uses it."""
    family, address = _loopback(host)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise _refused(host, port, exc) from exc
    return listener


def _loopback(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise ConfigError(
            f"VITRINE_API_HOST={host} is not an address of this machine; use 127.0.0.1", code="NO_ADDRESS"
        ) from exc
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    if not all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for _, address in addresses):
        raise ConfigError(
            f"VITRINE_API_HOST={host} is reachable from other machines, and the API has no access tokens yet:"
            " use a loopback address such as 127.0.0.1",
            code="NOT_LOOPBACK",
        )
    # a name such as localhost has IPv4 and IPv6 addresses, and clients prefer IPv4
    return min(addresses, key=lambda found: found[0] is not socket.AF_INET)


def _refused(host: str, port: int, exc: OSError) -> ConfigError:
    other = port + 1 if port < 65535 else 8000
    if exc.errno == errno.EADDRINUSE:
        return ConfigError(
            f"port {port} on {host} is in use by another program; stop that program, or set VITRINE_API_PORT={other}",
            code="PORT_TAKEN",
        )
    return ConfigError(
        f"cannot listen on port {port} of {host}: {exc.strerror}; set VITRINE_API_PORT to another port",
        code="PORT_REFUSED",
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready is not None:
            self._ready()

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
