"""Bodies about runs, requests, status, figures over runs, and the state of a pipeline's reads."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitrine.core.checks import Severity
from vitrine.core.status import RunStatus, Status
from vitrine.definition.pipeline import FreshnessCovers, Pipeline, Run, Verdict
from vitrine.operations.bodies.checks import ComparisonBody, ResentBody
from vitrine.operations.bodies.common import CHECK_EXAMPLE, ID, MANAGED_BY_EXAMPLE, REQUEST_ID, RUN_EXAMPLE, example
from vitrine.operations.bodies.filters import LATE_CAUSE, LATE_REASON, STALE, STALE_AT
from vitrine.operations.bodies.pipelines import (
    COVERS,
    LAST_ERROR,
    MANAGED_BY,
    POSTPONED,
    VERDICT,
    VERIFIED_UNTIL,
    ErrorBody,
    KeyComparisonBody,
    ManagedByBody,
    ReconciliationBody,
    ReplayBody,
)
from vitrine.store.history import Request, RequestState
from vitrine.store.schedules import Upstream
from vitrine.store.state import StoredState

if TYPE_CHECKING:
    from vitrine.explain import Lateness


class CheckResultBody(BaseModel):
    """What one check has found in the rows of a run."""

    model_config = example(CHECK_EXAMPLE)

    name: str
    type: str
    severity: Severity = Field(description="fail: the rows were not published. warn: they were.")
    passed: bool
    rows: int = Field(description="Rows that break the check; of row_count, the rows of the load.")
    keys: list[str] = Field(description="Keys of some of these rows; empty if the settings hide keys in errors.")
    text: str | None = Field(description="What is wrong, in one sentence; null if the check has passed.")


class RunBody(BaseModel):
    """One attempt at a pipeline."""

    model_config = example(RUN_EXAMPLE)

    id: int
    request_id: UUID | None
    attempt: int
    trigger: str = Field(description="api, cli, schedule or chain.")
    due_at: datetime | None = Field(description="The due time that caused it; null for a run by request.")
    kind: str = Field(
        description="full or incremental, by the pipeline's mode; or rollback, backfill, reconcile, replay or resend."
    )
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None = Field(description="null during the run.")
    seconds: float | None
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    rows_repeated: int = Field(description="Rows skipped because their key occurred again; see on_duplicate_key.")
    batches: int
    rows_expected: int | None = Field(description="Estimate of the source's query planner; null when there is none.")
    rows_per_second: float | None
    lane: str | None = Field(
        description="How rows were moved: copy (not decoded), rows or frames; null until the run is planned."
    )
    slowest_batch_seconds: float | None
    error_code: str | None
    error_message: str | None
    result: ComparisonBody | ReconciliationBody | ReplayBody | ResentBody | KeyComparisonBody | None = Field(
        description="What a reconcile, a replay, a resend or a comparison of keys has found; null for other runs, and"
        " until then."
    )
    checks: list[CheckResultBody] | None = Field(
        default=None, description="What the pipeline's checks have found in its rows; null: no row was checked."
    )
    runner: str

    @classmethod
    def of(cls, run: Run) -> Self:
        # without validation: a page has up to 200 of them, and they come from the store
        fields: dict[str, Any] = {**vars(run), "result": None if run.result is None else _result_of(run.result)}
        if run.checks is not None:
            fields["checks"] = [CheckResultBody.model_construct(**one) for one in run.checks]
        return cls.model_construct(**fields, seconds=run.seconds, rows_per_second=run.rows_per_second)


_RESULTS = {
    "replayed": ReplayBody,
    "resent": ResentBody,
    "deep": ReconciliationBody,
    "keys_compared": KeyComparisonBody,
}
"""The results by a field that only they have."""


def _result_of(stored: dict[str, Any]) -> BaseModel:
    found = next((body for name, body in _RESULTS.items() if name in stored), ComparisonBody)
    return found.model_validate(stored)


class RunPage(BaseModel):
    model_config = example({"items": [RUN_EXAMPLE], "next": None})

    items: list[RunBody]
    next: int | None = Field(description="Give it as `before` for the next page; null on the last page.")


class LogLineBody(BaseModel):
    """One line of a run's log."""

    at: datetime
    level: Literal["debug", "info", "warning", "error", "critical"]
    action: str | None = Field(description="A stable word for programs; null for lines of libraries.")
    text: str
    fields: dict[str, Any] = Field(description="Figures and ids of the line, without those of the run itself.")


