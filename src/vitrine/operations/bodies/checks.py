"""Bodies of checks: validation report, preview, comparison with the source, rejects, traces."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StringConstraints

from vitrine.core.status import Status
from vitrine.definition.model import Definition, Mode
from vitrine.definition.pipeline import Pipeline
from vitrine.operations.bodies.common import FINDING_EXAMPLE, Mirror, example
from vitrine.operations.bodies.pipelines import FindingBody, printable

if TYPE_CHECKING:  # the engine is slow to import, and these bodies are part of others
    from vitrine.compare.digests import Texts
    from vitrine.compare.reconcile import Comparison
    from vitrine.compare.trace import Traced, Verdict
    from vitrine.plan.validation import Preview, Report

COMPARISON_EXAMPLE: dict[str, Any] = {
    "equal": False,
    "sentence": "source ≠ target: rows 1000 ≠ 999",
    "control": "modified",
    "columns": ["modified"],
    "source": {
        "rows": 1000,
        "lowest": "2025-01-01 00:00:00+00",
        "highest": "2025-01-02 00:00:00+00",
        "hash": "8211",
    },
    "target": {
        "rows": 999,
        "lowest": "2025-01-01 00:00:00+00",
        "highest": "2025-01-02 00:00:00+00",
        "hash": "7340",
    },
    "left_out": [],
}


class ColumnBody(Mirror):
    """A column of the rows, with its PostgreSQL type."""

    model_config = example({"name": "id", "type": "uuid"})

    name: str
    type: str


class ReportBody(BaseModel):
    """How a pipeline would run. One that could not run is refused with the reason instead."""

    model_config = example(
        {
            "name": "film_dim",
            "ready": True,
            "target": "analytics.film_dim",
            "mode": "incremental",
            "lane": "copy",
            "columns": [{"name": "id", "type": "uuid"}, {"name": "title", "type": "text"}],
            "key": ["id"],
            "target_exists": True,
            "rows_expected": 1000,
            "first_due_at": None,
            "findings": [FINDING_EXAMPLE],
        }
    )

    name: str
    ready: Literal[True] = True
    target: str
    mode: Mode
    lane: str = Field(description="How rows are moved: copy (not decoded), text, rows or frames.")
    columns: list[ColumnBody] = Field(description="Of the source; transforms may change them.")
    key: list[str]
    target_exists: bool = Field(description="false: the first run creates it.")
    rows_expected: int | None = Field(description="Estimate of the source's query planner; null when there is none.")
    first_due_at: datetime | None = Field(
        description="If it were stored now; null: it has no schedule, or is disabled."
    )
    findings: list[FindingBody]

    @classmethod
    def of(cls, definition: Definition, report: "Report", first_due_at: datetime | None) -> Self:
        return cls(
            name=definition.name,
            target=definition.target_table,
            mode=definition.mode,
            lane=report.lane,
            columns=[ColumnBody.of(column) for column in report.columns],
            key=list(report.key),
            target_exists=report.target_exists,
            rows_expected=report.rows_expected,
            first_due_at=first_due_at,
            findings=[FindingBody.of(finding) for finding in report.findings],
        )


class PreviewBody(BaseModel):
    """The first rows of a pipeline, as its target would receive them. Nothing is written."""

    model_config = example(
        {
            "columns": [{"name": "id", "type": "integer"}, {"name": "rating", "type": "numeric"}],
            "rows": [[1, "8.50"], [2, None]],
            "rows_read": 2,
            "cut": None,
        }
    )

    columns: list[ColumnBody]
    rows: list[list[bool | int | str | None]] = Field(
        description="Values in the order of the columns: boolean, smallint and integer as JSON values, every other type"
        " in PostgreSQL's text format, so that nothing is lost; null is NULL."
    )
    rows_read: int = Field(description="Rows of the source that were read for it.")
    cut: Literal["rows", "size"] | None = Field(
        description="What ended the preview: the limit of rows, or that of the answer's size; null: there are no more."
    )

    @classmethod
    def of(cls, preview: "Preview") -> Self:
        return cls(
            columns=[ColumnBody.of(column) for column in preview.columns],
            rows=[[printable(value) if isinstance(value, str) else value for value in row] for row in preview.rows],
            rows_read=preview.rows_read,
            cut=preview.cut,
        )


class SideBody(BaseModel):
    """Figures of one side of a comparison."""

    rows: int
    lowest: str | None = Field(description="Of the control column.")
    highest: str | None
    hash: str = Field(description="Over the compared columns of all rows, independent of their order.")


class ComparisonBody(BaseModel):
    """A mart beside its source, in figures."""

    model_config = example(COMPARISON_EXAMPLE)

    equal: bool
    sentence: str = Field(description="The result with every difference.")
    control: str = Field(description="The column whose lowest and highest value are compared.")
    columns: list[str] = Field(description="The columns whose values are compared.")
    source: SideBody
    target: SideBody
    left_out: list[str] = Field(description="What is not compared, one sentence each.")

    @classmethod
    def of(cls, comparison: "Comparison") -> Self:
        return cls.model_validate(comparison.figures())


REJECT_EXAMPLE: dict[str, Any] = {
    "id": 7,
    "run_id": 42,
    "key": "17",
    "column": "rating",
    "code": "22003",
    "reason": "column 'rating': the value is out of range for numeric(3,1)",
    "created_at": "2025-01-01T12:00:00Z",
    "row": None,
}


class RejectBody(Mirror):
    """A row in quarantine: the target did not take it."""

    model_config = example(REJECT_EXAMPLE)

    id: int
    run_id: int = Field(description="The run that found it.")
    key: str
    column: str | None = Field(description="null: the row as a whole breaks a rule.")
    code: str
    reason: str
    created_at: datetime
    row: dict[str, Any] | None = Field(description="The row itself, if `rows=true` asks for it; otherwise null.")


class RejectPage(BaseModel):
    model_config = example({"items": [REJECT_EXAMPLE], "next": None})

    items: list[RejectBody]
    next: int | None = Field(description="Give it as `after` for the next page; null on the last page.")


MAX_VALUE = 10_000
"""Characters of a value that are shown."""

MAX_CHARACTERS = 1_000_000
"""Of all values together; each of very many is shown up to `MIN_VALUE`."""

MIN_VALUE = 100

MAX_KEY_COLUMNS = 32
MAX_KEY_LENGTH = 4000

KeyValue = Annotated[str, StringConstraints(max_length=MAX_KEY_LENGTH)]
KEY = "The values of the key columns, in their order."

Shown = dict[str, str | None]
"""A row: values in PostgreSQL's text format, null is NULL."""


