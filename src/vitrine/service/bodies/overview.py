"""Bodies of what a page about many pipelines shows."""

from datetime import datetime

from pydantic import BaseModel, Field

from vitrine.service.bodies.mirror import Mirror


class StateCounts(BaseModel):
    """How many pipelines are in each state."""

    pipelines: int = 0
    idle: int = 0
    run_requested: int = 0
    running: int = 0
    pause_requested: int = 0
    paused: int = 0
    failed: int = 0
    disabled: int = 0
    stale: int = 0


class GroupCounts(BaseModel):
    """How many pipelines an owner or a tag has, and their states."""

    name: str
    pipelines: int
    failed: int
    running: int
    stale: int


class RecentRunBody(Mirror):
    """What a small chart shows of a run."""

    id: int
    kind: str
    status: str
    started_at: datetime
    seconds: float
    rows_read: int
    rows_written: int


class HealthBody(Mirror):
    """Whether work proceeds."""

    runners: int = Field(description="Runner processes seen within the last 15 seconds.")
    waiting: int = Field(description="Requested pipelines, those that wait for a later attempt included.")
    oldest_wait: float | None = Field(description="Seconds since the oldest of those that could start was requested.")
    running: int
    held_pipeline: str | None = Field(description="Whose checkpoint waits longest for an open transaction.")
    horizon_lag: float | None
    horizon_blocker: str | None
    now: datetime


class TimelineEntry(BaseModel):
    """A run, or a change that was asked for."""

    at: datetime
    run: "TimelineRun | None" = Field(description="null: a change.")
    change: "TimelineChange | None" = Field(description="null: a run.")


class TimelineRun(BaseModel):
    """A run in short."""

    id: int
    kind: str
    trigger: str
    status: str
    finished_at: datetime | None
    seconds: float | None
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    error_code: str | None
    error_message: str | None


class TimelineChange(Mirror):
    """A change in short: which fields it concerns, without their values, which only an administrator may read."""

    id: int
    actor: str
    via: str
    operation: str
    fields: list[str]


class TimelinePage(BaseModel):
    """Newest first."""

    items: list[TimelineEntry]
    next_run: int | None = Field(description="Give both for the next page; null: this source has no more entries.")
    next_change: int | None
