"""Bodies of requests and responses."""

from copy import copy
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Optional, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from vitrine import plugins
from vitrine.api.problems import PlaceBody
from vitrine.flow.rows import Finding
from vitrine.model import BatchSize, Definition, Duration, FreshnessCovers, LastError, Options, Pipeline, Run
from vitrine.revisions import Reload, StateChoice
from vitrine.status import RunStatus, Status
from vitrine.store.runs import Request, RequestState
from vitrine.store.state import StoredState

ID = "5f0c6a52-3a55-4f0e-9a44-0d3f4f5f3c1e"
REQUEST_ID = "0b9d9b0e-8a53-4c3b-8f0b-2f9f3a1c7d55"

DEFINITION_EXAMPLE: dict[str, Any] = {
    "name": "top_genres",
    "description": "Films per genre",
    "source_query": (
        "SELECT g.id, g.name, count(gf.film_work_id) AS films FROM content.genre g"
        " LEFT JOIN content.genre_film_work gf ON gf.genre_id = g.id GROUP BY g.id, g.name"
    ),
    "target_table": "analytics.top_genres",
    "key_columns": ["id"],
    "schedule_interval": "5m",
}
INCREMENTAL_EXAMPLE: dict[str, Any] = {
    "name": "film_dim",
    "source_query": "SELECT id, title, rating, modified FROM content.film_work",
    "target_table": "analytics.film_dim",
    "mode": "incremental",
    "incremental_key": "modified",
    "incremental_id_key": "id",
    "key_columns": ["id"],
}
RUN_EXAMPLE: dict[str, Any] = {
    "id": 42,
    "request_id": REQUEST_ID,
    "attempt": 1,
    "trigger": "api",
    "due_at": None,
    "kind": "full",
    "status": "SUCCESS",
    "started_at": "2025-01-01T12:00:00Z",
    "finished_at": "2025-01-01T12:00:01.5Z",
    "seconds": 1.5,
    "rows_read": 26,
    "rows_written": 26,
    "rows_deleted": 0,
    "rows_rejected": 0,
    "rows_repeated": 0,
    "batches": 1,
    "rows_expected": 26,
    "rows_per_second": 17.3,
    "lane": "copy",
    "slowest_batch_seconds": 0.02,
    "error_code": None,
    "error_message": None,
    "runner": "worker-1",
}
_TIMES = {"created_at": "2025-01-01T11:00:00Z", "updated_at": "2025-01-01T12:00:00Z"}


def _example(value: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [value]})


FINDING_EXAMPLE: dict[str, Any] = {
    "code": "DELETES",
    "text": "rows that are deleted at the source stay in the mart: an incremental run reads only rows that exist",
    "column": None,
    "place": None,
    "note": True,
}

PIPELINE_EXAMPLE: dict[str, Any] = {
    "id": ID,
    "status": "IDLE",
    "config_version": 1,
    "fresh_as_of": "2025-01-01T12:00:00Z",
    "freshness_covers": "everything",
    "next_due_at": "2025-01-01T12:05:00Z",
    "postponed": 0,
    "last_error": None,
    **Definition.model_validate(DEFINITION_EXAMPLE).model_dump(mode="json"),
    **_TIMES,
}


_COVERS = "An incremental pipeline does not see deleted rows: its mart keeps them until the state is reset."


_POSTPONED = "How many scheduled runs in a row failed for a transient reason and were postponed; 0 after a success."
_LAST_ERROR = "Why the last run failed; null after a success."


class ErrorBody(BaseModel):
    """The error that ended a run."""

    model_config = _example(
        {
            "code": "TRANSIENT",
            "message": "source 'default': connection refused",
            "at": "2025-01-01T12:00:00Z",
        }
    )

    code: str
    message: str
    at: datetime

    @classmethod
    def of(cls, error: LastError | None) -> Self | None:
        return cls(code=error.code, message=error.message, at=error.at) if error else None