class ResendBody(BaseModel):
    """One key that is to be read and written again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"key": ["17"]}]})

    key: list[KeyValue] = Field(min_length=1, max_length=MAX_KEY_COLUMNS, description=KEY)
    delete: StrictBool = Field(
        default=False,
        description="Delete the key from the target if the source, after the transforms, does not have it. Otherwise"
        " such a key stays.",
    )


class ResentBody(BaseModel):
    """What a resend has done."""

    model_config = example(
        {"resent": 1, "deleted": 0, "standing": "equal", "sentence": "the row of analytics.film_dim equals the source"}
    )

    resent: int = Field(description="Rows of the key that were read again and passed to the target.")
    deleted: int = Field(description="1 if the key was deleted, because the source does not have it.")
    standing: str = Field(description="Where the row stands now, as in a trace.")
    sentence: str


class TracedStepBody(BaseModel):
    """What one transform has made of the row."""

    transform: str
    rows: list[Shown]
    error: str | None = Field(description="Why the transform failed; null: it did not.")


class TracedColumnBody(BaseModel):
    name: str
    differs: bool | None = Field(description="null: not compared, because one of the sides has no such column or row.")


_ROW = {"id": "17", "title": "Star Wars", "modified": "2025-01-01 11:59:00+00"}


class TraceBody(BaseModel):
    """Why a row of a mart is as it is."""

    model_config = example(
        {
            "pipeline": "film_dim",
            "target": "analytics.film_dim",
            "status": "IDLE",
            "waiting": None,
            "key_columns": ["id"],
            "key": ["17"],
            "standing": "cursor_not_moved",
            "sentence": "the row differs from analytics.film_dim in title, but the checkpoint has passed its"
            " 'modified': it changed without a new value there, or the target was changed by hand",
            "remedy": "no run reads it again: send this key with --resend, and let every change set 'modified'",
            "source": [_ROW],
            "steps": [],
            "target_rows": [_ROW | {"title": "Star Warts"}],
            "columns": [
                {"name": "id", "differs": False},
                {"name": "title", "differs": True},
                {"name": "modified", "differs": False},
            ],
            "reject": None,
            "cursor": ["2025-01-01 11:59:00+00", "17"],
            "checkpoint": ["2025-01-01 12:00:00+00", "99"],
            "not_compared": None,
            "shortened": [],
        }
    )

    pipeline: str
    target: str
    status: Status
    waiting: str | None = Field(description="Why nothing happens to the pipeline at the moment, as in its status.")
    key_columns: list[str]
    key: list[str] = Field(description="As the row has it; as it was given if there is none.")
    standing: str = Field(
        description="equal, waiting, blocked, quarantined, cursor_not_moved, missing, deleted_at_source, filtered,"
        " transform_fails, repeated, null_cursor or not_found."
    )
    sentence: str
    remedy: str | None = Field(description="null: there is nothing to do.")
    source: list[Shown] = Field(description="The rows of the source now, in PostgreSQL's text format; null is NULL.")
    steps: list[TracedStepBody] = Field(description="What each transform makes of them, in order.")
    target_rows: list[Shown] = Field(description="The rows or documents of the target now.")
    columns: list[TracedColumnBody] = Field(description="Every column of both sides.")
    reject: RejectBody | None = Field(
        description="The row in quarantine; null: it is not there.", examples=[REJECT_EXAMPLE]
    )
    cursor: list[str | None] | None = Field(description="Of the row; null: no row, or the pipeline has no checkpoint.")
    checkpoint: list[str] | None = Field(description="The target contains every row up to here; null: none.")
    not_compared: str | None = Field(
        description="Why values could only be compared by their texts: one does not fit the type of the target."
    )
    shortened: list[str] = Field(description=f"Columns with values of which at most {MAX_VALUE} characters are shown.")

    @classmethod
    def of(
        cls,
        pipeline: Pipeline,
        found: "Traced",
        verdict: "Verdict",
        *,
        waiting: str | None,
        reject: RejectBody | None,
        checkpoint: Sequence[str] | None,
    ) -> Self:
        rows = [*found.source, *found.target, *(row for step in found.steps for row in step.rows)]
        limit = max(MIN_VALUE, min(MAX_VALUE, MAX_CHARACTERS // max(1, sum(map(len, rows)))))
        steps = [
            TracedStepBody(transform=step.transform, rows=_shown(step.rows, limit), error=step.error)
            for step in found.steps
        ]
        return cls(
            pipeline=pipeline.name,
            target=found.facts.target,
            status=pipeline.status,
            waiting=waiting,
            key_columns=list(found.facts.key_columns),
            key=list(found.key),
            standing=verdict.standing,
            sentence=verdict.sentence,
            remedy=verdict.remedy,
            source=_shown(found.source, limit),
            steps=steps,
            target_rows=_shown(found.target, limit),
            columns=_columns(found),
            reject=reject,
            cursor=None if found.cursor is None else list(found.cursor),
            checkpoint=None if checkpoint is None else list(checkpoint),
            not_compared=found.not_compared,
            shortened=sorted({name for row in rows for name, text in row.items() if text and len(text) > limit}),
        )


def _columns(found: "Traced") -> list[TracedColumnBody]:
    rows: list[dict[str, Any]] = [*found.source, *(row for step in found.steps for row in step.rows), *found.target]
    names = dict.fromkeys(name for row in rows for name in row)
    is_compared = bool(found.produced and found.target)
    return [
        TracedColumnBody(
            name=name,
            differs=name in found.facts.differing if is_compared and name in found.compared else None,
        )
        for name in names
    ]


def _shown(rows: "Sequence[Texts]", limit: int) -> list[Shown]:
    return [{name: _value(text, limit) for name, text in row.items()} for row in rows]


def _value(text: str | None, limit: int) -> str | None:
    return text if text is None else printable(text if len(text) <= limit else f"{text[:limit]}…")
