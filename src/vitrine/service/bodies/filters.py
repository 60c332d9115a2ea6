"""Which pipelines a list shows, or a request for many of them selects."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from vitrine.model import TAG
from vitrine.status import Status
from vitrine.store.selecting import Selection


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
