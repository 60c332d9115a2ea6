"""Where an API is and how it is reached, from the fields of an Airflow connection."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from vitrine_airflow.errors import Refused

PORTS = {"http": 8000, "https": 443}
TIMEOUT_SECONDS = 30.0
RETRY_SECONDS = 300.0
EXTRAS = ("ca_file", "timeout", "retry_for")


@dataclass(frozen=True)
class Endpoint:
    """An API and the access token for it."""

    url: str
    token: str | None = field(default=None, repr=False)
    ca_file: str | None = None  # None: the authorities that the system trusts
    timeout: float = TIMEOUT_SECONDS  # for one answer; a wait that the call asks for is added
    retry_for: float = RETRY_SECONDS  # how long a call without an answer is repeated


def read_connection(
    name: str, *, host: str | None, port: int | None, schema: str | None, password: str | None, extra: str | None
) -> Endpoint:
    """The endpoint of a connection; Refused with the field that is wrong."""
    scheme = (schema or "https").lower()
    if scheme not in PORTS:
        raise _wrong(name, "Schema must be http or https")
    if not host:
        raise _wrong(name, "Host is empty; give the host of the API, for example vitrine.example.com")
    if "/" in host:
        raise _wrong(name, "Host must be a name or an address alone; http or https belongs into Schema")
    bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
    settings = _read_extra(name, extra)
    return Endpoint(
        url=f"{scheme}://{bracketed}:{port or PORTS[scheme]}",
        token=(password or "").strip() or None,
        ca_file=str(settings["ca_file"]) if settings.get("ca_file") else None,
        timeout=_seconds(name, settings, "timeout", TIMEOUT_SECONDS),
        retry_for=_seconds(name, settings, "retry_for", RETRY_SECONDS),
    )


def _read_extra(name: str, text: str | None) -> Mapping[str, Any]:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        raise _wrong(name, "Extra is not JSON") from None
    if not isinstance(found, dict):
        raise _wrong(name, "Extra is not a JSON object")
    given = cast(dict[str, Any], found)
    if unknown := sorted(given.keys() - set(EXTRAS)):
        raise _wrong(name, f"Extra has {', '.join(unknown)}; it may have {', '.join(EXTRAS)}")
    return given


def _seconds(name: str, settings: Mapping[str, Any], key: str, default: float) -> float:
    given = settings.get(key)
    if given in (None, ""):
        return default
    try:
        seconds = float(given)  # a connection that is given as a URI has text here
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= 86_400 or (key == "timeout" and not seconds):
        raise _wrong(name, f"{key} in Extra must be a number of seconds")
    return seconds


def _wrong(name: str, reason: str) -> Refused:
    return Refused(f"connection '{name}': {reason}", code="CONNECTION")
