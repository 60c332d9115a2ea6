"""Bodies of checks: validation report, preview, comparison with the source, rejects."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, Field

from vitrine.model import Definition, Mode
from vitrine.service.bodies.examples import FINDING_EXAMPLE, example
from vitrine.service.bodies.mirror import Mirror
from vitrine.service.bodies.pipelines import FindingBody, printable

if TYPE_CHECKING:  # the engine is slow to import, and these bodies are part of others
    from vitrine.engine.preview import Preview
    from vitrine.engine.reconcile import Comparison
    from vitrine.engine.validation import Report

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
