"""The backend through the API of another machine."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID

from vitrine.cli.backends import Backend
from vitrine.cli.backends.http import Client
from vitrine.errors import NotFound, VitrineError
from vitrine.model import Definition, StateChoice
from vitrine.service.bodies.access import CreatedToken, NewToken, TokenBody, TokenPage
from vitrine.service.bodies.audit import AuditBody, AuditPage
from vitrine.service.bodies.checks import ComparisonBody, PreviewBody, RejectPage, ReportBody
from vitrine.service.bodies.control import Paused, Reloaded, Requested, RunRequestBody
from vitrine.service.bodies.files import AppliedBody, ApplyBody
from vitrine.service.bodies.filters import Filters
from vitrine.service.bodies.many import RequestedRuns, RunManyBody
from vitrine.service.bodies.pipelines import PipelineBody, PipelinePage, StoredPipelineBody
from vitrine.service.bodies.plans import PlanBody, StoredPlanBody
from vitrine.service.bodies.reconciliation import ReconcileBody
from vitrine.service.bodies.runs import RequestBody, RunLogBody, RunPage, StatusBody
from vitrine.service.bodies.sources import TablePage, TransformList
from vitrine.service.bodies.state import StateBody, StateChange
from vitrine.service.bodies.tracing import ResendBody, TraceBody
from vitrine.settings import Settings
from vitrine.store.audit import AuditFilters

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