class RunLogBody(BaseModel):
    """The last lines of a run, oldest first."""

    model_config = example(
        {
            "run_id": 42,
            "pipeline": "top_genres",
            "lines": [
                {
                    "at": "2025-01-01T12:00:01.5Z",
                    "level": "info",
                    "action": "batch_written",
                    "text": "batch written",
                    "fields": {"batch": 1, "rows_read": 26, "rows_written": 26, "batch_seconds": 0.02},
                }
            ],
            "dropped": 0,
        }
    )

    run_id: int
    pipeline: str
    lines: list[LogLineBody] = Field(
        description="At most 200 lines and 64 KB. Empty: the run has just started, or its runner was killed at once."
    )
    dropped: int = Field(description="Earlier lines that are not kept.")


class Progress(BaseModel):
    rows_read: int
    rows_expected: int | None
    percent: float | None = Field(description="Of rows_expected; null when there is no estimate.")
    rows_per_second: float | None
    seconds_left: float | None = Field(description="From the estimate and the rate so far; null when unknown.")

    @classmethod
    def of(cls, run: Run) -> Self:
        percent = min(100.0, round(100 * run.rows_read / run.rows_expected, 1)) if run.rows_expected else None
        return cls(
            rows_read=run.rows_read,
            rows_expected=run.rows_expected,
            percent=percent,
            rows_per_second=run.rows_per_second,
            seconds_left=run.seconds_left,
        )


class UpstreamBody(BaseModel):
    """A pipeline that another one runs after."""

    model_config = example({"name": "film_dim", "succeeded_at": "2025-01-01T12:00:00Z"})

    name: str
    succeeded_at: datetime | None = Field(
        description="Its last success, which counts for the next wave; null: none since the last wave started a run."
    )


