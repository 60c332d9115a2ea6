"""Bodies of runners, the leases they hold, and the sources they read."""

from datetime import datetime

from pydantic import BaseModel, Field

from vitrine.service.bodies.mirror import Mirror


class RunnerBody(Mirror):
    """A runner process."""

    name: str = Field(description="Host and process id.")
    started_at: datetime
    seen_at: datetime
    is_alive: bool = Field(description="Seen within the last 15 seconds. One that was killed is listed for a day.")


class LeaseBody(Mirror):
    """A pipeline that a runner holds."""

    pipeline: str
    status: str
    source: str
    runner: str
    expires_at: datetime = Field(description="Without a heartbeat until then, another runner takes the pipeline over.")
    heartbeat_at: datetime | None
    is_expired: bool
    run_id: int | None
    kind: str | None
    started_at: datetime | None
    rows_read: int | None
    rows_expected: int | None


class SourceBody(BaseModel):
    """A configured source, or one that a pipeline names."""

    name: str
    running: int
    waiting: int
    connections: int = Field(description="That the active runs may hold at most.")
    max_connections: int | None = Field(description="The limit over all runners; null: none is configured.")
    is_configured: bool


class RunnersBody(BaseModel):
    """Who works on what."""

    runners: list[RunnerBody]
    leases: list[LeaseBody]
    sources: list[SourceBody]
    is_cut: bool = Field(description="true: there are more than are shown.")
