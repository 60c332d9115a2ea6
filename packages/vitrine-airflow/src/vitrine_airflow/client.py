"""Sends calls to the API, and repeats those that got no answer."""

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import httpx

from vitrine_airflow.calls import Call
from vitrine_airflow.endpoint import Endpoint
from vitrine_airflow.errors import ApiError, Conflict, Refused, Unavailable

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

PREFIX = "/api/v1"
CONNECT_SECONDS = 10.0
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 1.0, 30.0

_CONFLICTS = (409, 412)
_PASSING = (408, 429)


class Client:
    """Blocks until a call has its answer. Each call has a connection of its own, so that a signal handler can make one
    while another waits."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._trusted = trusted_authorities(endpoint)

    def send(self, call: Call[Answer]) -> Answer:
        """The answer; ApiError after `retry_for` seconds without one, at once if the call is refused."""
        attempts = Attempts(self.endpoint)
        while True:
            try:
                return self.send_once(call)
            except Unavailable as exc:
                time.sleep(attempts.wait_after(exc))

    def send_once(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        arguments = _arguments(self.endpoint, call, timeout)
        try:
            with httpx.Client(verify=self._trusted) as http:
                response = http.request(**arguments)
        except httpx.HTTPError as exc:
            raise _unreachable(self.endpoint, exc) from None
        return read_answer(self.endpoint, call, response)


class AsyncClient:
    """The same for an event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._trusted = trusted_authorities(endpoint)

    async def send(self, call: Call[Answer]) -> Answer:
        attempts = Attempts(self.endpoint)
        while True:
            try:
                return await self.send_once(call)
            except Unavailable as exc:
                await asyncio.sleep(attempts.wait_after(exc))

    async def send_once(self, call: Call[Answer], *, timeout: float | None = None) -> Answer:
        arguments = _arguments(self.endpoint, call, timeout)
        try:
            async with httpx.AsyncClient(verify=self._trusted) as http:
                response = await http.request(**arguments)
        except httpx.HTTPError as exc:
            raise _unreachable(self.endpoint, exc) from None
        return read_answer(self.endpoint, call, response)


class Attempts:
    """The attempts at one call: after 1, 2, 4 … 30 seconds, until `retry_for` seconds have passed."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._deadline = time.monotonic() + endpoint.retry_for
        self._wait = FIRST_WAIT_SECONDS

    def wait_after(self, error: Unavailable) -> float:
        """Seconds until the next attempt; raises the error if there is none."""
        wait = max(self._wait, min(error.retry_after, LONGEST_WAIT_SECONDS))
        if time.monotonic() + wait > self._deadline:
            raise error
        self._wait = min(2 * self._wait, LONGEST_WAIT_SECONDS)
        log.warning("%s; the next attempt is in %g s", error, wait)
        return wait


def trusted_authorities(endpoint: Endpoint) -> ssl.SSLContext:
    """The system's, or those of the CA file; Refused if it cannot be read."""
    try:
        return ssl.create_default_context(cafile=endpoint.ca_file)
    except OSError as exc:  # also of TLS itself
        reason = exc.strerror or "no certificate is in it"
        raise Refused(f"the CA file {endpoint.ca_file} cannot be used: {reason}", code="CA_FILE") from None


def read_answer(endpoint: Endpoint, call: Call[Answer], response: httpx.Response) -> Answer:
    """The answer in its own type; ApiError with the API's sentence if it refuses."""
    if not response.is_success:
        raise _refusal(endpoint, response)
    try:
        return call.read(response.json())
    except (ValueError, TypeError, KeyError):
        raise _not_ours(endpoint, response) from None


def _arguments(endpoint: Endpoint, call: Call[Any], timeout: float | None) -> dict[str, Any]:
    headers = {"Accept": "application/json"}
    if endpoint.token:
        headers["Authorization"] = f"Bearer {endpoint.token}"
    seconds = timeout or endpoint.timeout + call.wait
    return {
        "method": call.method,
        "url": f"{endpoint.url}{PREFIX}{call.path}",
        "params": dict(call.query),
        "json": call.body,
        "headers": headers,
        "timeout": httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS)),
        "follow_redirects": False,  # the token is for this address only
    }


def _unreachable(endpoint: Endpoint, error: httpx.HTTPError) -> ApiError:
    if isinstance(error, httpx.TimeoutException):
        return Unavailable(f"the API at {endpoint.url} does not respond in time", code="API_DOWN")
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        return Refused(
            f"the certificate of the API at {endpoint.url} is not trusted ({error}); name the file of its authority as"
            " ca_file in Extra of the connection",
            code="CERTIFICATE",
        )
    return Unavailable(
        f"the API at {endpoint.url} cannot be reached ({error or type(error).__name__}); is `vitrine api` running"
        " there, and are Host, Port and Schema of the connection right?",
        code="API_DOWN",
    )


def _refusal(endpoint: Endpoint, response: httpx.Response) -> ApiError:
    if response.is_redirect:
        where = response.headers.get("location", "another address")
        return Refused(f"the API at {endpoint.url} redirects to {where}; give that address", code="REDIRECTED")
    problem = _problem(response)
    may_pass = response.status_code in _PASSING or response.is_server_error
    if problem is None and not may_pass:
        return _not_ours(endpoint, response)
    code = str(problem["code"]) if problem else "API_DOWN"
    sentence = str(problem["detail"]) if problem else f"{endpoint.url} answers {response.status_code}"
    if code == "UNAUTHENTICATED":
        return Refused(
            f"the API at {endpoint.url} does not accept the access token; put a valid one into Password of the"
            " connection: `vitrine token create airflow --role operator` creates one",
            code=code,
        )
    if code == "NO_ROUTE":
        return Refused(
            f"the API at {endpoint.url} has no such route: the name of the pipeline is empty, or the API is of an older"
            " release",
            code=code,
        )
    if may_pass:
        after = response.headers.get("retry-after", "")
        return Unavailable(sentence, code=code, retry_after=float(after) if after.isdigit() else 0.0)
    group = Conflict if response.status_code in _CONFLICTS else Refused
    return group(sentence, code=code)


def _not_ours(endpoint: Endpoint, response: httpx.Response) -> Refused:
    return Refused(
        f"{endpoint.url} answers ({response.status_code}), but not as an API of Vitrine does; check Host and Port of"
        " the connection",
        code="NOT_AN_API",
    )


def _problem(response: httpx.Response) -> Mapping[str, Any] | None:
    """The problem of a refusal; None if the answer has another form."""
    try:
        found: Any = response.json()
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"code", "detail"} <= cast(dict[str, Any], found).keys():
        return None
    return cast(dict[str, Any], found)
