"""Bodies about many pipelines at once."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, model_validator

from vitrine.service.bodies.control import Requested, RunModeBody
from vitrine.service.bodies.examples import REQUEST_ID, example
from vitrine.service.bodies.filters import Filters

MANY = 1000
"""How many runs one request may ask for."""


class RunManyBody(Filters, RunModeBody):
    """Which pipelines to run, at least one condition, and how."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"status": "FAILED"}, {"stale": True, "tag": "search", "dry_run": True}],
            "allOf": [
                {
                    "anyOf": [
                        {"required": [name], "properties": {name: {"not": {"enum": [None, []]}}}}
                        for name in Filters.model_fields
                    ]
                }
            ],
        },
    )

    # in a query these are words, here they are not
    enabled: StrictBool | None = None
    stale: StrictBool | None = Field(default=None, description=Filters.model_fields["stale"].description)
    failed: StrictBool | None = Field(default=None, description=Filters.model_fields["failed"].description)
    dry_run: StrictBool = Field(default=False, description="Request nothing; return what would be requested.")
    after: str = Field(
        default="", pattern="^[a-z0-9_]*$", max_length=63, description="Start after this name: `next` of the answer."
    )

    @model_validator(mode="after")
    def _selects_something(self) -> Self:
        if self.is_empty:
            raise ValueError('give at least one condition, for example {"status": "FAILED"}')
        return self


class RefusedRun(BaseModel):
    pipeline: str
    code: str
    reason: str


class RequestedRuns(BaseModel):
    """The requests that were made, and the pipelines that refused one."""

    model_config = example(
        {
            "matched": 2,
            "dry_run": False,
            "requested": [{"request_id": REQUEST_ID, "status": "RUN_REQUESTED", "pipeline": "top_genres"}],
            "refused": [
                {
                    "pipeline": "old_genres",
                    "code": "DISABLED",
                    "reason": "pipeline 'old_genres' is disabled; enable it first",
                }
            ],
            "names": ["old_genres", "top_genres"],
            "next": None,
        }
    )

    matched: int = Field(description=f"How many pipelines the conditions select, at most {MANY} at a time.")
    dry_run: bool
    names: list[str] = Field(description="The selected pipelines, in the order of their names.")
    requested: list[Requested] = Field(description="Empty for a dry run.")
    refused: list[RefusedRun]
    next: str | None = Field(description="Give it as `after` for the pipelines that follow; null if these were all.")


class ChangedMany(BaseModel):
    """What was changed, and the pipelines that refused it."""

    matched: int = Field(description=f"How many pipelines the conditions select, at most {MANY} at a time.")
    names: list[str]
    changed: list[str] = Field(description="Empty for a dry run.")
    refused: list[RefusedRun]
    next: str | None = Field(description="Give it as `after` for the pipelines that follow; null if these were all.")
