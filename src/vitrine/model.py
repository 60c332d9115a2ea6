"""The things Vitrine speaks of: a pipeline's definition, a claimed run, a cursor."""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, NewType, Self
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, field_validator, model_validator

from vitrine import schedule
from vitrine.schedule import Schedule
from vitrine.settings import parse_duration
from vitrine.status import RunStatus, Status

PipelineId = NewType("PipelineId", UUID)
RunId = NewType("RunId", int)
RequestId = NewType("RequestId", UUID)

Row = dict[str, Any]

Cursor = tuple[str, ...]
"""Where reading has come to: the cursor columns as Postgres prints them under UTC and ISO, so nothing is rounded."""

NAME = r"^[a-z][a-z0-9_]{0,62}$"
COLUMN = r"^[A-Za-z_][A-Za-z0-9_$]{0,62}$"


class Mode(StrEnum):
    FULL = "full"
    INCREMENTAL = "incremental"


class TaskType(StrEnum):
    SQL = "SQL"
    PYTHON = "PYTHON"


def print_duration(value: timedelta) -> str:
    """The shortest spelling that `parse_duration` reads back: 90s, 5m, 1h."""
    seconds = value.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration, json_schema_input_type=str),
    PlainSerializer(print_duration, return_type=str),
]
Column = Annotated[str, Field(pattern=COLUMN)]


class Options(BaseModel):
    """What a pipeline may fine-tune; every field has a default that is safe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    touch_column: Column | None = Field(
        default=None, description="Target column that receives the time whenever its row is really written."
    )
    control_column: Column | None = Field(
        default=None,
        description="Column whose minimum and maximum reconcile compares; default: the cursor, else the first key.",
    )
    on_null_cursor: Literal["fail", "ignore"] = Field(
        default="fail", description="What to do with rows whose incremental key is NULL: they can never be read by it."
    )
    horizon_margin: Duration = Field(
        default=timedelta(seconds=60),
        description="How far behind the oldest open transaction the checkpoint stays; covers clocks of applications.",
    )
    lookback: Duration | None = Field(
        default=None,
        description="Where the source cannot tell its open transactions: re-read this much time on every run.",
    )
    cursor_timezone: str = Field(
        default="UTC", description="Time zone of an incremental key of type timestamp without time zone or date."
    )
    cursor_is_monotonic: bool = Field(
        default=False, description="Promise that a text or uuid cursor only ever grows in commit order."
    )
    on_reject: Literal["fail", "quarantine"] = Field(
        default="fail", description="A row that does not fit the target: fail the run, or put the row aside and go on."
    )
    max_rejects: int = Field(
        default=100, ge=0, le=1_000_000, description="A run that puts more rows aside than this fails."
    )
    on_duplicate_key: Literal["fail", "last"] = Field(
        default="fail",
        description="One key more than once in what is read: fail the run, or keep the last row by incremental_key.",
    )
    on_schema_change: Literal["fail", "add_columns"] = Field(
        default="fail", description="A column of the query that the target lacks: fail, or add it to the target."
    )
    max_delete_ratio: float = Field(
        default=0.5, ge=0, le=1, description="A full load refuses to delete a larger part of the mart than this."
    )
    max_staging_age: Duration = Field(
        default=timedelta(hours=1), description="A half-built full load older than this starts anew."
    )
    snapshot_max_age: Duration = Field(
        default=timedelta(minutes=10), description="A read reopens its snapshot after this long, to let vacuum work."
    )
    batch_timeout: Duration = Field(
        default=timedelta(minutes=30),
        ge=timedelta(seconds=1),
        description="A run fails whose batch takes longer to be read, transformed and written; the first one waits for"
        " the whole query to be sorted.",
    )
    max_rows_per_second: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="The pace a run keeps to, to spare the source; batches are then no larger than that. null: none.",
    )
    pause_between_batches: Duration = Field(
        default=timedelta(0), description="How long a run rests after each batch, at most an hour."
    )
    max_batch_bytes: int = Field(
        default=32 * 1024 * 1024,
        ge=1024,
        description="A batch is cut here even if it has fewer rows than batch_size. At its default, a quarter where"
        " a transform looks at single rows.",
    )

    @field_validator("pause_between_batches")
    @classmethod
    def _rests_at_most_an_hour(cls, value: timedelta) -> timedelta:
        if value > timedelta(hours=1):
            raise ValueError("give at most 1h; for longer rests use schedule_interval")
        return value


class Step(BaseModel):
    """One step of a task plan: SQL reads, PYTHON transforms."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    order_index: int = Field(ge=0, le=1_000_000, examples=[10])
    task_type: TaskType
    body: str | None = Field(
        default=None,
        description="SQL: the query. PYTHON: the name of a registered transform.",
        examples=["audience_segment"],
    )
    source_table: str | None = Field(
        default=None,
        pattern=r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$",
        description="SQL step: read this whole table instead of a body.",
    )
    target_table: str | None = Field(default=None, description="Last step only: where the rows go.")
    options: dict[str, Any] = Field(default_factory=dict)


