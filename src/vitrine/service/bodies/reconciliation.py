"""Bodies of deep reconciles, repairs and replays of rejects."""

from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from vitrine.pipeline import KEYS_KEPT, Verdict
from vitrine.requests import RunOptions
from vitrine.service.bodies.examples import example
from vitrine.store.reconciliations import StoredReport

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
