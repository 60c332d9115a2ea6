"""Where the API may listen, and from which address a client speaks."""

import errno
import re
import resource
import socket
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import NoReturn

from starlette.datastructures import Headers

from vitrine.errors import ConfigError, VitrineError
from vitrine.listening import Address, BoundedListener, is_loopback, parse_address
from vitrine.postgres import connect
from vitrine.settings import Settings
from vitrine.store import access

FORWARDING = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers that a proxy adds."""

_WITH_PORT = re.compile(r"\[(?P<v6>[^\]]+)\](?::[0-9]+)?|(?P<v4>[0-9.]+):[0-9]+")


@dataclass(frozen=True)
class Client:
    address: str
    https: bool
    peer: str  # the other end of the connection: the client itself, or a proxy
    through_proxy: bool  # the peer is a trusted proxy
    mentions_proxy: bool  # the request has a header that a proxy adds, trusted or not

    @property
    def is_local(self) -> bool:
        """A name instead of an address appears in tests only."""
        return parse_address(self.peer) is None or is_loopback(self.peer)


class Proxies:
    """The proxies whose headers are believed; those of any other client are ignored."""

    def __init__(self, networks: Iterable[str]) -> None:
        self._networks: Sequence[IPv4Network | IPv6Network] = [ip_network(network) for network in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def client(self, peer: str, headers: Headers, *, https: bool) -> Client:
        trusted = self._trusts(parse_address(peer))
        address = self._forwarded_for(peer, headers) if trusted else peer
        if trusted and (scheme := headers.getlist("x-forwarded-proto")):
            https = scheme[-1].rpartition(",")[2].strip().lower() == "https"
        return Client(address, https, peer, trusted, any(name in headers for name in FORWARDING))

    def _trusts(self, address: Address | None) -> bool:
        return address is not None and any(
            address.version == network.version and address in network for network in self._networks
        )

    def _forwarded_for(self, peer: str, headers: Headers) -> str:
        """From right to left, because each proxy appends: the first address that is not a trusted proxy's."""
        found = peer
        for entry in reversed(",".join(headers.getlist("x-forwarded-for")).split(",")):
            address = _address_in(entry.strip())
            if address is None:
                break  # what stands further left was not written by a trusted proxy
            found = str(address)
            if not self._trusts(address):
                break
        return found


def _address_in(entry: str) -> Address | None:
    with_port = _WITH_PORT.fullmatch(entry)
    return parse_address(entry if with_port is None else with_port["v6"] or with_port["v4"])


BACKLOG = 2048
MAX_CONNECTIONS = 2000
OTHER_DESCRIPTORS = 100
"""Descriptors for connections to databases, for files and for libraries."""


def listen(settings: Settings) -> BoundedListener:
    """A listening socket: unlike a check, it reserves the port until the server uses it.

    ConfigError if the port is in use, or if other machines could reach an API that is not protected.
    """
    host, port = settings.api_host, settings.api_port
    family, address = _resolve(host)
    if not is_loopback(address):
        _refuse_unprotected(settings)
    listener = BoundedListener(family, _connection_limit())
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise _refused(host, port, exc) from exc
    return listener


def _connection_limit() -> int:
    """As many as fit below the limit of the process for open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(OTHER_DESCRIPTORS, min(MAX_CONNECTIONS, soft - OTHER_DESCRIPTORS))


def is_exposed(settings: Settings) -> bool:
    """Whether other machines can reach the API."""
    return not is_loopback(_resolve(settings.api_host)[1])


def _has_tokens(settings: Settings) -> bool | None:
    """None: the store is unavailable. The API starts without it, and then decides at each request."""
    if settings.database_url is None:
        return None
    try:
        with connect(settings.store_url, name="vitrine:api") as connection:
            return access.tokens_exist(connection)
    except VitrineError:
        return None


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None: the API itself speaks no TLS. ConfigError if certificate and key cannot be used."""
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigError("VITRINE_TLS_CERT and VITRINE_TLS_KEY are needed together; give both, or neither", code="TLS")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(
            f"VITRINE_TLS_CERT={settings.tls_cert} and VITRINE_TLS_KEY={settings.tls_key} cannot be used:"
            f" {exc.strerror or exc}; give the PEM files of a certificate and of its private key",
            code="TLS",
        ) from exc
    return context


def _no_password() -> NoReturn:
    raise ConfigError(
        "VITRINE_TLS_KEY is encrypted; give a key without a passphrase, readable by this user", code="TLS"
    )


def _refuse_unprotected(settings: Settings) -> None:
    host = settings.api_host
    if _has_tokens(settings) is False:
        raise ConfigError(
            f"VITRINE_API_HOST={host} is reachable from other machines, and there are no access tokens yet: create one"
            " with `vitrine token create NAME --role admin`, or use a loopback address such as 127.0.0.1",
            code="NOT_LOOPBACK",
        )
    if settings.tls_cert is None and not settings.trusted_proxies:
        raise ConfigError(
            f"VITRINE_API_HOST={host} is reachable from other machines, and tokens would be sent unencrypted: give"
            " VITRINE_TLS_CERT and VITRINE_TLS_KEY, or name the proxy that speaks TLS in VITRINE_TRUSTED_PROXIES",
            code="NO_TLS",
        )


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as exc:
        raise ConfigError(
            f"VITRINE_API_HOST={host} is not an address of this machine; use 127.0.0.1", code="NO_ADDRESS"
        ) from exc
    addresses = [(family, str(address[0])) for family, _, _, _, address in found]
    # one that other machines reach decides; otherwise IPv4, which clients prefer for a name such as localhost
    return min(addresses, key=lambda found: (is_loopback(found[1]), found[0] is not socket.AF_INET))


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