class Definition(BaseModel):
    """A pipeline as a person writes it, in JSON or YAML."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=NAME, description="Unique; lower-case letters, digits and _.", examples=["top_genres"])
    description: str = Field(default="", max_length=2000)
    type: TaskType = TaskType.SQL
    source_type: Literal["postgres"] = "postgres"
    source: str = Field(default="default", pattern=NAME, description="Name of a configured connection.")
    source_query: str | None = Field(
        default=None,
        description="One SELECT over allowed schemas; $1 is the checkpoint.",
        examples=["SELECT g.id, g.name, count(*) AS films FROM content.genre g GROUP BY g.id, g.name"],
    )
    python_task: str | None = Field(default=None, description="Shorthand for one PYTHON step after source_query.")
    target_table: str = Field(description="analytics.<table>", examples=["analytics.top_genres"])
    mode: Mode = Mode.FULL
    incremental_key: Column | None = Field(default=None, examples=["modified"])
    incremental_id_key: Column | None = Field(default=None, description="Breaks ties of incremental_key; unique.")
    key_columns: tuple[Column, ...] = Field(
        default=(), description="Default: the target's primary key. Required when the target does not exist yet."
    )
    batch_size: int = Field(
        default=5000,
        ge=1,
        le=50_000,
        strict=True,
        description="Rows per transaction. At its default, rows that no transform looks at travel 50 000 at once,"
        " and frames 20 000.",
    )
    enabled: bool = True
    schedule_interval: str | None = Field(
        default=None,
        description="30s, 5m, 1h: run that often. Or a cron line of five fields, in the time zone of the settings.",
        examples=["5m", "*/15 6-22 * * MON-FRI"],
    )
    options: Options = Options()
    tasks: tuple[Step, ...] = Field(default=(), description="Task plan; takes precedence over source_query.")

    @field_validator("source_query")
    @classmethod
    def _strip(cls, value: str | None) -> str | None:
        return value.strip() if value is not None else None

    @field_validator("schedule_interval")
    @classmethod
    def _interval(cls, value: str | None) -> str | None:
        if value is not None:
            schedule.parse(value)
        return value

    @model_validator(mode="after")
    def _cursor_matches_mode(self) -> Self:
        if self.mode is Mode.INCREMENTAL and self.incremental_key is None:
            raise ValueError("mode incremental needs incremental_key, the column that grows with every change")
        if self.mode is Mode.INCREMENTAL and self.tie_breaker is None:
            raise ValueError("mode incremental needs incremental_id_key, the unique column that breaks ties")
        return self

    @property
    def tie_breaker(self) -> str | None:
        """The second cursor column: as said, or the key if it has one column."""
        if self.incremental_id_key is None and len(self.key_columns) == 1:
            return self.key_columns[0]
        return self.incremental_id_key

    @property
    def schedule(self) -> Schedule | None:
        return schedule.parse(self.schedule_interval) if self.schedule_interval else None


PACE_OPTIONS = ("max_rows_per_second", "pause_between_batches")
"""What a running pipeline may take, besides batch_size."""


def with_pace_of(other: Definition, definition: Definition) -> Definition:
    """The definition at the pace of another."""
    pace = {name: getattr(other.options, name) for name in PACE_OPTIONS}
    options = definition.options.model_copy(update=pace)
    return definition.model_copy(update={"batch_size": other.batch_size, "options": options})


@dataclass(frozen=True)
class Pipeline:
    """A stored definition with what the store knows about it."""

    id: PipelineId
    definition: Definition
    status: Status
    config_version: int
    request_id: RequestId | None  # the request that is waiting, running or paused
    rerun_request_id: RequestId | None  # a request made while RUNNING: one more run follows
    requested_at: datetime | None
    attempt: int
    next_attempt_at: datetime | None  # None: as soon as a runner is free
    next_due_at: datetime | None  # None: not scheduled
    fresh_as_of: datetime | None  # every change committed before it is in the mart; None before the first success
    lease_owner: str | None
    lease_expires_at: datetime | None
    created_at: datetime
    updated_at: datetime

    @property
    def name(self) -> str:
        return self.definition.name


@dataclass(frozen=True)
class RunOptions:
    """What one request may ask for beyond the configuration."""

    allow_shrink: bool = False


def suspended_clock() -> float:
    """Seconds of a clock that goes on while the machine sleeps, where the platform has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True)
class Claim:
    """One attempt at a pipeline: the configuration it captured, and the token that proves the lease."""

    pipeline_id: PipelineId
    definition: Definition
    run_id: RunId
    token: int
    taken_at: float  # by the suspended clock, before the claim was sent: the lease ends no later than it seems here
    attempt: int
    options: RunOptions
    config_version: int

    def log_fields(self) -> dict[str, object]:
        return {
            "pipeline": self.definition.name,
            "pipeline_id": str(self.pipeline_id),
            "run_id": self.run_id,
            "attempt": self.attempt,
        }


@dataclass(frozen=True)
class Run:
    """One row of history."""

    id: RunId
    pipeline_id: PipelineId
    request_id: RequestId | None
    attempt: int
    trigger: str
    due_at: datetime | None  # the due time it runs for; None: somebody asked
    kind: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    rows_repeated: int  # of a key that came again later; left out as on_duplicate_key says
    batches: int
    rows_expected: int | None
    lane: str | None  # None: the run ended before it was planned
    slowest_batch_seconds: float | None
    error_code: str | None
    error_message: str | None
    runner: str
    elapsed: float  # seconds by the database's clock, up to now while it runs

    @property
    def rows_per_second(self) -> float | None:
        return round(self.rows_read / self.elapsed, 1) if self.elapsed and self.rows_read else None

    @property
    def seconds_left(self) -> float | None:
        """By the estimate and the pace so far; None where either is missing or the run is over."""
        if self.finished_at is not None or not self.rows_per_second or self.rows_expected is None:
            return None
        return round(max(0, self.rows_expected - self.rows_read) / self.rows_per_second, 1)

    @property
    def seconds(self) -> float | None:
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None


@dataclass(frozen=True)
class Measure:
    """A set of rows in four figures that do not depend on their order."""

    rows: int
    lowest: str | None  # of the control column
    highest: str | None
    digest: str
