"""What the commands can ask for; the answers are the bodies of the API, wherever they come from."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Protocol
from uuid import UUID

from vitrine.definition.model import Definition, StateChoice
from vitrine.operations.bodies.access import AuditBody, CreatedToken, NewToken, TokenBody
from vitrine.operations.bodies.checks import ComparisonBody, PreviewBody, RejectPage, ReportBody, ResendBody, TraceBody
from vitrine.operations.bodies.control import Paused, Reloaded, Requested, RunRequestBody
from vitrine.operations.bodies.filters import Filters, RequestedRuns, RunManyBody
from vitrine.operations.bodies.overview import TablePage, TransformList
from vitrine.operations.bodies.pipelines import PipelineBody, PipelinePage, ReconcileBody, StoredPipelineBody
from vitrine.operations.bodies.plans import AppliedBody, ApplyBody, PlanBody
from vitrine.operations.bodies.runs import RequestBody, RunLogBody, RunPage, StateBody, StateChange, StatusBody
from vitrine.store.access import AuditFilters


class Definitions(Protocol):
    """Definitions of pipelines."""

    def pages(self, filters: Filters) -> Iterator[PipelinePage]:
        """Every pipeline that passes the filters, in the order of names."""
        ...

    def get(self, key: str) -> PipelineBody: ...

    def set_enabled(self, key: str, enabled: bool) -> StoredPipelineBody: ...

    def delete(self, key: str, *, force: bool) -> None: ...

    def apply(self, body: ApplyBody) -> AppliedBody: ...


class Control(Protocol):
    """Requests for runs, and their end."""

    def run(self, key: str, body: RunRequestBody) -> Requested: ...

    def run_many(self, body: RunManyBody) -> RequestedRuns: ...

    def resume(self, key: str) -> Requested: ...

    def roll_back(self, key: str) -> Requested: ...

    def reconcile(self, key: str, body: ReconcileBody) -> Requested: ...

    def replay_rejects(self, key: str) -> Requested: ...

    def resend(self, key: str, body: ResendBody) -> Requested: ...

    def pause(self, key: str) -> Paused: ...

    def reload(self, key: str) -> Reloaded: ...


class History(Protocol):
    """Status, state and history."""

    def status(self, key: str) -> StatusBody: ...

    def state(self, key: str) -> StateBody: ...

    def change_state(self, key: str, change: StateChange) -> StateBody: ...

    def list_runs(self, key: str, *, limit: int) -> RunPage: ...

    def run_log(self, key: str, run_id: int) -> RunLogBody: ...

    def request(self, request_id: UUID, wait: timedelta) -> RequestBody:
        """The request as soon as it has ended, or as it is after that time."""
        ...


class Checks(Protocol):
    """Questions to source and target that change nothing; of a stored pipeline, or of a definition."""

    def validate(self, subject: str | Definition) -> ReportBody: ...

    def preview(self, subject: str | Definition, *, limit: int) -> PreviewBody: ...

    def plan(
        self, subject: str | Definition, *, state: StateChoice | None = None, seconds: float | None = None
    ) -> PlanBody:
        """What it would do to its mart; `seconds`: how long rows are compared at most."""
        ...

    def compare(self, key: str, *, quick: bool) -> ComparisonBody:
        """`quick`: counts and control column only; otherwise every value."""
        ...

    def rejects(self, key: str, *, limit: int, with_rows: bool = False) -> RejectPage: ...

    def trace(self, key: str, row_key: Sequence[str]) -> TraceBody: ...


class Sources(Protocol):
    """What pipelines can be made of."""

    def tables(self, source: str, *, schema: str | None, table: str | None) -> TablePage:
        """All tables at once."""
        ...

    def transforms(self) -> TransformList: ...


class Access(Protocol):
    """Access tokens, and the audit log; for administrators."""

    def create_token(self, new: NewToken) -> CreatedToken: ...

    def tokens(self) -> Iterator[TokenBody]:
        """Every token that is not revoked, in the order of names."""
        ...

    def revoke_token(self, name: str) -> None: ...

    def audit(self, filters: AuditFilters) -> Iterator[AuditBody]:
        """Every entry, newest first."""
        ...
