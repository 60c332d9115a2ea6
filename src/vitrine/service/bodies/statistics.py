"""Figures over the runs of a pipeline."""

from datetime import datetime

from pydantic import BaseModel, Field

from vitrine.service.bodies.examples import example

EXAMPLE = {
    "pipeline": "top_genres",
    "runs": 100,
    "since": "2025-01-01T04:00:00Z",
    "by_status": {"SUCCESS": 98, "FAILED": 2},
    "rows_read": 2600,
    "rows_written": 31,
    "rows_deleted": 0,
    "rows_rejected": 0,
    "seconds_p50": 0.05,
    "seconds_p95": 0.21,
    "seconds_max": 1.4,
    "last_success_at": "2025-01-01T12:00:01.5Z",
    "last_failure_at": "2025-01-01T09:35:02Z",
}


class Statistics(BaseModel):
    """Figures over the newest runs of a pipeline, or over those of the last days."""

    model_config = example(EXAMPLE)

    pipeline: str
    runs: int = Field(description="How many runs the figures cover, the current one included.")
    since: datetime | None = Field(description="Start of the oldest of them; null if there are none.")
    by_status: dict[str, int] = Field(description="Runs by their status; one that does not occur is left out.")
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    seconds_p50: float | None = Field(description="Of the runs that succeeded; null if there are none.")
    seconds_p95: float | None
    seconds_max: float | None
    last_success_at: datetime | None = Field(
        description="End of the newest success, also if the figures do not cover it; null if the history has none."
    )
    last_failure_at: datetime | None = Field(description="End of the newest run among them that failed.")
