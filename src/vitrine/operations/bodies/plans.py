"""Bodies of plans and of `apply`."""

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vitrine.definition.model import Mode, StateChoice
from vitrine.definition.yaml import Document
from vitrine.input_errors import Location, field_path
from vitrine.operations.bodies.common import DEFINITION_EXAMPLE, FINDING_EXAMPLE, Mirror, example
from vitrine.operations.bodies.pipelines import FindingBody, printable

if TYPE_CHECKING:  # the engine is slow to import
    from vitrine.compare.differences import Differences
    from vitrine.compare.impact import RunForecast

RUN_EXAMPLE: dict[str, Any] = {
    "run": "next",
    "reads": "everything",
    "sentence": "the next run reads everything: 2 rows added, 14 changed, 1 removed",
    "added": 2,
    "changed": 14,
    "removed": 1,
    "kept": 0,
    "written": 16,
    "rows": 1001,
    "method": "exact",
    "rows_compared": 1001,
    "changed_columns": {"title": 14},
    "examples": {"added": ["1001", "1002"], "changed": {"17": ["title"]}, "removed": ["9"]},
    "seconds": 0.4,
    "refused": None,
    "reason": None,
}


class ColumnChangeBody(Mirror):
    """A column that the rows and the mart do not have alike."""

    name: str
    change: Literal["added", "lost", "retyped"]
    stored: str | None = Field(description="Its type in the mart; null: the mart lacks it.")
    produced: str | None = Field(description="Its type in the rows; null: they lack it.")
    effect: str = Field(description="What a run does with it.")


class StatePlanBody(BaseModel):
    """What the change does to the checkpoint."""

    has_checkpoint: bool
    resets: bool = Field(description="The state is reset when the definition is stored.")
    choices: list[StateChoice] = Field(description="One of these must be given as `state`; empty: none.")
    sentence: str


class ExamplesBody(BaseModel):
    """A few keys of each kind of change."""

    added: list[str]
    changed: dict[str, list[str]] = Field(description="By key: the columns that change.")
    removed: list[str]

    @classmethod
    def of(cls, found: "Differences") -> Self:
        from vitrine.compare.reconcile import readable

        return cls(
            added=[printable(readable(key)) for key in found.missing],
            changed={printable(readable(key)): list(names) for key, names in found.different.items()},
            removed=[printable(readable(key)) for key in found.extra],
        )


class RunPlanBody(BaseModel):
    """What one run would do to the mart as of now."""

    model_config = example(RUN_EXAMPLE)

    run: Literal["next", "keep", "reset", "full"] = Field(
        description="The next run; the next run with `state: keep` or `reset`; or a full run, which must be asked for."
    )
    reads: Literal["everything", "changes"] = Field(description="`changes`: rows after the checkpoint.")
    sentence: str
    added: int | None = Field(description="Rows that the mart lacks; null: not counted, see `reason` and `refused`.")
    changed: int | None = Field(description="Rows that the mart has with other values.")
    removed: int | None = Field(description="Rows that the run deletes from the mart.")
    kept: int | None = Field(description="Rows of the mart that the source lacks, and that this run does not delete.")
    written: int | None = Field(
        description="`rows_written` of the run: rows added and changed; all rows, if the target is an index. With"
        " `on_duplicate_key: last`, a key that several batches have is written by each of them."
    )
    rows: int | None = Field(description="Rows that the run reads, after the transforms.")
    method: Literal["exact", "sample", "partial"] | None = Field(
        description="exact: every row was compared. sample: figures are estimates from a random part of the rows."
        " partial: the time ended, and there may be more."
    )
    rows_compared: int | None = Field(description="The size of the sample; all rows, if the method is exact.")
    changed_columns: dict[str, int] = Field(description="Changed rows by column.")
    examples: ExamplesBody
    seconds: float | None = Field(description="Estimated time, by the rate of the last runs; null: unknown.")
    refused: str | None = Field(description="Why the run would fail; null: nothing is known that would prevent it.")
    reason: str | None = Field(description="Why rows were not counted.")

    @classmethod
    def of(cls, found: "RunForecast", *, rate: float | None, rows_expected: int | None) -> Self:
        from vitrine.compare.row_changes import NO_DIFFERENCES

        rows = found.rows
        read = rows.rows if rows else (rows_expected if found.reads == "everything" else None)
        return cls(
            run=found.run,
            reads=found.reads,
            sentence=_sentence(found),
            added=rows.added if rows else None,
            changed=rows.changed if rows else None,
            removed=found.removed,
            kept=found.kept,
            written=found.written,
            rows=rows.rows if rows else None,
            method=rows.method if rows else None,
            rows_compared=rows.rows_compared if rows else None,
            changed_columns=rows.columns if rows else {},
            examples=ExamplesBody.of(rows.examples if rows else NO_DIFFERENCES),
            seconds=round(read / rate, 1) if rate and read is not None else None,
            refused=found.refused,
            reason=found.reason,
        )


NAMES = {
    "next": "the next run",
    "keep": "the next run, with state: keep,",
    "reset": "the next run, with state: reset,",
    "full": "a full run",
}
_READS = {"everything": "reads everything", "changes": "reads from the checkpoint on"}


def _sentence(found: "RunForecast") -> str:
    beginning = f"{NAMES[found.run]} {_READS[found.reads]}"
    rows = found.rows
    if rows is None:
        return f"{beginning}: refused: {found.refused}" if found.refused else f"{beginning}: {_uncounted(found)}"
    more = {"exact": "", "sample": "about ", "partial": "at least "}[rows.method]
    removed = "not counted" if found.removed is None else f"{found.removed:,}"
    text = f"{beginning}: {more}{rows.added:,} rows added, {rows.changed:,} changed, {removed} removed"
    if found.kept:
        text += f"; {found.kept:,} rows that the source lacks stay"
    if rows.method != "exact":
        size = f" (a sample of {rows.rows_compared:,} of {max(rows.rows, rows.target_rows or 0):,} rows)"
        text += size if rows.method == "sample" else f" (the first {rows.rows_compared:,} rows)"
    return f"{text}; it would fail: {found.refused}" if found.refused else text


