"""The backend on the database: calls the functions of the service, which import what they need when they are called."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from vitrine.cli.backends import Backend
from vitrine.operations.context import Context, local_caller
from vitrine.postgres import Connection, connect
from vitrine.settings import Settings

if TYPE_CHECKING:
    from vitrine.definition.model import Definition, StateChoice
    from vitrine.operations.bodies.access import AuditBody, CreatedToken, NewToken, TokenBody
    from vitrine.operations.bodies.checks import (
        ComparisonBody,
        PreviewBody,
        RejectPage,
        ReportBody,
        ResendBody,
        TraceBody,
    )
    from vitrine.operations.bodies.control import Paused, Reloaded, Requested, RunRequestBody
    from vitrine.operations.bodies.filters import Filters, RequestedRuns, RunManyBody
    from vitrine.operations.bodies.overview import TablePage, TransformList
    from vitrine.operations.bodies.pipelines import PipelineBody, PipelinePage, ReconcileBody, StoredPipelineBody
    from vitrine.operations.bodies.plans import AppliedBody, ApplyBody, PlanBody
    from vitrine.operations.bodies.runs import RequestBody, RunLogBody, RunPage, StateBody, StateChange, StatusBody
    from vitrine.store.access import AuditFilters

PAGE = 500


def local_context(settings: Settings) -> Context:
    """A context that opens a connection per call."""

    def connection() -> AbstractContextManager[Connection]:
        return connect(settings.store_url, name="vitrine:cli")

    return Context(settings, local_caller(), connection)


def local_backend(settings: Settings) -> Backend:
    context = local_context(settings)
    return Backend(
        settings,
        LocalDefinitions(context),
        LocalControl(context),
        LocalHistory(context),
        LocalChecks(context),
        LocalSources(context),
        LocalAccess(context),
    )


class LocalDefinitions:
    def __init__(self, context: Context) -> None:
        self._context = context

    def pages(self, filters: "Filters") -> "Iterator[PipelinePage]":
        from vitrine.operations import definitions

        after: str | None = ""
        while after is not None:
            page = definitions.list_page(self._context, filters, after=after, limit=PAGE)
            yield page
            after = page.next

    def get(self, key: str) -> "PipelineBody":
        from vitrine.operations import definitions

        return definitions.get(self._context, key)

    def set_enabled(self, key: str, enabled: bool) -> "StoredPipelineBody":
        from vitrine.operations import definitions

        return definitions.set_enabled(self._context, key, enabled)

    def delete(self, key: str, *, force: bool) -> None:
        from vitrine.operations import definitions

        definitions.delete(self._context, key, force=force)

    def apply(self, body: "ApplyBody") -> "AppliedBody":
        from vitrine.operations import plans

        return plans.apply_documents(self._context, body)


class LocalControl:
    def __init__(self, context: Context) -> None:
        self._context = context

    def run(self, key: str, body: "RunRequestBody") -> "Requested":
        from vitrine.operations import control

        return control.run(self._context, key, body)

    def run_many(self, body: "RunManyBody") -> "RequestedRuns":
        from vitrine.operations import many

        return many.run_many(self._context, body)

    def resume(self, key: str) -> "Requested":
        from vitrine.operations import control

        return control.resume(self._context, key)

    def roll_back(self, key: str) -> "Requested":
        from vitrine.operations import control

        return control.roll_back(self._context, key)

    def reconcile(self, key: str, body: "ReconcileBody") -> "Requested":
        from vitrine.operations import control

        return control.request_reconcile(self._context, key, body)

    def replay_rejects(self, key: str) -> "Requested":
        from vitrine.operations import control

        return control.replay_rejects(self._context, key)

    def resend(self, key: str, body: "ResendBody") -> "Requested":
        from vitrine.operations import control

        return control.resend(self._context, key, body)

    def pause(self, key: str) -> "Paused":
        from vitrine.operations import control

        return control.pause(self._context, key)

    def reload(self, key: str) -> "Reloaded":
        from vitrine.operations import control

        return control.reload(self._context, key)


class LocalHistory:
    def __init__(self, context: Context) -> None:
        self._context = context

    def status(self, key: str) -> "StatusBody":
        from vitrine.operations import history

        return history.status(self._context, key)

    def state(self, key: str) -> "StateBody":
        from vitrine.operations import history

        return history.state(self._context, key)

    def change_state(self, key: str, change: "StateChange") -> "StateBody":
        from vitrine.operations import history

        return history.change_state(self._context, key, change)

    def list_runs(self, key: str, *, limit: int) -> "RunPage":
        from vitrine.operations import history

        return history.list_runs(self._context, key, limit=limit)

    def run_log(self, key: str, run_id: int) -> "RunLogBody":
        from vitrine.operations import history

        return history.run_log(self._context, key, run_id)

    def request(self, request_id: UUID, wait: timedelta) -> "RequestBody":
        from vitrine.operations import history

        return history.request(self._context, request_id, wait)


class LocalChecks:
    def __init__(self, context: Context) -> None:
        self._context = context

    def validate(self, subject: "str | Definition") -> "ReportBody":
        from vitrine.operations import checks

        return checks.validate(self._context, subject)

    def preview(self, subject: "str | Definition", *, limit: int) -> "PreviewBody":
        from vitrine.operations import checks

        return checks.preview(self._context, subject, limit=limit)

    def plan(
        self, subject: "str | Definition", *, state: "StateChoice | None" = None, seconds: float | None = None
    ) -> "PlanBody":
        from vitrine.operations import plans

        return plans.plan_change(self._context, subject, state=state, seconds=seconds)

    def compare(self, key: str, *, quick: bool) -> "ComparisonBody":
        from vitrine.operations import checks

        return checks.compare(self._context, key, with_values=not quick)

    def rejects(self, key: str, *, limit: int, with_rows: bool = False) -> "RejectPage":
        from vitrine.operations import checks

        return checks.rejects(self._context, key, limit=limit, with_rows=with_rows)

    def trace(self, key: str, row_key: "Sequence[str]") -> "TraceBody":
        from vitrine.operations import checks

        return checks.trace(self._context, key, row_key)


class LocalSources:
    def __init__(self, context: Context) -> None:
        self._context = context

    def tables(self, source: str, *, schema: str | None, table: str | None) -> "TablePage":
        from vitrine.operations import checks

        return checks.list_tables(self._context, source, schema=schema, table=table, limit=100_000)

    def transforms(self) -> "TransformList":
        from vitrine.operations import checks

        return checks.list_transforms(self._context)


class LocalAccess:
    def __init__(self, context: Context) -> None:
        self._context = context

    def create_token(self, new: "NewToken") -> "CreatedToken":
        from vitrine.operations import access

        return access.create_token(self._context, new)

    def tokens(self) -> "Iterator[TokenBody]":
        from vitrine.operations import access

        after: str | None = ""
        while after is not None:
            page = access.list_tokens(self._context, after=after, limit=PAGE)
            yield from page.items
            after = page.next

    def revoke_token(self, name: str) -> None:
        from vitrine.operations import access

        access.revoke_token(self._context, name)

    def audit(self, filters: "AuditFilters") -> "Iterator[AuditBody]":
        from vitrine.operations import access

        return access.export_audit_log(self._context, filters)