class StatusBody(BaseModel):
    """The status of a pipeline, its requests, its lease and its newest run."""

    model_config = example(
        {
            "id": ID,
            "pipeline": "top_genres",
            "status": "RUNNING",
            "status_since": "2025-01-01T12:00:00Z",
            "enabled": True,
            "request_id": REQUEST_ID,
            "requested_kind": "run",
            "rerun_request_id": None,
            "rerun_kind": None,
            "requested_at": "2025-01-01T12:00:00Z",
            "attempt": 1,
            "next_due_at": "2025-01-01T12:05:00Z",
            "next_attempt_at": None,
            "postponed": 0,
            "last_error": None,
            "managed_by": MANAGED_BY_EXAMPLE,
            "fresh_as_of": "2025-01-01T11:55:00Z",
            "freshness_covers": "everything",
            "stale": False,
            "stale_at": "2025-01-01T12:05:00Z",
            "late_cause": None,
            "late_reason": None,
            "verified_until": "2025-01-01T11:30:00Z",
            "verdict": "equal",
            "verdict_at": "2025-01-01T11:30:05Z",
            "waiting": None,
            "upstreams": [],
            "runners": 1,
            "lease_owner": "worker-1",
            "lease_expires_at": "2025-01-01T12:00:30Z",
            "progress": {
                "rows_read": 13,
                "rows_expected": 26,
                "percent": 50.0,
                "rows_per_second": 6.5,
                "seconds_left": 2.0,
            },
            "last_run": RUN_EXAMPLE | {"status": "RUNNING", "finished_at": None, "seconds": None, "rows_read": 13},
        }
    )

    id: UUID
    pipeline: str
    status: Status
    status_since: datetime | None = Field(description="When the status last changed; null: not since it is recorded.")
    enabled: bool
    request_id: UUID | None = Field(description="The request that is pending, running or paused.")
    requested_kind: str | None = Field(
        description="run, full, rollback, backfill, reconcile, replay or resend; null when there is no request."
    )
    rerun_request_id: UUID | None = Field(description="The request that follows, for example one made during the run.")
    rerun_kind: str | None = Field(description="The same for the request that follows.")
    requested_at: datetime | None
    attempt: int
    next_due_at: datetime | None = Field(
        description="null: no schedule, or disabled. A paused or failed pipeline does not start then."
    )
    next_attempt_at: datetime | None = Field(description="null: as soon as a runner is free.")
    postponed: int = Field(description=POSTPONED)
    last_error: ErrorBody | None = Field(description=LAST_ERROR)
    managed_by: ManagedByBody | None = Field(default=None, description=MANAGED_BY)
    fresh_as_of: datetime | None = Field(
        description="The mart contains every change committed before this time, of the kinds in `freshness_covers`;"
        " null before the first success."
    )
    freshness_covers: FreshnessCovers = Field(description=COVERS)
    stale: bool = Field(description=STALE)
    stale_at: datetime | None = Field(description=STALE_AT)
    late_cause: str | None = Field(default=None, description=LATE_CAUSE)
    late_reason: str | None = Field(default=None, description=LATE_REASON)
    verified_until: datetime | None = Field(description=VERIFIED_UNTIL)
    verdict: Verdict | None = Field(description=VERDICT)
    verdict_at: datetime | None = Field(description="When that one ended.")
    waiting: str | None = Field(
        description="Why nothing happens at the moment, in one sentence: no runner is alive, the next attempt is later,"
        " the pipeline is paused …; null during a run, and when nothing is expected."
    )
    upstreams: list[UpstreamBody] = Field(
        default_factory=list[UpstreamBody], description="The pipelines of `after`, and what the next wave waits for."
    )
    runners: int = Field(description="Runner processes seen within the last 15 seconds; 0: nothing can run.")
    lease_owner: str | None
    lease_expires_at: datetime | None
    progress: Progress | None = Field(description="Progress of the current run; null when there is none.")
    last_run: RunBody | None = Field(description="The newest run; null before the first.")

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        run: Run | None,
        *,
        zone: tzinfo,
        waiting: str | None,
        late: "Lateness | None",
        runners: int,
        upstreams: Sequence[Upstream] = (),
    ) -> Self:
        return cls(
            id=pipeline.id,
            pipeline=pipeline.name,
            status=pipeline.status,
            status_since=pipeline.status_since,
            enabled=pipeline.definition.enabled,
            request_id=pipeline.request_id,
            requested_kind=pipeline.request.kind if pipeline.request else None,
            rerun_request_id=pipeline.rerun_request_id,
            rerun_kind=pipeline.rerun.kind if pipeline.rerun else None,
            requested_at=pipeline.requested_at,
            attempt=pipeline.attempt,
            next_due_at=pipeline.next_due_at,
            next_attempt_at=pipeline.next_attempt_at,
            postponed=pipeline.postponed,
            last_error=ErrorBody.of(pipeline.last_error),
            managed_by=ManagedByBody.of(pipeline.file),
            fresh_as_of=pipeline.fresh_as_of,
            freshness_covers=pipeline.freshness_covers,
            stale=pipeline.is_stale(zone),
            stale_at=pipeline.stale_at(zone),
            late_cause=late.cause if late else None,
            late_reason=late.sentence if late else None,
            verified_until=pipeline.verification.until,
            verdict=pipeline.verification.verdict,
            verdict_at=pipeline.verification.at,
            waiting=waiting,
            upstreams=[UpstreamBody(name=one.name, succeeded_at=one.succeeded_at) for one in upstreams],
            runners=runners,
            lease_owner=pipeline.lease_owner,
            lease_expires_at=pipeline.lease_expires_at,
            progress=Progress.of(run) if run and run.status is RunStatus.RUNNING else None,
            last_run=RunBody.of(run) if run else None,
        )


class RequestBody(BaseModel):
    """The state of a run request."""

    model_config = example(
        {
            "request_id": REQUEST_ID,
            "pipeline_id": ID,
            "pipeline": "top_genres",
            "state": "succeeded",
            "promised_at": "2025-01-01T12:00:00Z",
            "run": RUN_EXAMPLE,
        }
    )

    request_id: UUID
    pipeline_id: UUID
    pipeline: str
    state: RequestState
    promised_at: datetime | None = Field(
        description="When the request has succeeded, every change committed before this time is in the mart; null while"
        " another run must end first."
    )
    run: RunBody | None = Field(description="The newest run of this request; null before the first.")

    @classmethod
    def of(cls, request: Request, pipeline: Pipeline) -> Self:
        return cls(
            request_id=request.id,
            pipeline_id=pipeline.id,
            pipeline=pipeline.name,
            state=request.state,
            promised_at=request.promised_at,
            run=RunBody.of(request.run) if request.run else None,
        )


EXAMPLE = {
    "pipeline": "top_genres",
    "runs": 100,
    "since": "2025-01-01T04:00:00Z",
    "by_status": {"SUCCESS": 98, "FAILED": 2},
    "rows_read": 2600,
    "rows_written": 31,
    "rows_deleted": 0,
    "rows_rejected": 0,
    "seconds_p50": 0.05,
    "seconds_p95": 0.21,
    "seconds_max": 1.4,
    "last_success_at": "2025-01-01T12:00:01.5Z",
    "last_failure_at": "2025-01-01T09:35:02Z",
}


