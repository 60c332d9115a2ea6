"""A stored pipeline, a claimed run, and what a connector is given of it."""

import hashlib
import time
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Literal, NamedTuple

from vitrine.core.status import PipelineId, RequestId, RequestKind, RunId, RunOptions, RunRequest, RunStatus, Status
from vitrine.definition.model import Definition, Mode

FreshnessCovers = Literal["everything", "inserts and updates"]
"""The changes of the source that a mart shows as of its `fresh_as_of`."""


class LastError(NamedTuple):
    """Why the last run failed."""

    code: str
    message: str
    at: datetime


Verdict = Literal["equal", "different"]

KEYS_KEPT = 100
"""Keys of each kind of difference that a report names; of more, only the number is kept."""


class Verification(NamedTuple):
    """What deep reconciles have found."""

    until: datetime | None = None  # the mart was proven equal to its source as of this time; None: never
    verdict: Verdict | None = None  # of the last one; None: there was none since the target was chosen
    at: datetime | None = None  # when that one ended


class AppliedFile(NamedTuple):
    """The file that manages a definition: the next `apply` of it stores what it says."""

    name: str  # without folders of the machine that it was read on
    applied_at: datetime
    differs: bool  # the definition was changed since, and is not the one that was applied


@dataclass(frozen=True)
class Pipeline:
    """A stored definition with its status and requests."""

    id: PipelineId
    definition: Definition
    status: Status
    config_version: int
    request: RunRequest | None  # the request that is waiting, running or paused
    rerun: RunRequest | None  # the request that follows it
    rerun_held: bool  # that one waits for a person: it does not start if the current one returns to that status
    requested_at: datetime | None
    attempt: int
    next_attempt_at: datetime | None  # None: as soon as a runner is free
    next_due_at: datetime | None  # None: not scheduled
    postponed: int  # how many scheduled runs in a row were postponed
    last_error: LastError | None  # None: the last run that ended was a success
    fresh_as_of: datetime | None  # every change committed before it is in the mart; None before the first success
    verification: "Verification"
    lease_owner: str | None
    lease_expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    status_since: datetime | None  # None: its status has not changed since this is recorded
    read_at: datetime = field(compare=False)  # when the store was read, by its clock
    file: AppliedFile | None = None  # None: no file manages the definition

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def request_id(self) -> RequestId | None:
        return self.request.id if self.request else None

    @property
    def rerun_request_id(self) -> RequestId | None:
        return self.rerun.id if self.rerun else None

    def is_stale(self, zone: tzinfo) -> bool:
        """Whether the mart is older than its freshness or its schedule allows; `zone`: time zone for cron schedules."""
        return self.definition.enabled and self.is_late(self.stale_at(zone))

    def is_late(self, stale_at: datetime | None) -> bool:
        """The same for a disabled pipeline as well, which is never called stale."""
        return stale_at is not None and self.read_at > stale_at

    def stale_at(self, zone: tzinfo) -> datetime | None:
        """Until when the mart is as fresh as its freshness or its schedule promises; None: nothing is promised."""
        schedule, freshness = self.definition.schedule, self.definition.options.freshness
        fresh = self.fresh_as_of or self.created_at
        if freshness is not None:
            return fresh + freshness
        return None if schedule is None else schedule.stale_at(fresh, zone=zone)

    @property
    def freshness_covers(self) -> FreshnessCovers:
        """A deleted row has no cursor that a run could read, unless it is only marked as deleted."""
        is_complete = self.definition.mode is Mode.FULL or self.definition.options.delete_mode == "soft_column"
        return "everything" if is_complete else "inserts and updates"


def suspended_clock() -> float:
    """Seconds of a clock that includes time in suspend, if the platform has one."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True)
class Claim:
    """One attempt at a pipeline: the configuration it captured, and the token that proves the lease."""

    pipeline_id: PipelineId
    definition: Definition
    run_id: RunId
    token: int
    taken_at: float  # by suspended_clock, read before the claim was sent: the store never expires the lease earlier
    attempt: int
    options: RunOptions
    config_version: int
    taken_over: bool = False  # the previous holder lost its lease: its last requests may still be in progress
    tag: str = ""  # names this installation in the names of its sessions
    kind: RequestKind = RequestKind.RUN
    request_id: RequestId | None = None
    scheduled: bool = False  # only the schedule asked for it, no person
    postponed: int = 0  # how many scheduled runs before it were postponed, without a success since

    @property
    def session(self) -> str:
        """The name of the claim's sessions; what follows another colon is their purpose."""
        return f"vitrine:{self.tag}:{self.token}"

    @property
    def backfill_key(self) -> str:
        """Names a backfill and the work that it does: one that continues must still do the same work."""
        work = self.definition.model_dump_json(
            include={"source_type", "source", "source_query", "python_task", "tasks", "target_table", "key_columns"}
            | {"incremental_key", "incremental_id_key"}
        )
        return f"{self.request_id}:{hashlib.sha256(work.encode()).hexdigest()[:16]}"

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
    due_at: datetime | None  # None: the run was requested, not scheduled
    kind: str
    status: RunStatus
    started_at: datetime
    finished_at: datetime | None
    rows_read: int
    rows_written: int
    rows_deleted: int
    rows_rejected: int
    rows_repeated: int  # skipped because their key occurred again; see on_duplicate_key
    batches: int
    rows_expected: int | None
    lane: str | None  # None: the run ended before it was planned
    slowest_batch_seconds: float | None
    error_code: str | None
    error_message: str | None
    result: dict[str, Any] | None  # what a reconcile or a replay has found; None: another kind, or it has not ended
    checks: list[dict[str, Any]] | None  # results of the pipeline's checks; None: no row was checked
    runner: str
    elapsed: float  # seconds by the database's clock; until now if the run is active

    @property
    def rows_per_second(self) -> float | None:
        return round(self.rows_read / self.elapsed, 1) if self.elapsed and self.rows_read else None

    @property
    def seconds_left(self) -> float | None:
        """From the estimate and the rate so far; None if either is missing or the run has ended."""
        if self.finished_at is not None or not self.rows_per_second or self.rows_expected is None:
            return None
        return round(max(0, self.rows_expected - self.rows_read) / self.rows_per_second, 1)

    @property
    def seconds(self) -> float | None:
        return (self.finished_at - self.started_at).total_seconds() if self.finished_at else None
