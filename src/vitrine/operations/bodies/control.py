"""Bodies of requests that control one pipeline or many, and of their answers."""

from typing import TYPE_CHECKING, Annotated, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from vitrine.core.status import Status
from vitrine.definition.model import BatchSize, Duration
from vitrine.operations.bodies.common import REQUEST_ID, example

if TYPE_CHECKING:
    from vitrine.operations.changes import Reload


class RunOptionsBody(BaseModel):
    """Options of one run."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"allow_shrink": False}]})

    allow_shrink: StrictBool = Field(
        default=False, description="Allow this full load to delete more of the mart than options.max_delete_ratio."
    )


class BackfillBody(BaseModel):
    """A range of `incremental_key`: `from` belongs to it, `to` does not."""

    model_config = ConfigDict(
        extra="forbid",
        populate_by_name=True,
        json_schema_extra={"examples": [{"from": "2025-01-01T00:00:00Z", "to": "2025-02-01T00:00:00Z"}]},
    )

    start: Annotated[str | StrictInt, Field(alias="from", description="The first value, in the cursor's type.")]
    end: Annotated[str | StrictInt, Field(alias="to", description="The first value behind the range.")]


class RunModeBody(RunOptionsBody):
    """Options of one run, and whether it reads everything."""

    mode: Literal["full"] | None = Field(
        default=None,
        description="full: once, an incremental pipeline reads everything and removes what vanished at the source.",
    )


class RunRequestBody(RunModeBody):
    """Options of one run, and what it reads."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"mode": "full", "allow_shrink": False}]})

    backfill: BackfillBody | None = Field(
        default=None,
        description="Reads this range of the cursor once more and upserts its rows; the checkpoint stays, and the"
        " pipeline returns to the status it had. Not together with `mode` or `allow_shrink`.",
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.backfill is not None and (self.mode is not None or self.allow_shrink):
            raise ValueError("give backfill alone: it is neither a full run nor deletes anything")
        return self


class Requested(BaseModel):
    model_config = example({"request_id": REQUEST_ID, "status": "RUN_REQUESTED", "pipeline": "top_genres"})

    request_id: UUID = Field(description="GET /requests/{request_id} returns its state.")
    status: Status
    pipeline: str


class Paused(BaseModel):
    model_config = example({"status": "PAUSED", "pipeline": "top_genres"})

    status: Status
    pipeline: str


class Reloaded(BaseModel):
    """When the stored configuration takes effect."""

    model_config = example(
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
    def of(cls, reload: "Reload") -> Self:
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