class Statistics(BaseModel):
    """Figures over the newest runs of a pipeline, or over those of the last days."""

    model_config = example(EXAMPLE)

    pipeline: str
    runs: int = Field(description="How many runs the figures cover, the current one included.")
    since: datetime | None = Field(description="Start of the oldest of them; null if there are none.")
    by_status: dict[str, int] = Field(description="Runs by their status; one that does not occur is left out.")
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    seconds_p50: float | None = Field(description="Of the runs that succeeded; null if there are none.")
    seconds_p95: float | None
    seconds_max: float | None
    last_success_at: datetime | None = Field(
        description="End of the newest success, also if the figures do not cover it; null if the history has none."
    )
    last_failure_at: datetime | None = Field(description="End of the newest run among them that failed.")


class StateBody(BaseModel):
    """The checkpoint of a pipeline, and its unfinished full load."""

    model_config = example(
        {
            "pipeline": "film_dim",
            "cursor": ["2025-01-01 11:59:00.123456+00", "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55"],
            "last_processed_value": "2025-01-01 11:59:00.123456+00",
            "last_processed_id": "8f2b3c1e-0d5a-4f0e-9a44-5f0c6a523a55",
            "pending_cursor": None,
            "pending_since": None,
            "generation": 0,
            "generation_open": False,
            "generation_cursor": None,
            "generation_rows": 0,
            "batch_seq": 7,
            "horizon_lag_seconds": 0.0,
            "horizon_blocker": None,
            "updated_at": "2025-01-01T12:00:00Z",
        }
    )

    pipeline: str
    cursor: tuple[str, ...] | None = Field(
        description="The target contains every row up to here; null before the first run."
    )
    last_processed_value: str | None
    last_processed_id: str | None = Field(description="null: the next run reads last_processed_value again.")
    pending_cursor: tuple[str, ...] | None = Field(description="Becomes the cursor once older transactions have ended.")
    pending_since: datetime | None
    generation: int = Field(description="Full loads started so far.")
    generation_open: bool = Field(description="A full load is unfinished.")
    generation_cursor: tuple[str, ...] | None
    generation_rows: int
    batch_seq: int
    horizon_lag_seconds: float | None = Field(
        description="Age of the oldest transaction open in the last incremental run; null when the run does not wait."
    )
    horizon_blocker: str | None = Field(
        description="The session whose transaction holds the checkpoint back for longer than `horizon_margin`, or null."
    )
    updated_at: datetime | None

    @classmethod
    def of(cls, pipeline: Pipeline, state: StoredState) -> Self:
        cursor = state.position.cursor or ()
        return cls(
            pipeline=pipeline.name,
            cursor=state.position.cursor,
            last_processed_value=cursor[0] if cursor else None,
            last_processed_id=cursor[1] if len(cursor) > 1 else None,
            pending_cursor=state.position.pending_cursor,
            pending_since=state.position.pending_since,
            generation=state.generation,
            generation_open=state.generation_open,
            generation_cursor=state.generation_cursor,
            generation_rows=state.generation_rows,
            batch_seq=state.batch_seq,
            horizon_lag_seconds=state.horizon_lag_seconds,
            horizon_blocker=state.horizon_blocker,
            updated_at=state.updated_at,
        )


class StateChange(BaseModel):
    """Where the next run reads from."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"action": "rewind", "value": "2025-01-01 00:00:00+00"}, {"action": "reset"}],
            "allOf": [
                {
                    "oneOf": [
                        {"properties": {"action": {"const": "reset"}, "value": {"type": "null"}}},
                        {
                            "required": ["value"],
                            "properties": {"action": {"const": "rewind"}, "value": {"type": "string"}},
                        },
                    ]
                }
            ],
        },
    )

    action: Literal["reset", "rewind"] = Field(
        description="reset: forget the checkpoint and an unfinished load; the next run reads everything. rewind: read"
        " again from the given value on, which is included."
    )
    value: str | None = Field(
        default=None,
        max_length=200,
        description="For rewind: a value of the cursor column in its own type, not after the present checkpoint.",
        examples=["2025-01-01 00:00:00+00"],
    )

    @model_validator(mode="after")
    def _value_belongs_to_rewind(self) -> Self:
        if (self.value is None) == (self.action == "rewind"):
            raise ValueError("give a value for rewind, and none for reset")
        return self
