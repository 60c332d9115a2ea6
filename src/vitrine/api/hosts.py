"""The Host header: a page whose name was made to point to this machine (DNS rebinding) does not reach the API."""

import re
from collections.abc import Collection
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


def is_allowed(name: str, hosts: Collection[str], *, exposed: bool) -> bool:
    """Whether clients may use this name. `exposed`: the API serves other machines, by any of its addresses."""
    address = parse_address(name)
    if name == "localhost" or (address is not None and (address.is_loopback or exposed)):
        return True
    # an address cannot be pointed elsewhere, so only names need the list
    known = address.compressed if address is not None else name
    return any(known == host or (host.startswith("*.") and known.endswith(host[1:])) for host in hosts)
