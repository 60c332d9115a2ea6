"""Which pipelines a list shows, or a request for many of them selects; and its answers."""

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, model_validator

from vitrine.core.status import Status
from vitrine.definition.model import TAG
from vitrine.operations.bodies.common import REQUEST_ID, example
from vitrine.operations.bodies.control import Requested, RunModeBody
from vitrine.store.filters import Selection


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


STALE = (
    "The mart is older than its option `freshness` allows or, without one, its schedule: two intervals, or two due"
    " times of a cron line, have passed since `fresh_as_of` (since the creation, before the first success). A pipeline"
    " that is disabled, or has neither, is never stale."
)


STALE_AT = (
    "Until when the mart is as fresh as its option `freshness` or, without one, its schedule promises; null: it has"
    " neither."
)
LATE_CAUSE = (
    "Why the mart is older than that: disabled, paused, failed, quarantine_full, retrying, runner_gone,"
    " source_transaction, running, no_slot, upstream, not_due or not_scheduled; null: it is not."
)
LATE_REASON = "The same in one sentence, with who and when, and the remedy."


class Filters(BaseModel):
    """Conditions that all must hold; one that is not given allows everything."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [{"status": "FAILED"}]})

    status: Annotated[tuple[Status, ...], BeforeValidator(_listed, json_schema_input_type=list[Status] | Status)] = (
        Field(default=(), max_length=len(Status), description="One of these statuses.", examples=[["FAILED"]])
    )
    target: str | None = Field(
        default=None,
        max_length=300,
        description="This target. With * at the end: targets that begin with the text before it.",
        examples=["analytics.top_genres", "es:*"],
    )
    enabled: bool | None = None
    stale: bool | None = Field(default=None, description=STALE)
    failed: bool | None = Field(
        default=None, description="Whether the last run that ended has failed: `last_error` is set, in any status."
    )
    error: str | None = Field(
        default=None, max_length=100, description="The code of the last error.", examples=["TRANSIENT"]
    )
    tag: str | None = Field(default=None, pattern=TAG, description="Has this tag.", examples=["search"])
    owner: str | None = Field(default=None, max_length=200, description="Has this owner.", examples=["team-search"])

    search: str | None = Field(
        default=None,
        max_length=200,
        description="Name, target, owner or description contains this text, in any case.",
        examples=["genre"],
    )

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, name) in (None, ()) for name in Filters.model_fields)

    @property
    def selection(self) -> Selection:
        return Selection(
            self.status,
            self.target,
            self.enabled,
            self.stale,
            self.failed,
            self.error,
            self.tag,
            self.owner,
            self.search,
        )


EVERY = Filters()
if TYPE_CHECKING:
    pass


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
