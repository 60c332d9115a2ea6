"""The Host header: a page whose name was made to point to this machine (DNS rebinding) reaches no port of Vitrine."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

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
