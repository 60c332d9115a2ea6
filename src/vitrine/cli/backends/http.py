"""Requests to the API of another machine; its problems become the errors of Vitrine."""

from collections.abc import Mapping
from typing import Any, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from vitrine.errors import ConfigError, NotFound, TransientError, TransitionRefused, VitrineError
from vitrine.places import Place
from vitrine.settings import parse_duration

Body = TypeVar("Body", bound=BaseModel)

PREFIX = "/api/v1"
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Longer than any answer takes, except for those that wait on purpose."""

_GROUPS: dict[int, type[VitrineError]] = {
    404: NotFound,
    409: TransitionRefused,
    412: TransitionRefused,
    429: TransientError,
    502: TransientError,
    503: TransientError,
    504: TransientError,
}


class Client:
    """One connection to an API. The token is sent in a header and to that address only: redirects are not followed."""

    def __init__(self, url: str, token: str | None) -> None:
        self._url = url.rstrip("/").removesuffix(PREFIX)
        headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        self._client = httpx.Client(
            base_url=self._url + PREFIX,
            headers=headers,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def get(self, path: str, answer: type[Body], **query: Any) -> Body:
        return self._body(answer, "GET", path, query)

    def send(self, method: str, path: str, answer: type[Body], body: BaseModel | None = None, **query: Any) -> Body:
        return self._body(answer, method, path, query, body)

    def delete(self, path: str, **query: Any) -> None:
        self._answered("DELETE", path, query)

    def get_text(self, path: str, **query: Any) -> str:
        return self._answered("GET", path, query).text

    def _body(
        self, answer: type[Body], method: str, path: str, query: Mapping[str, Any], body: BaseModel | None = None
    ) -> Body:
        response = self._answered(method, path, query, body)
        try:
            # a newer API may have fields that this release does not know
            return answer.model_validate(response.json(), extra="ignore")
        except (ValueError, ValidationError) as exc:
            raise self._not_ours(response) from exc

    def _answered(
        self, method: str, path: str, query: Mapping[str, Any], body: BaseModel | None = None
    ) -> httpx.Response:
        given = {name: value for name, value in query.items() if value is not None}
        # a wait is the server's: the answer takes that much longer
        seconds = ANSWER_SECONDS + parse_duration(given.get("wait", 0)).total_seconds()
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        content = None if body is None else body.model_dump_json(exclude_unset=True)
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            response = self._client.request(
                method, path, params=given, content=content, headers=headers, timeout=timeout
            )
        except httpx.TimeoutException as exc:
            raise TransientError(
                f"the API at {self._url} does not respond in time; try again", code="API_DOWN"
            ) from exc
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as exc:
            raise ConfigError(f"'{self._url}' is not the address of an API: {exc}", code="BAD_URL") from exc
        except httpx.TransportError as exc:
            raise self._unreachable(exc) from exc
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _unreachable(self, error: httpx.TransportError) -> VitrineError:
        text = str(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return ConfigError(
                f"the certificate of the API at {self._url} is not trusted ({text}); name the file of its authority in"
                " SSL_CERT_FILE",
                code="CERTIFICATE",
            )
        # each of both appears when the other scheme is spoken
        if "[SSL" in text:
            return ConfigError(f"{self._url} does not speak TLS ({text}); give an address with http://", code="BAD_URL")
        if isinstance(error, httpx.RemoteProtocolError) and self._url.startswith("http://"):
            return TransientError(
                f"{self._url} closes the connection without an answer; if it speaks TLS, give an address with https://",
                code="API_DOWN",
            )
        return TransientError(
            f"the API at {self._url} cannot be reached ({text}); is `vitrine api` running there?", code="API_DOWN"
        )

    def _refusal(self, response: httpx.Response) -> VitrineError:
        if response.is_redirect:
            where = response.headers.get("location", "another address")
            return ConfigError(f"the API at {self._url} redirects to {where}; give that address", code="REDIRECTED")
        problem = _problem(response)
        if problem is None:
            return self._not_ours(response)
        if problem["code"] == "NO_ROUTE":
            return ConfigError(
                f"the API at {self._url} has no such route: it is of an older release, or --api (VITRINE_API_URL) has a"
                " part too many",
                code="NO_ROUTE",
            )
        if problem["code"] == "UNAUTHENTICATED":
            return ConfigError(
                f"the API at {self._url} needs a valid access token: give one with --token-file or VITRINE_TOKEN;"
                " `vitrine token create NAME` on its database creates one",
                code="UNAUTHENTICATED",
            )
        group = _GROUPS.get(response.status_code, ConfigError if response.status_code < 500 else VitrineError)
        return group(str(problem["detail"]), code=str(problem["code"]), place=_place(problem.get("place")))

    def _not_ours(self, response: httpx.Response) -> VitrineError:
        return ConfigError(
            f"{self._url} answers ({response.status_code}), but not as an API of Vitrine does; check --api or"
            " VITRINE_API_URL",
            code="NOT_AN_API",
        )


def _problem(response: httpx.Response) -> dict[str, Any] | None:
    """The problem of a refusal; None if the answer has another form."""
    try:
        found = response.json()
    except ValueError:
        return None
    if not isinstance(found, dict) or not {"code", "detail"} <= cast(dict[str, Any], found).keys():
        return None
    return cast(dict[str, Any], found)


def _place(given: Mapping[str, Any] | None) -> Place | None:
    return None if given is None else Place(int(given["line"]), int(given["column"]), str(given.get("text", "")))
