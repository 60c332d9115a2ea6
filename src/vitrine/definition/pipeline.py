"""A stored pipeline, a claimed run, and what a connector is given of it."""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from vitrine.core import keys
from vitrine.core.protocols import Lease
from vitrine.core.rows import Reject
from vitrine.core.status import PipelineId, RequestId, RequestKind, RunId, RunOptions, RunRequest, RunStatus, Status
from vitrine.definition.connectors import Target
from vitrine.definition.model import Definition, Mode, Options
from vitrine.errors import DataError

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


OptionsOf = TypeVar("OptionsOf")
SettingsOf = TypeVar("SettingsOf")


@dataclass(frozen=True)
class RunInfo:
    """The run a connector works for."""

    session: str  # name for sessions, so that they can be found and ended
    pipeline_id: PipelineId | None = None  # None: the definition is not stored
    installation: str = ""  # a sink marks what it creates with this id
    taken_over: bool = False  # the previous holder died: its last requests may still be in progress
    full_run: bool = False  # an incremental pipeline loads everything once
    show_keys: bool = True  # errors may quote the keys of rows
    log_fields: Mapping[str, object] = field(default_factory=dict[str, object])


class RejectPolicy:
    """What happens to rows that do not fit the target; one object per attempt, which sinks and sources call."""

    def __init__(self, target: str, options: Options, *, show_keys: bool = True) -> None:
        self._target = target
        self._options = options
        self._show_keys = show_keys
        self._count = 0
        self._lock = threading.Lock()  # source and sink work in different threads

    @property
    def room(self) -> int:
        """How many more rows may be quarantined."""
        return 0 if self._options.on_reject == "fail" else max(self._options.max_rejects - self._count, 0)

    def judge(self, reject: Reject) -> None:
        """Returns if the row may be quarantined; DataError otherwise."""
        # guarantee: E1
        if self._options.on_reject == "fail":
            which, reason = self._described(reject)
            raise DataError(f"{which} of {self._target}: {reason}; correct it, or set options.on_reject: quarantine")
        with self._lock:
            self._count += 1
            # guarantee: E2
            is_full = self._count > self._options.max_rejects
        if is_full:
            which, reason = self._described(reject)
            raise DataError(
                f"more than {self._options.max_rejects} rows do not fit {self._target}, the last is {which}: {reason};"
                " correct them, or raise options.max_rejects",
                code="TOO_MANY_REJECTS",
            )

    def _described(self, reject: Reject) -> tuple[str, str]:
        """The row and the reason, for an error: without the key if errors may not quote keys."""
        if self._show_keys:
            return f"row {keys.readable(reject.key)}", reject.reason
        reason = reject.reason
        for part in filter(None, keys.from_text(reject.key)):
            reason = reason.replace(part, "…")
        return "a row", reason


@dataclass(frozen=True)
class SourceJob(Generic[OptionsOf, SettingsOf]):
    """A source to build; typed by the connector's own options and settings."""

    definition: Definition
    options: OptionsOf
    settings: SettingsOf
    lease: Lease
    run: RunInfo
    url: str | None = None  # of the configured connection; None where the connector needs none
    rejects: RejectPolicy | None = None  # for rows that the source cannot deliver; None: each of them is an error


@dataclass(frozen=True)
class SinkJob(Generic[OptionsOf, SettingsOf]):
    """A sink to build; typed by the connector's own options and settings."""

    target: Target
    definition: Definition
    options: OptionsOf
    settings: SettingsOf
    lease: Lease
    run: RunInfo
    rejects: RejectPolicy
    store_url: str
    open_rejects: Collection[str] = ()  # keys in quarantine
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as the sink last stored them

    @property
    def rebuilds(self) -> bool:
        """Whether a load replaces the whole target."""
        return self.run.full_run or self.definition.mode is Mode.FULL


Loads = Callable[[], Collection[tuple[PipelineId, int]]]
"""The loads under construction, by pipeline and generation."""


@dataclass(frozen=True)
class SweepJob(Generic[SettingsOf]):
    """Leftovers to remove: rows staged by this installation for a load that is no longer under construction.

    `open_loads` is called after the leftovers are listed: a load is recorded in the store before anything is staged.
    """

    settings: SettingsOf
    installation: str
    store_url: str
    open_loads: Loads