class PipelineBody(Definition):
    """A pipeline: its definition, and the fields that the store adds."""

    model_config = _example(PIPELINE_EXAMPLE)

    id: UUID
    status: Status
    config_version: int = Field(description="Increases with every change; also the ETag, for If-Match.")
    fresh_as_of: datetime | None = Field(
        description="The mart contains every change committed before this time, of the kinds in `freshness_covers`: the"
        " start of its last read, or of the first read of a full load. null before the first success."
    )
    freshness_covers: FreshnessCovers = Field(description=_COVERS)
    next_due_at: datetime | None = Field(description="null: no schedule, or disabled.")
    postponed: int = Field(description=_POSTPONED)
    last_error: ErrorBody | None = Field(description=_LAST_ERROR)
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        return cls(
            id=pipeline.id,
            status=pipeline.status,
            config_version=pipeline.config_version,
            fresh_as_of=pipeline.fresh_as_of,
            freshness_covers=pipeline.freshness_covers,
            next_due_at=pipeline.next_due_at,
            postponed=pipeline.postponed,
            last_error=ErrorBody.of(pipeline.last_error),
            created_at=pipeline.created_at,
            updated_at=pipeline.updated_at,
            **dict(pipeline.definition),
        )


class FindingBody(BaseModel):
    """A remark of the source or the target about a definition."""

    model_config = _example(FINDING_EXAMPLE)

    code: str
    text: str
    column: str | None = Field(description="The column of the rows that it concerns.")
    place: PlaceBody | None = Field(description="The place in the query that it concerns.")
    note: bool = Field(description="true: it holds for every such pipeline and is not one of the `warnings`.")

    @classmethod
    def of(cls, finding: Finding) -> Self:
        place = None if finding.place is None else PlaceBody.of(finding.place)
        return cls(code=finding.code, text=finding.text, column=finding.column, place=place, note=finding.note)


class StoredPipelineBody(PipelineBody):
    """A pipeline that was created or changed, and what source and target report about it."""

    model_config = _example(PIPELINE_EXAMPLE | {"warnings": [], "findings": []})

    warnings: list[str] = Field(
        default_factory=list[str],
        description="Findings that do not prevent a run. `not validated: …`: source or target did not respond.",
    )
    findings: list[FindingBody] = Field(
        default_factory=list[FindingBody], description="The same with codes, columns and places, and the notes."
    )


class PipelinePage(BaseModel):
    model_config = _example({"items": [PIPELINE_EXAMPLE], "next": None})

    items: list[PipelineBody]
    next: str | None = Field(description="Give it as `after` for the next page; null on the last page.")


class _PartialDefinition(BaseModel):
    """Some fields of a pipeline; the others stay as they are."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"batch_size": 10_000, "schedule_interval": "1h"}]}
    )

    state: StateChoice | None = Field(
        default=None,
        description="Keep or reset the checkpoint when the query, cursor, key or target changes.",
    )


def _optional(field: FieldInfo) -> Any:
    optional = copy(field)
    optional.default = None
    return (Optional[field.annotation], optional)  # noqa: UP045 – the annotation is a value here, not a type


if TYPE_CHECKING:

    class Change(_PartialDefinition): ...

else:
    # generated from Definition, so that a new field there is optional here
    Change = create_model(
        "Change",
        __base__=_PartialDefinition,
        __doc__=_PartialDefinition.__doc__,
        **{name: _optional(field) for name, field in Definition.model_fields.items() if name != "options"},
        # which of them belong to the pipeline is checked with the stored definition
        options=(Optional[plugins.every_option(Options)], None),  # noqa: UP045
    )


class RunOptionsBody(BaseModel):
    """Options of one run."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"allow_shrink": False}]})

    allow_shrink: bool = Field(
        default=False, description="Allow this full load to delete more of the mart than options.max_delete_ratio."
    )


