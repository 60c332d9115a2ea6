"""Bodies about pipelines, their definitions, and their deep reconciles."""

from datetime import datetime, tzinfo
from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from vitrine.core.rows import Finding
from vitrine.core.status import RunOptions, RunStatus, Status
from vitrine.definition.model import Definition
from vitrine.definition.pipeline import KEYS_KEPT, AppliedFile, FreshnessCovers, LastError, Pipeline, Verdict
from vitrine.errors import Place
from vitrine.operations.bodies.common import (
    FINDING_EXAMPLE,
    MANAGED_BY_EXAMPLE,
    NEWEST_RUN_EXAMPLE,
    example,
    pipeline_example,
)
from vitrine.operations.bodies.filters import LATE_CAUSE, LATE_REASON, STALE, STALE_AT
from vitrine.store.filters import NewestRun
from vitrine.store.history import StoredReport

VERIFIED_UNTIL = "The mart was proven equal to its source as of this time, by a deep reconcile; null: never."
VERDICT = "Of the last deep reconcile: equal, or different; null: there was none."


class ReconcileBody(BaseModel):
    """How to compare a mart with its source."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"deep": True}, {"repair": True}]})

    deep: StrictBool = Field(
        default=False,
        description="Find the keys that differ, and keep the report; otherwise figures are compared.",
    )
    repair: StrictBool = Field(
        default=False,
        description="The same, then correct them: missing and different keys are read and written again, extra ones are"
        " deleted.",
    )
    allow_shrink: StrictBool = Field(
        default=False, description="Allow this repair to delete more of the mart than options.max_delete_ratio."
    )

    @model_validator(mode="after")
    def _shrinks_only_to_repair(self) -> Self:
        if self.allow_shrink and not self.repair:
            raise ValueError("allow_shrink needs repair: nothing else deletes")
        return self

    def options(self) -> RunOptions:
        return RunOptions(allow_shrink=self.allow_shrink, deep=self.deep or self.repair, repair=self.repair)


class KeysBody(BaseModel):
    """Some keys."""

    count: int
    keys: list[str] = Field(
        description=f"At most {KEYS_KEPT} of them; a key of several columns in brackets, values with a comma in quotes."
    )


class DifferentBody(KeysBody):
    columns: dict[str, list[str]] = Field(description="By key: the columns whose values differ.")


class RepairedBody(BaseModel):
    """What a repair has corrected, and found equal afterwards."""

    missing: KeysBody
    extra: KeysBody
    different: KeysBody


NO_KEYS: dict[str, Any] = {"count": 0, "keys": []}
RECONCILIATION_EXAMPLE: dict[str, Any] = {
    "deep": True,
    "equal": False,
    "sentence": "source ≠ target: 1 missing, 1 different",
    "columns": ["id", "title", "modified"],
    "source_rows": 1000,
    "target_rows": 999,
    "missing": {"count": 1, "keys": ["17"]},
    "extra": NO_KEYS,
    "different": {"count": 1, "keys": ["42"], "columns": {"42": ["title"]}},
    "waiting": 0,
    "complete": True,
    "left_out": [],
    "repaired": None,
}


class ReconciliationBody(BaseModel):
    """A mart beside its source, down to the keys that differ."""

    model_config = example(RECONCILIATION_EXAMPLE)

    deep: Literal[True]
    equal: bool
    sentence: str = Field(description="The result, with the number of each difference.")
    columns: list[str] = Field(description="The columns whose values are compared.")
    source_rows: int
    target_rows: int
    missing: KeysBody = Field(description="Only the source has them.")
    extra: KeysBody = Field(description="Only the mart has them.")
    different: DifferentBody
    waiting: int = Field(
        description="Keys that differ because their rows changed after the last run. The next run reads them, so they"
        " are not counted as differences."
    )
    complete: bool = Field(description="false: there are very many differences, and the search ended early.")
    left_out: list[str] = Field(description="What is not compared, one sentence each.")
    repaired: RepairedBody | None = Field(description="null: no repair was asked for.")


class ReplayBody(BaseModel):
    """What the replay of rejects has achieved."""

    model_config = example({"replayed": 3, "closed": 2, "open": 1})

    replayed: int = Field(description="Keys that were read again.")
    closed: int = Field(description="Rejects that are closed now, because their rows were written.")
    open: int = Field(description="Rows that are still in quarantine.")


class KeyComparisonBody(BaseModel):
    """What a run with `delete_mode: reconcile_keys` has found, and its cost."""

    model_config = example({"keys_compared": 1000, "keys_deleted": 2, "keys_missing": 0, "seconds": 0.25})

    keys_compared: int = Field(description="Rows of the mart.")
    keys_deleted: int = Field(description="Keys that the source has no more.")
    keys_missing: int = Field(description="Keys that the mart lacks although no run will read them; repair it.")
    seconds: float


REPORT_EXAMPLE: dict[str, Any] = {
    "id": 3,
    "run_id": 42,
    "started_at": "2025-01-01T12:00:00Z",
    "finished_at": "2025-01-01T12:00:05Z",
    "verdict": "different",
    "verified_until": None,
    "report": RECONCILIATION_EXAMPLE,
}


class StoredReportBody(BaseModel):
    """The report of a deep reconcile."""

    model_config = example(REPORT_EXAMPLE)

    id: int
    run_id: int | None = Field(description="null: the run was deleted from the history.")
    started_at: datetime
    finished_at: datetime
    verdict: Verdict
    verified_until: datetime | None = Field(description="The mart equals its source as of this time; null: it differs.")
    report: ReconciliationBody

    @classmethod
    def of(cls, stored: StoredReport) -> Self:
        return cls.model_validate(vars(stored))


class ReportPage(BaseModel):
    model_config = example({"items": [REPORT_EXAMPLE], "next": None})

    items: list[StoredReportBody]
    next: int | None = Field(description="Give it as `before` for the next page; null on the last page.")


COVERS = "An incremental pipeline does not see deleted rows, unless a column marks them; see options.delete_mode."


POSTPONED = "How many scheduled runs in a row failed for a transient reason and were postponed; 0 after a success."


LAST_ERROR = "Why the last run failed; null after a success."


MAX_LINE_LENGTH = 4000


class PlaceBody(BaseModel):
    """A place in the query: line and column count from 1, in characters."""

    line: int
    column: int
    text: str = Field(description="The line of the query.")

    @classmethod
    def of(cls, place: Place) -> Self:
        return cls(line=place.line, column=place.column, text=printable(place.text[:MAX_LINE_LENGTH]))

    @property
    def place(self) -> Place:
        return Place(self.line, self.column, self.text)


def printable(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


class ErrorBody(BaseModel):
    """The error that ended a run."""

    model_config = example(
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


MANAGED_BY = (
    "The file that the definition was applied from with `vitrine apply` or `POST /apply`; the next apply of it replaces"
    " every other change. null: none."
)


class ManagedByBody(BaseModel):
    """The file that manages a definition."""

    model_config = example(MANAGED_BY_EXAMPLE)

    file: str = Field(description="As `apply` names it, without folders of the machine that it was read on.")
    applied_at: datetime = Field(
        description="When the file was applied and changed the pipeline, or first named it. Applying it again without a"
        " change does not count."
    )
    differs: bool = Field(
        description="The definition was changed since, by another way than `apply`, and is not the one of the file."
    )

    @classmethod
    def of(cls, file: AppliedFile | None) -> Self | None:
        return cls(file=file.name, applied_at=file.applied_at, differs=file.differs) if file else None


class PipelineBody(Definition):
    """A pipeline: its definition, and the fields that the store adds."""

    model_config = example(pipeline_example)

    id: UUID
    status: Status
    config_version: int = Field(description="Increases with every change; also the ETag, for If-Match.")
    fresh_as_of: datetime | None = Field(
        description="The mart contains every change committed before this time, of the kinds in `freshness_covers`: the"
        " start of its last read, or of the first read of a full load. null before the first success."
    )
    freshness_covers: FreshnessCovers = Field(description=COVERS)
    stale: bool = Field(description=STALE)
    stale_at: datetime | None = Field(description=STALE_AT)
    verified_until: datetime | None = Field(description=VERIFIED_UNTIL)
    verdict: Verdict | None = Field(description=VERDICT)
    verdict_at: datetime | None = Field(description="When that one ended.")
    next_due_at: datetime | None = Field(
        description="null: no schedule, or disabled. A paused or failed pipeline does not start then."
    )
    postponed: int = Field(description=POSTPONED)
    last_error: ErrorBody | None = Field(description=LAST_ERROR)
    managed_by: ManagedByBody | None = Field(default=None, description=MANAGED_BY)
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, pipeline: Pipeline, zone: tzinfo, **fields: Any) -> Self:
        """`zone`: time zone for cron schedules. Built without validation, which the definition has passed already."""
        stale_at = pipeline.stale_at(zone)  # a cron line takes most of the time of a list
        return cls.model_construct(
            **fields,
            id=pipeline.id,
            status=pipeline.status,
            config_version=pipeline.config_version,
            fresh_as_of=pipeline.fresh_as_of,
            freshness_covers=pipeline.freshness_covers,
            stale=pipeline.definition.enabled and pipeline.is_late(stale_at),
            stale_at=stale_at,
            verified_until=pipeline.verification.until,
            verdict=pipeline.verification.verdict,
            verdict_at=pipeline.verification.at,
            next_due_at=pipeline.next_due_at,
            postponed=pipeline.postponed,
            last_error=ErrorBody.of(pipeline.last_error),
            managed_by=ManagedByBody.of(pipeline.file),
            created_at=pipeline.created_at,
            updated_at=pipeline.updated_at,
            **vars(pipeline.definition),
        )

    def definition(self) -> Definition:
        """What the user wrote, without the fields of the store."""
        return Definition.model_validate({name: getattr(self, name) for name in Definition.model_fields})


class FindingBody(BaseModel):
    """A remark of the source or the target about a definition."""

    model_config = example(FINDING_EXAMPLE)

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

    model_config = example(lambda: pipeline_example() | {"warnings": [], "findings": []})

    warnings: list[str] = Field(
        default_factory=list[str],
        description="Findings that do not prevent a run. `not validated: …`: source or target did not respond.",
    )
    findings: list[FindingBody] = Field(
        default_factory=list[FindingBody], description="The same with codes, columns and places, and the notes."
    )


class NewestRunBody(BaseModel):
    """The newest run of a pipeline, in short."""

    model_config = example(NEWEST_RUN_EXAMPLE)

    id: int
    kind: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None = Field(description="null during the run.")
    seconds: float | None = Field(description="null during the run.")
    rows_read: int

    @classmethod
    def of(cls, run: NewestRun) -> Self:
        seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at else None
        return cls(**vars(run), seconds=seconds)


def _listed_example() -> dict[str, Any]:
    return pipeline_example() | {"last_run": NEWEST_RUN_EXAMPLE, "late_cause": None, "late_reason": None}


class ListedPipelineBody(PipelineBody):
    """A pipeline and its newest run."""

    model_config = example(_listed_example)

    last_run: NewestRunBody | None = Field(description="null before the first run.")
    late_cause: str | None = Field(default=None, description=LATE_CAUSE)
    late_reason: str | None = Field(default=None, description=LATE_REASON)


class InvalidPipelineBody(BaseModel):
    """A pipeline whose stored definition is not valid: written without validation, or by a release that allowed it."""

    model_config = example({"name": "top_genres", "reason": "batch_size: give a whole number from 1 to 50000"})

    name: str
    reason: str = Field(description="Every wrong field, with what it should be.")


class PipelinePage(BaseModel):
    model_config = example(lambda: {"items": [_listed_example()], "invalid": [], "next": None})

    items: list[ListedPipelineBody]
    invalid: list[InvalidPipelineBody] = Field(
        default_factory=list[InvalidPipelineBody],
        description="Pipelines on this page that cannot run, because their stored definition is not valid.",
    )
    next: str | None = Field(description="Give it as `after` for the next page; null on the last page.")

    @property
    def names(self) -> list[str]:
        return sorted(one.name for one in (*self.items, *self.invalid))
