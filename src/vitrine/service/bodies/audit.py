"""Bodies of the audit log."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field

from vitrine.service.bodies.examples import ID, example
from vitrine.service.bodies.mirror import Mirror

AUDIT_EXAMPLE: dict[str, Any] = {
    "id": 42,
    "at": "2026-01-31T12:00:00Z",
    "actor": "airflow",
    "role": "operator",
    "via": "api",
    "address": "192.0.2.7",
    "operation": "pipelines.pause",
    "pipeline": "top_genres",
    "pipeline_id": ID,
    "before": {"status": "RUNNING"},
    "after": {"status": "PAUSE_REQUESTED"},
}


class AuditBody(Mirror):
    """One change."""

    model_config = example(AUDIT_EXAMPLE)

    id: int
    at: datetime
    actor: str = Field(description="The name of the token, the user of the operating system, or anonymous.")
    role: str
    via: str = Field(description="api, cli or console.")
    address: str | None = Field(description="The client of the API; null: the command line.")
    operation: str = Field(description="What was asked for, for example pipelines.change.")
    pipeline: str | None = Field(description="null: the change concerns no pipeline.")
    pipeline_id: UUID | None
    before: dict[str, Any] | None = Field(description="What was replaced or removed; null: nothing.")
    after: dict[str, Any] | None = Field(description="What is stored since; null: nothing.")


class AuditPage(BaseModel):
    model_config = example({"items": [AUDIT_EXAMPLE], "next": None})

    items: list[AuditBody]
    next: int | None = Field(description="Give it as `before` to read the next page; null: this is the last one.")
