"""Bodies of access tokens and of the audit log."""

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from vitrine.operations.bodies.common import ID, Mirror, example
from vitrine.operations.context import Role
from vitrine.settings import LONGEST, parse_duration

TOKEN_NAME = r"^[a-z][a-z0-9_.-]{0,62}$"  # noqa: S105  a pattern
DEFAULT_TTL = timedelta(days=90)
EXAMPLE_TOKEN = "vtr_" + "x" * 49
TOKEN_EXAMPLE: dict[str, Any] = {
    "name": "airflow",
    "role": "operator",
    "prefix": "vtr_4fQz",
    "created_at": "2026-01-31T12:00:00Z",
    "created_by": "anonymous",
    "expires_at": "2026-05-01T12:00:00Z",
    "last_used_at": None,
}


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta():
        raise ValueError("give a duration longer than 0s")
    return value


Ttl = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    AfterValidator(_positive),
    PlainSerializer(lambda value: f"{value.total_seconds():f}s", return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["90d"]}),
]


class NewToken(BaseModel):
    """A token to create."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"name": "airflow", "role": "operator", "ttl": "90d"}]}
    )

    name: str = Field(pattern=TOKEN_NAME, description="Who uses it; shown in the audit log.")
    role: Role
    ttl: Ttl = Field(
        default=DEFAULT_TTL,
        description=f"How long it is valid: 30d, 12h; at most {LONGEST.days} days. Default 90d.",
        json_schema_extra={"default": "90d"},
    )


class TokenBody(Mirror):
    """A token as an administrator sees it; its text is not stored."""

    model_config = example(TOKEN_EXAMPLE)

    name: str
    role: Role
    prefix: str = Field(description="The first characters of the token, to recognise it.")
    created_at: datetime
    created_by: str
    expires_at: datetime
    last_used_at: datetime | None = Field(description="To the minute; null: never used.")


class CreatedToken(TokenBody):
    """A new token, with its text."""

    model_config = example({"token": EXAMPLE_TOKEN, **TOKEN_EXAMPLE})

    token: str = Field(description="Shown once, and stored only as a hash. Send it as Authorization: Bearer.")


class TokenPage(BaseModel):
    model_config = example({"items": [TOKEN_EXAMPLE], "next": None})

    items: list[TokenBody]
    next: str | None = Field(description="Give it as `after` to read the next page; null: this is the last one.")


class WhoAmI(BaseModel):
    """The caller of a request."""

    model_config = example({"name": "airflow", "role": "operator", "via": "api", "address": "192.0.2.7"})

    name: str = Field(description="The name of the token; anonymous while no token has been created.")
    role: Role
    via: str
    address: str | None = Field(description="The address of the client, as the API sees it.")


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
