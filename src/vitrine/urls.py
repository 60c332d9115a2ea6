"""URLs of databases and clusters, taken apart before any driver sees them; no message repeats a part of one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from urllib.parse import quote, unquote

EXAMPLE = "postgresql://user:password@host:5432/database"

KEYWORDS = frozenset(
    {
        *("application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname"),
        *("fallback_application_name", "gssdelegation", "gssencmode", "gsslib", "host", "hostaddr"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname"),
        *("load_balance_hosts", "max_protocol_version", "min_protocol_version", "oauth_client_id"),
        *("oauth_client_secret", "oauth_issuer", "oauth_scope", "options", "passfile", "password", "port"),
        *("replication", "require_auth", "requirepeer", "scram_client_key", "scram_server_key", "service"),
        *("servicefile", "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcertmode"),
        *("sslcompression", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslmode", "sslnegotiation"),
        *("sslpassword", "sslrootcert", "sslsni", "target_session_attrs", "tcp_user_timeout", "user"),
    }
)
"""What libpq understands behind the question mark."""

SECRET_KEYWORDS = frozenset({"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"})

_ENCODE = "special characters in user and password must be percent-encoded (@ as %40, / as %2F, ? as %3F, % as %25)"
_ACCOUNT = re.compile(r"(?<=://)[^\s\"']*@")
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9._~%-]*)(?::([0-9]{1,5}))?")
_ODD_HOST = re.compile(r'"[^"\s]*[@%][^"]*"')


class UrlError(ValueError):
    """A URL that cannot be read; the text repeats no part of it."""


@dataclass(frozen=True)
class PostgresUrl:
    """The parts of a postgresql:// URL, decoded; its text form hides the secrets."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    hosts: tuple[tuple[str, str], ...] = ()  # host and port; either may be empty
    database: str | None = None
    parameters: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def keywords(self) -> dict[str, str]:
        """The same as keywords of libpq."""
        named = {
            "user": self.user,
            "password": self.password,
            "host": ",".join(host for host, _ in self.hosts),
            "port": ",".join(port for _, port in self.hosts),
            "dbname": self.database,
        }
        return {name: value for name, value in named.items() if value} | self.parameters

    def secrets(self) -> Iterator[str]:
        """Every secret, as it is and as it may be written in a URL."""
        values = [self.password, *(self.parameters.get(name) for name in sorted(SECRET_KEYWORDS))]
        for value in values:
            if value:
                yield from dict.fromkeys((value, quote(value, safe=""), quote(value)))


def parse_postgres(text: str) -> PostgresUrl:
    """Take the URL apart as libpq does, but refuse what libpq would guess: then a secret could become a host."""
    matched = re.fullmatch(r"postgres(?:ql)?://([^/?]*)(?:/([^?]*))?(?:\?(.*))?", text, re.DOTALL)
    if matched is None:
        raise UrlError(f"give a URL such as {EXAMPLE}")
    if any(ord(letter) <= 32 or ord(letter) == 127 for letter in text):
        raise UrlError(f"a space or a control character is in the URL; give one such as {EXAMPLE}, {_ENCODE}")
    authority, path, query = matched[1], matched[2] or "", matched[3] or ""
    account, at, places = authority.rpartition("@")
    # guarantee: K9
    if "@" in account or "@" in path or "/" in path:
        raise UrlError(f"it is not clear where the password ends and the host begins: {_ENCODE}")
    user, _, password = account.partition(":")
    parameters = dict(_parameters(query))
    return PostgresUrl(
        user=_decode(user) or None if at else None,
        password=_decode(password) or None if at else None,
        hosts=tuple(_hosts(places)) if places else (),
        database=_decode(path) or None,
        parameters=parameters,
    )


def parse_http(text: str) -> list[str]:
    """The addresses of a cluster, separated by commas; each is checked."""
    found = [one.strip() for one in text.split(",") if one.strip()]
    for one in found:
        matched = re.fullmatch(r"https?://(?:([^@/?#]*)@)?([^@/?#]+)(/[^@?#\s]*)?", one)
        if matched is None or any(ord(letter) <= 32 or ord(letter) == 127 for letter in one):
            raise UrlError(f"give an address such as https://search.example.com:9200; {_ENCODE}")
        _decode(matched[1] or "")
        for _ in _hosts(matched[2]):
            pass
    if not found:
        raise UrlError("give an address such as https://search.example.com:9200")
    return found


def secrets_of(text: str) -> Iterator[str]:
    """Every secret in a URL of either kind; what cannot be read is a secret as a whole."""
    try:
        if re.match(r"postgres(ql)?://", text):
            yield from parse_postgres(text).secrets()
            return
        for one in parse_http(text):
            account, at, _ = one.partition("://")[2].rpartition("@")
            _, _, password = account.partition(":")
            if at and password:
                yield from dict.fromkeys((password, unquote(password)))
    except UrlError:
        yield text


def mask(text: str) -> str:
    """A driver's message without accounts in URLs, and without quoted hosts that may be a part of a password."""
    return _ODD_HOST.sub('"***"', _ACCOUNT.sub("***@", text))


def _hosts(places: str) -> Iterator[tuple[str, str]]:
    for place in places.split(","):
        matched = re.fullmatch(
            r"(\[[0-9A-Fa-f:.]+(?:%25[A-Za-z0-9_.-]+)?\]|[A-Za-z0-9._~%-]*)(?::([0-9]{1,5}))?", place
        )
        if matched is None or not 0 < int(matched[2] or 5432) < 65536:
            raise UrlError(f"a host or a port in the URL is not valid; if they are part of a password: {_ENCODE}")
        yield _host(matched[1]), matched[2] or ""


def _host(text: str) -> str:
    if not text.startswith("["):
        host = _decode(text)
        # a folder for a socket, or a name; anything else may be a part of a password
        if host.startswith(("/", "@")) or re.fullmatch(r"[A-Za-z0-9._-]*", host):
            return host
        raise UrlError(f"a host in the URL is not valid; if it is part of a password: {_ENCODE}")
    address = _decode(text[1:-1])
    try:
        IPv6Address(address)
    except ValueError:
        raise UrlError("an IPv6 address in the URL is not valid; write it as [::1]") from None
    return address


def _parameters(query: str) -> Iterator[tuple[str, str]]:
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not equals or _decode(name) not in KEYWORDS | {"ssl"}:
            raise UrlError(
                "a parameter behind the ? of the URL is not known to PostgreSQL, or has no value; if the ? is part of"
                f" a password: {_ENCODE}"
            )
        if name == "ssl":  # as JDBC writes it; libpq understands it as well
            yield "sslmode", "require" if value == "true" else value
            continue
        yield _decode(name), _decode(value)


def _decode(text: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", text):
        raise UrlError(f"a % in the URL is not followed by two hexadecimal digits: {_ENCODE}")
    decoded = unquote(text, errors="surrogateescape")
    if "\0" in decoded or any("\udc80" <= letter <= "\udcff" for letter in decoded):
        raise UrlError("the URL contains %00, or bytes that are not UTF-8")
    return decoded