def _uncounted(found: "RunForecast") -> str:
    return f"rows were not counted: {found.reason}"


class PlanBody(BaseModel):
    """What a definition would do to its mart, as of now. Nothing was written."""

    model_config = example(
        {
            "name": "film_dim",
            "stored": True,
            "changes": ["source_query"],
            "target": "analytics.film_dim",
            "mode": "full",
            "target_exists": True,
            "rebuilds": False,
            "state": {"has_checkpoint": False, "resets": True, "choices": [], "sentence": "every run reads everything"},
            "columns": [],
            "runs": [RUN_EXAMPLE],
            "rows_expected": 1000,
            "cursor": None,
            "refusals": [],
            "findings": [FINDING_EXAMPLE],
            "left_out": [],
        }
    )

    name: str
    stored: bool = Field(description="A pipeline of this name exists; the definition would change it.")
    changes: list[str] = Field(description="Fields and options that have another value than the stored ones.")
    target: str
    mode: Mode
    target_exists: bool = Field(description="false: the first run creates it.")
    rebuilds: bool = Field(description="A full load builds the target again, and writes all of its rows.")
    state: StatePlanBody
    columns: list[ColumnChangeBody]
    runs: list[RunPlanBody] = Field(
        description="What each possible run would do: the next one, by `state` if that must be chosen; for an"
        " incremental pipeline also a full run."
    )
    rows_expected: int | None = Field(description="Estimate of the source's query planner; null when there is none.")
    cursor: str | None = Field(description="Whether an index serves reads from the checkpoint on; null: mode full.")
    refusals: list[FindingBody] = Field(description="Reasons of the target against every run.")
    findings: list[FindingBody] = Field(description="As of `validate`.")
    left_out: list[str] = Field(description="What is not compared, one sentence each.")


class StoredPlanBody(BaseModel):
    """Asks what a stored pipeline would do, without a change of its definition."""

    state: StateChoice | None = None


class PlanList(BaseModel):
    """Several plans, in the order in which they were asked for."""

    items: list[PlanBody]


MOST_DOCUMENTS = 5000


class DocumentBody(BaseModel):
    """The fields of one pipeline, and where they come from."""

    model_config = ConfigDict(extra="forbid")

    origin: str = Field(
        max_length=300, description="The name of the file, for errors and for `managed_by` of the pipeline."
    )
    fields: dict[str, Any] = Field(description="The fields of a pipeline; `id` may be among them.")
    places: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="Places of fields for errors, by their paths, such as `options.lookback`; of the document by ``.",
    )

    @classmethod
    def of(cls, document: Document) -> Self:
        places = {field_path(location): document.place(*location) for location in _locations(document.fields)}
        return cls(origin=document.origin, fields=dict(document.fields), places=places)

    @property
    def document(self) -> Document:
        return Document(self.origin, self.fields, self._locate)

    def _locate(self, location: Location) -> str:
        """The place of the field, or of the nearest one around it."""
        for length in range(len(location), -1, -1):
            if found := self.places.get(field_path(location[:length])):
                return found
        return self.origin


def _locations(value: Any, inside: Location = ()) -> list[Location]:
    items: list[tuple[int | str, Any]] = []
    if isinstance(value, dict):
        items = [(str(name), one) for name, one in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif isinstance(value, list):
        items = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType]
    return [inside, *(found for name, one in items for found in _locations(one, (*inside, name)))]


class ApplyBody(BaseModel):
    """Pipelines to create and change, and the names of those to delete: all of it, or nothing."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"documents": [{"origin": "top_genres.yaml", "fields": DEFINITION_EXAMPLE}], "dry_run": True}]
        },
    )

    documents: list[DocumentBody] = Field(max_length=MOST_DOCUMENTS)
    delete: list[str] = Field(default_factory=list[str], max_length=MOST_DOCUMENTS, description="Pipelines to delete.")
    state: StateChoice | None = Field(
        default=None, description="For a changed query with a checkpoint: keep or reset it."
    )
    ask: bool = Field(default=True, description="Ask sources and targets first: 422 if no run could succeed.")
    dry_run: bool = Field(default=False, description="Make every check, and change nothing.")

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if not self.documents and not self.delete:
            raise ValueError("give at least one document, or the name of a pipeline to delete")
        return self


class DifferenceBody(Mirror):
    field: str
    old: Any = Field(description="null: the default.")
    new: Any = Field(description="null: the default.")


class AppliedPipelineBody(Mirror):
    name: str
    outcome: Literal["created", "changed", "unchanged", "deleted"]
    differences: list[DifferenceBody]
    resets: bool = Field(description="The state is reset, because `state: reset` was given.")
    drifted: bool = Field(
        default=False,
        description="The stored definition had been changed since it was applied from a file; the document replaces"
        " these changes.",
    )


class AppliedBody(BaseModel):
    """What the documents change, pipeline by pipeline."""

    model_config = example(
        {
            "dry_run": False,
            "pipelines": [
                {
                    "name": "top_genres",
                    "outcome": "changed",
                    "differences": [{"field": "batch_size", "old": None, "new": 500}],
                    "resets": False,
                    "drifted": False,
                }
            ],
            "warnings": [],
        }
    )

    dry_run: bool
    pipelines: list[AppliedPipelineBody]
    warnings: list[str] = Field(description="Findings of sources and targets that do not prevent a run.")
