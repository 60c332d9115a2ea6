"""The backend through the API of another machine; its problems become the errors of Vitrine."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar, cast
from urllib.parse import quote, urlsplit
from uuid import UUID

import httpx
from pydantic import BaseModel, ValidationError

from vitrine.cli.backends import Backend
from vitrine.definition.connectors import Diagnosis
from vitrine.definition.model import Definition, StateChoice
from vitrine.errors import ConfigError, NotFound, Place, TransientError, TransitionRefused, VitrineError
from vitrine.operations.bodies.access import AuditBody, AuditPage, CreatedToken, NewToken, TokenBody, TokenPage
from vitrine.operations.bodies.checks import ComparisonBody, PreviewBody, RejectPage, ReportBody, ResendBody, TraceBody
from vitrine.operations.bodies.control import Paused, Reloaded, Requested, RunRequestBody
from vitrine.operations.bodies.filters import EVERY, Filters, RequestedRuns, RunManyBody
from vitrine.operations.bodies.overview import DoctorReport, TablePage, TransformList, of_definitions
from vitrine.operations.bodies.pipelines import PipelineBody, PipelinePage, ReconcileBody, StoredPipelineBody
from vitrine.operations.bodies.plans import AppliedBody, ApplyBody, PlanBody, StoredPlanBody
from vitrine.operations.bodies.runs import RequestBody, RunLogBody, RunPage, StateBody, StateChange, StatusBody
from vitrine.settings import Settings, parse_duration
from vitrine.store.access import AuditFilters

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


PAGE = 200
LONGEST_WAIT = timedelta(seconds=30)
"""Of one request: proxies end connections on which nothing happens for a minute."""


@contextmanager
def remote_backend(settings: Settings, url: str) -> Generator[Backend]:
    token = settings.token.get_secret_value() if settings.token else None
    with Client(url, token) as client:
        yield Backend(
            settings,
            RemoteDefinitions(client),
            RemoteControl(client),
            RemoteHistory(client),
            RemoteChecks(client),
            RemoteSources(client),
            RemoteAccess(client),
        )


def _pipeline(key: str, *parts: str) -> str:
    if not key:
        raise NotFound("give the name of a pipeline")
    return "/".join(["/pipelines", quote(key, safe=""), *parts])


class RemoteDefinitions:
    def __init__(self, client: Client) -> None:
        self._client = client

    def pages(self, filters: Filters) -> Iterator[PipelinePage]:
        query = filters.model_dump(mode="json", exclude_unset=True)
        after: str | None = ""
        while after is not None:
            page = self._client.get("/pipelines", PipelinePage, **query, after=after, limit=PAGE)
            yield page
            after = page.next

    def get(self, key: str) -> PipelineBody:
        return self._client.get(_pipeline(key), PipelineBody)

    def set_enabled(self, key: str, enabled: bool) -> StoredPipelineBody:
        return self._client.send("POST", _pipeline(key, "enable" if enabled else "disable"), StoredPipelineBody)

    def delete(self, key: str, *, force: bool) -> None:
        self._client.delete(_pipeline(key), force=force)

    def apply(self, body: ApplyBody) -> AppliedBody:
        return self._client.send("POST", "/apply", AppliedBody, body)


class RemoteControl:
    def __init__(self, client: Client) -> None:
        self._client = client

    def run(self, key: str, body: RunRequestBody) -> Requested:
        return self._client.send("POST", _pipeline(key, "run"), Requested, body)

    def run_many(self, body: RunManyBody) -> RequestedRuns:
        return self._client.send("POST", "/runs", RequestedRuns, body)

    def resume(self, key: str) -> Requested:
        return self._client.send("POST", _pipeline(key, "resume"), Requested)

    def roll_back(self, key: str) -> Requested:
        return self._client.send("POST", _pipeline(key, "rollback"), Requested)

    def reconcile(self, key: str, body: ReconcileBody) -> Requested:
        return self._client.send("POST", _pipeline(key, "reconcile"), Requested, body)

    def replay_rejects(self, key: str) -> Requested:
        return self._client.send("POST", _pipeline(key, "rejects", "replay"), Requested)

    def resend(self, key: str, body: ResendBody) -> Requested:
        return self._client.send("POST", _pipeline(key, "trace", "resend"), Requested, body)

    def pause(self, key: str) -> Paused:
        return self._client.send("POST", _pipeline(key, "pause"), Paused)

    def reload(self, key: str) -> Reloaded:
        return self._client.send("POST", _pipeline(key, "reload-config"), Reloaded)


class RemoteHistory:
    def __init__(self, client: Client) -> None:
        self._client = client

    def status(self, key: str) -> StatusBody:
        return self._client.get(_pipeline(key, "status"), StatusBody)

    def state(self, key: str) -> StateBody:
        return self._client.get(_pipeline(key, "state"), StateBody)

    def change_state(self, key: str, change: StateChange) -> StateBody:
        return self._client.send("POST", _pipeline(key, "state"), StateBody, change)

    def list_runs(self, key: str, *, limit: int) -> RunPage:
        found: list[Any] = []
        before: int | None = None
        while True:
            wanted = min(PAGE, limit - len(found))
            page = self._client.get(_pipeline(key, "runs"), RunPage, limit=wanted, before=before)
            found += page.items
            before = page.next
            if before is None or len(found) >= limit:
                return RunPage(items=found, next=before)

    def run_log(self, key: str, run_id: int) -> RunLogBody:
        return self._client.get(_pipeline(key, "runs", str(run_id), "log"), RunLogBody)

    def request(self, request_id: UUID, wait: timedelta) -> RequestBody:
        seconds = min(wait, LONGEST_WAIT).total_seconds()
        return self._client.get(f"/requests/{request_id}", RequestBody, wait=f"{seconds:.3f}s" if seconds else None)


class RemoteChecks:
    def __init__(self, client: Client) -> None:
        self._client = client

    def validate(self, subject: str | Definition) -> ReportBody:
        if isinstance(subject, Definition):
            return self._client.send("POST", "/validate", ReportBody, subject)
        return self._client.get(_pipeline(subject, "validate"), ReportBody)

    def preview(self, subject: str | Definition, *, limit: int) -> PreviewBody:
        if isinstance(subject, Definition):
            return self._client.send("POST", "/preview", PreviewBody, subject, limit=limit)
        return self._client.get(_pipeline(subject, "preview"), PreviewBody, limit=limit)

    def plan(
        self, subject: str | Definition, *, state: StateChoice | None = None, seconds: float | None = None
    ) -> PlanBody:
        if isinstance(subject, Definition):
            return self._client.send("POST", "/plan", PlanBody, subject, state=state, seconds=seconds)
        body = StoredPlanBody(state=state)
        return self._client.send("POST", _pipeline(subject, "plan"), PlanBody, body, seconds=seconds)

    def compare(self, key: str, *, quick: bool) -> ComparisonBody:
        if quick:
            return self._client.get(_pipeline(key, "reconcile"), ComparisonBody)
        requested = self._client.send("POST", _pipeline(key, "reconcile"), Requested)
        history = RemoteHistory(self._client)
        while True:
            found = history.request(requested.request_id, LONGEST_WAIT)
            if found.state == "succeeded" and found.run is not None and isinstance(found.run.result, ComparisonBody):
                return found.run.result
            if found.state not in ("pending", "running"):
                raise _failed(found)

    def rejects(self, key: str, *, limit: int, with_rows: bool = False) -> RejectPage:
        wanted = min(limit, PAGE)
        return self._client.get(_pipeline(key, "rejects"), RejectPage, limit=wanted, rows=with_rows or None)

    def trace(self, key: str, row_key: Sequence[str]) -> TraceBody:
        return self._client.get(_pipeline(key, "trace"), TraceBody, key=list(row_key))


def _failed(request: RequestBody) -> VitrineError:
    run = request.run
    if run is not None and run.error_message:
        return VitrineError(run.error_message, code=run.error_code)
    return VitrineError(f"the comparison of '{request.pipeline}' is {request.state}")


class RemoteSources:
    def __init__(self, client: Client) -> None:
        self._client = client

    def tables(self, source: str, *, schema: str | None, table: str | None) -> TablePage:
        found: list[Any] = []
        after: str | None = None
        while True:
            path = f"/sources/{quote(source, safe='')}/tables"
            page = self._client.get(path, TablePage, schema=schema, table=table, after=after, limit=PAGE)
            found += page.items
            after = page.next
            if after is None:
                return page.model_copy(update={"items": found})

    def transforms(self) -> TransformList:
        return self._client.get("/transforms", TransformList)


class RemoteAccess:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create_token(self, new: NewToken) -> CreatedToken:
        return self._client.send("POST", "/tokens", CreatedToken, new)

    def tokens(self) -> Iterator[TokenBody]:
        after: str | None = ""
        while after is not None:
            page = self._client.get("/tokens", TokenPage, after=after, limit=PAGE)
            yield from page.items
            after = page.next

    def revoke_token(self, name: str) -> None:
        if not name:
            raise NotFound("give the name of a token")
        self._client.delete(f"/tokens/{quote(name, safe='')}")

    def audit(self, filters: AuditFilters) -> Iterator[AuditBody]:
        query = {**filters._asdict(), "since": filters.since.isoformat() if filters.since else None}
        before: int | None = None
        while True:
            page = self._client.get("/audit", AuditPage, **query, before=before, limit=PAGE)
            yield from page.items
            before = page.next
            if before is None:
                return


LOOPBACK = ("localhost", "127.0.0.1", "::1")


def examine_api(settings: Settings) -> DoctorReport:
    return DoctorReport.of(list(_diagnoses(settings)))


def _diagnoses(settings: Settings) -> Iterator[Diagnosis]:
    url = settings.api_url or ""
    token = settings.token.get_secret_value() if settings.token else None
    with Client(url, token) as client:
        try:
            client.get_text("/health/live")
        except VitrineError as exc:
            yield Diagnosis("API", "error", str(exc), "check --api or VITRINE_API_URL")
            return
        yield Diagnosis("API", "ok", f"{url} answers")
        try:
            invalid = [one for page in RemoteDefinitions(client).pages(EVERY) for one in page.invalid]
        except VitrineError as exc:
            yield Diagnosis("token", "error", str(exc), "set VITRINE_TOKEN, or give --token-file")
        else:
            yield _of_token(url, token)
            yield from of_definitions((one.name, one.reason) for one in invalid)
        try:
            client.get_text("/health")
            yield Diagnosis("health", "ok", "the database answers, and a runner is active")
        except VitrineError as exc:
            yield Diagnosis("health", "error", str(exc), "run `vitrine doctor` on the machine of the API")


def _of_token(url: str, token: str | None) -> Diagnosis:
    parts = urlsplit(url)
    if token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
        return Diagnosis("token", "warning", "it is sent without encryption", "use an https:// address")
    return Diagnosis("token", "ok", "pipelines can be read" if token else "none is given, and none is needed to read")
