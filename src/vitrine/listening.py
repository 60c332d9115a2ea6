"""Listening on a port: which Host headers are accepted, and how many connections."""

import re
import socket
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

Address = IPv4Address | IPv6Address

_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_.-]+))(?::[0-9]{1,5})?")


def parse_address(text: str) -> Address | None:
    """An address without its zone, an IPv4 address inside an IPv6 address as the former; None: this is a name."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_loopback(text: str) -> bool:
    address = parse_address(text)
    return address is not None and address.is_loopback


def name_of(header: str) -> str | None:
    """The name or the address in a Host header, without its port; None if the header is not valid.

    Any port is allowed: a forwarded port has another number, and the port protects from nothing that the name does not.
    """
    found = _HOST.fullmatch(header)
    if found is None:
        return None
    if found["v6"] is not None:
        address = parse_address(found["v6"])
        return None if address is None else str(address)
    return found["name"].lower().removesuffix(".")


@dataclass(frozen=True)
class Refusal:
    """Why a request is refused: HTTP status, stable code, and a sentence."""

    status: int
    code: str
    detail: str


_BAD_HOST = Refusal(400, "BAD_HOST", "send one Host header with a name and a port")
_WRONG_HOST = Refusal(
    421,
    "WRONG_HOST",
    "nothing is served under the name in the Host header; use a loopback address, or add the name to"
    " VITRINE_ALLOWED_HOSTS",
)


@dataclass(frozen=True)
class HostRule:
    """Under which names clients may use a port."""

    names: Collection[str]  # of VITRINE_ALLOWED_HOSTS
    exposed: bool  # other machines reach the port, by any of its addresses

    def refuses(self, headers: Sequence[str]) -> Refusal | None:
        """The refusal of a request with these Host headers; None if it may proceed."""
        name = name_of(headers[0]) if len(headers) == 1 else None
        if name is None:
            return _BAD_HOST
        return None if self._allows(name) else _WRONG_HOST

    def _allows(self, name: str) -> bool:
        address = parse_address(name)
        if name == "localhost" or (address is not None and (address.is_loopback or self.exposed)):
            return True
        # an address cannot be pointed elsewhere, so only names need the list
        known = address.compressed if address is not None else name
        return any(known == host or (host.startswith("*.") and known.endswith(host[1:])) for host in self.names)


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
