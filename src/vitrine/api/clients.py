"""Who sends a request: the address of the client, seen through trusted proxies."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from starlette.datastructures import Headers

from vitrine.hosts import Address, is_loopback, parse_address

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