class RunRequestBody(RunOptionsBody):
    """Options of one run, and what it reads."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "full", "allow_shrink": False}]})

    mode: Literal["full"] | None = Field(
        default=None,
        description="full: once, an incremental pipeline reads everything and removes what vanished at the source.",
    )


class Requested(BaseModel):
    model_config = _example({"request_id": REQUEST_ID, "status": "RUN_REQUESTED", "pipeline": "top_genres"})

    request_id: UUID = Field(description="GET /requests/{request_id} returns its state.")
    status: Status
    pipeline: str


class Paused(BaseModel):
    model_config = _example({"status": "PAUSED", "pipeline": "top_genres"})

    status: Status
    pipeline: str


class Reloaded(BaseModel):
    """When the stored configuration takes effect."""

    model_config = _example(
        {
            "pipeline": "top_genres",
            "status": "RUNNING",
            "config_version": 3,
            "applies": "next_batch",
            "batch_size": 1000,
            "max_rows_per_second": 5000,
            "pause_between_batches": "1s",
            "waiting": ["schedule_interval"],
        }
    )

    pipeline: str
    status: Status
    config_version: int
    applies: Literal["next_batch", "next_run"] = Field(
        description="When the throttle takes effect; next_run: no run is active."
    )
    batch_size: BatchSize
    max_rows_per_second: int | None
    pause_between_batches: Duration
    waiting: list[str] = Field(description="Fields that changed since the run started; only the next run uses them.")

    @classmethod
    def of(cls, reload: Reload) -> Self:
        definition = reload.pipeline.definition
        return cls(
            pipeline=reload.pipeline.name,
            status=reload.pipeline.status,
            config_version=reload.pipeline.config_version,
            applies="next_batch" if reload.running else "next_run",
            batch_size=definition.batch_size,
            max_rows_per_second=definition.options.max_rows_per_second,
            pause_between_batches=definition.options.pause_between_batches,
            waiting=list(reload.waiting),
        )


class RunBody(BaseModel):
    """One attempt at a pipeline."""

    model_config = _example(RUN_EXAMPLE)

    id: int
    request_id: UUID | None
    attempt: int
    trigger: str = Field(description="api, cli or schedule.")
    due_at: datetime | None = Field(description="The due time that caused it; null for a run by request.")
    kind: str = Field(description="full or incremental, by the pipeline's mode; or rollback.")
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
    runner: str

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(**asdict(run), seconds=run.seconds, rows_per_second=run.rows_per_second)


class RunPage(BaseModel):
    model_config = _example({"items": [RUN_EXAMPLE], "next": None})

    items: list[RunBody]
    next: int | None = Field(description="Give it as `before` for the next page; null on the last page.")


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


class StatusBody(BaseModel):
    """The status of a pipeline, its requests, its lease and its newest run."""

    model_config = _example(
        {
            "id": ID,
            "pipeline": "top_genres",
            "status": "RUNNING",
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
            "fresh_as_of": "2025-01-01T11:55:00Z",
            "freshness_covers": "everything",
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
    enabled: bool
    request_id: UUID | None = Field(description="The request that is pending, running or paused.")
    requested_kind: str | None = Field(description="run or rollback; null when there is no request.")
    rerun_request_id: UUID | None = Field(description="The request that follows, for example one made during the run.")
    rerun_kind: str | None = Field(description="The same for the request that follows.")
    requested_at: datetime | None
    attempt: int
    next_due_at: datetime | None = Field(description="null: no schedule, or disabled.")
    next_attempt_at: datetime | None = Field(description="null: as soon as a runner is free.")
    postponed: int = Field(description=_POSTPONED)
    last_error: ErrorBody | None = Field(description=_LAST_ERROR)
    fresh_as_of: datetime | None = Field(
        description="The mart contains every change committed before this time, of the kinds in `freshness_covers`;"
        " null before the first success."
    )
    freshness_covers: FreshnessCovers = Field(description=_COVERS)
    lease_owner: str | None
    lease_expires_at: datetime | None
    progress: Progress | None = Field(description="Progress of the current run; null when there is none.")
    last_run: RunBody | None = Field(description="The newest run; null before the first.")

    @classmethod
    def of(cls, pipeline: Pipeline, run: Run | None) -> Self:
        return cls(
            id=pipeline.id,
            pipeline=pipeline.name,
            status=pipeline.status,
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
            fresh_as_of=pipeline.fresh_as_of,
            freshness_covers=pipeline.freshness_covers,
            lease_owner=pipeline.lease_owner,
            lease_expires_at=pipeline.lease_expires_at,
            progress=Progress.of(run) if run and run.status is RunStatus.RUNNING else None,
            last_run=RunBody.of(run) if run else None,
        )


class StateBody(BaseModel):
    """The checkpoint of a pipeline, and its unfinished full load."""

    model_config = _example(
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
        description="The session whose transaction holds the checkpoint back; null when there is none."
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


class RequestBody(BaseModel):
    """The state of a run request."""

    model_config = _example(
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


class Live(BaseModel):
    model_config = _example({"status": "ok"})

    status: str = "ok"


class Health(BaseModel):
    model_config = _example({"status": "ok", "database": "ok", "runners": 1, "detail": None})

    status: str = Field(description="ok, or unavailable.")
    database: str = Field(description="ok, or down.")
    runners: int = Field(description="Runner processes seen within the last 15 seconds.")
    detail: str | None = Field(default=None, description="What is wrong, and how to fix it.")
