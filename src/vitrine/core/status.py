"""Statuses of a pipeline with the one table of transitions, and what a request asks for."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, NewType
from uuid import UUID

PipelineId = NewType("PipelineId", UUID)
RunId = NewType("RunId", int)
RequestId = NewType("RequestId", UUID)


class Status(StrEnum):
    IDLE = "IDLE"
    RUN_REQUESTED = "RUN_REQUESTED"
    RUNNING = "RUNNING"
    PAUSE_REQUESTED = "PAUSE_REQUESTED"
    PAUSED = "PAUSED"
    FAILED = "FAILED"


class Event(StrEnum):
    RUN = "run"
    SCHEDULE = "schedule"
    CHAIN = "chain"  # every pipeline that it runs after has succeeded
    CLAIM = "claim"
    PAUSE = "pause"
    PAUSED = "paused"
    FINISH = "finish"
    FINISH_PAUSED = "finish_paused"  # the end of a run after which no schedule may start the next
    FAIL = "fail"
    POSTPONE = "postpone"  # a scheduled run failed for a reason that may pass: it is due again later
    RETRY = "retry"
    RELEASE = "release"
    EXPIRE = "expire"
    CRASH_LOOP = "crash_loop"
    # the end of a request that left the checkpoint alone, or could do nothing: back to the status before it
    RETURN_IDLE = "return_idle"
    RETURN_PAUSED = "return_paused"
    RETURN_FAILED = "return_failed"


class RunStatus(StrEnum):
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    FAILED = "FAILED"
    PAUSED = "PAUSED"
    ABANDONED = "ABANDONED"


LEASED = frozenset({Status.RUNNING, Status.PAUSE_REQUESTED})
"""The statuses in which a runner holds the pipeline."""

HALTED = frozenset({Status.PAUSED, Status.PAUSE_REQUESTED, Status.FAILED})
"""No schedule starts these: a due time that passes meanwhile starts nothing."""

# A pair that is absent is refused. A status that maps to itself accepts the event and stays
# (`run` while RUNNING sets `rerun`, and `finish`, `postpone` or `return_…` then lead to RUN_REQUESTED: see
# `next_status`).
NEXT: Mapping[tuple[Status, Event], Status] = MappingProxyType(
    {
        (Status.IDLE, Event.RUN): Status.RUN_REQUESTED,
        (Status.FAILED, Event.RUN): Status.RUN_REQUESTED,
        (Status.PAUSED, Event.RUN): Status.RUN_REQUESTED,
        (Status.RUN_REQUESTED, Event.RUN): Status.RUN_REQUESTED,
        (Status.RUNNING, Event.RUN): Status.RUNNING,
        (Status.PAUSE_REQUESTED, Event.RUN): Status.RUNNING,
        (Status.IDLE, Event.SCHEDULE): Status.RUN_REQUESTED,
        (Status.IDLE, Event.CHAIN): Status.RUN_REQUESTED,
        (Status.RUN_REQUESTED, Event.CLAIM): Status.RUNNING,
        (Status.RUN_REQUESTED, Event.PAUSE): Status.PAUSED,
        (Status.IDLE, Event.PAUSE): Status.PAUSED,
        (Status.RUNNING, Event.PAUSE): Status.PAUSE_REQUESTED,
        (Status.PAUSED, Event.PAUSE): Status.PAUSED,
        (Status.PAUSE_REQUESTED, Event.PAUSE): Status.PAUSE_REQUESTED,
        (Status.PAUSE_REQUESTED, Event.PAUSED): Status.PAUSED,
        (Status.RUNNING, Event.FINISH): Status.IDLE,
        (Status.PAUSE_REQUESTED, Event.FINISH): Status.PAUSED,
        (Status.RUNNING, Event.FINISH_PAUSED): Status.PAUSED,
        (Status.PAUSE_REQUESTED, Event.FINISH_PAUSED): Status.PAUSED,
        (Status.RUNNING, Event.FAIL): Status.FAILED,
        (Status.PAUSE_REQUESTED, Event.FAIL): Status.FAILED,
        (Status.RUNNING, Event.POSTPONE): Status.IDLE,
        (Status.PAUSE_REQUESTED, Event.POSTPONE): Status.PAUSED,
        (Status.RUNNING, Event.RETRY): Status.RUN_REQUESTED,
        (Status.PAUSE_REQUESTED, Event.RETRY): Status.PAUSED,
        (Status.RUNNING, Event.RELEASE): Status.RUN_REQUESTED,
        (Status.PAUSE_REQUESTED, Event.RELEASE): Status.PAUSED,
        (Status.RUNNING, Event.EXPIRE): Status.RUN_REQUESTED,
        # guarantee: D4
        (Status.PAUSE_REQUESTED, Event.EXPIRE): Status.PAUSED,
        (Status.RUNNING, Event.CRASH_LOOP): Status.FAILED,
        (Status.RUNNING, Event.RETURN_IDLE): Status.IDLE,
        (Status.PAUSE_REQUESTED, Event.RETURN_IDLE): Status.PAUSED,
        (Status.RUNNING, Event.RETURN_PAUSED): Status.PAUSED,
        (Status.PAUSE_REQUESTED, Event.RETURN_PAUSED): Status.PAUSED,
        (Status.RUNNING, Event.RETURN_FAILED): Status.FAILED,
        (Status.PAUSE_REQUESTED, Event.RETURN_FAILED): Status.FAILED,
    }
)

RETURNS = frozenset({Event.RETURN_IDLE, Event.RETURN_PAUSED, Event.RETURN_FAILED})
"""The events that return a pipeline to the status before its request; the store chooses one by that status."""

STARTS_RERUN = frozenset({Event.FINISH, Event.POSTPONE}) | RETURNS
"""The events that end a request and start the one that follows it."""


def next_status(status: Status, event: Event, *, rerun: bool = False) -> Status | None:
    """The status after the event, or None if it is refused. `rerun` is the only other input."""
    # guarantee: D8
    if event in STARTS_RERUN and status is Status.RUNNING and rerun:
        return Status.RUN_REQUESTED
    return NEXT.get((status, event))


def steps() -> dict[Event, dict[Status, dict[str, Status]]]:
    """`next_status` as JSON for SQL: event, status and `rerun` to the new status; what is absent is refused."""
    table: dict[Event, dict[Status, dict[str, Status]]] = {event: {} for event in Event}
    for (old, event), new in NEXT.items():
        table[event][old] = {"false": new, "true": next_status(old, event, rerun=True) or new}
    return table


STEPS = json.dumps(steps(), separators=(",", ":"))
"""The table of transitions, for the fragment `guard` of the store's statements."""


def diagram() -> str:
    """The table as a Mermaid state diagram, for docs/architecture.md."""
    arrows: dict[tuple[Status, Status], list[str]] = {}
    for (old, event), new in NEXT.items():
        arrows.setdefault((old, new), []).append(event.value)
    arrows.setdefault((Status.RUNNING, Status.RUN_REQUESTED), []).append("finish, postpone or return with rerun")
    lines = [f"    {old} --> {new}: {', '.join(events)}" for (old, new), events in arrows.items() if old is not new]
    return "\n".join(["stateDiagram-v2", "    [*] --> IDLE", *lines])


class RequestKind(StrEnum):
    """What a request asks for. The store keeps it as text, so that a new kind needs no migration."""

    RUN = "run"
    FULL = "full"  # once, an incremental pipeline reads everything and removes what vanished at the source
    ROLLBACK = "rollback"
    BACKFILL = "backfill"  # a range of the cursor is read and written again; the checkpoint stays
    RECONCILE = "reconcile"  # the mart is compared with its source, and what differs is repaired if that is asked for
    REPLAY = "replay"  # the keys in quarantine are read and written again; the checkpoint stays
    RESEND = "resend"  # one key is read and written again; the checkpoint stays


RETURNING = frozenset({RequestKind.BACKFILL, RequestKind.RECONCILE, RequestKind.REPLAY, RequestKind.RESEND})
"""The kinds that leave the checkpoint alone: however they end, the pipeline returns to the status it had."""


@dataclass(frozen=True)
class RunOptions:
    """Options of one run request."""

    allow_shrink: bool = False
    backfill_from: str | None = None  # a backfill: the first value of the cursor
    backfill_to: str | None = None  # and the first one behind its last
    deep: bool = False  # a reconcile: down to the keys that differ
    repair: bool = False  # and these are corrected
    key: str | None = None  # a resend: the key, as that of a reject
    delete: bool = False  # and it is deleted from the target if the source does not have it

    def stored(self) -> dict[str, object]:
        """As the store keeps them; options that are not given are left out, because an older runner knows fewer."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}


@dataclass(frozen=True)
class RunRequest:
    """A request that is waiting, running or paused."""

    id: RequestId
    kind: str = RequestKind.RUN  # a newer release may have stored a kind that this one does not know
    options: RunOptions = RunOptions()

    @property
    def label(self) -> str:
        """The kind in a sentence."""
        if self.kind == RequestKind.BACKFILL:
            return f"backfill from {self.options.backfill_from} to {self.options.backfill_to}"
        if self.kind == RequestKind.RECONCILE and (self.options.repair or self.options.deep):
            return "repair" if self.options.repair else "deep reconcile"
        return "full run" if self.kind == RequestKind.FULL else self.kind

    def equals(self, other: "RunRequest") -> bool:
        """Whether both ask for the same; their ids do not matter."""
        # guarantee: D9
        return (self.kind, self.options) == (other.kind, other.options)


class Queue(NamedTuple):
    """The requests of a pipeline: at most one that is waiting, running or paused, and one that follows it."""

    current: RunRequest | None = None
    rerun: RunRequest | None = None
    held: bool = False  # the rerun waits for a person: it does not start if the current one returns to that status


class Placed(NamedTuple):
    """The requests after a new one has arrived, and which of them is the answer to it."""

    queue: Queue
    answer: RunRequest


def place(status: Status, queue: Queue, new: RunRequest) -> Placed | None:
    """The queue with a new request; None if it is refused, because it equals no request that waits and none may follow.

    Requests that ask for the same are merged while they wait; unequal ones never are.
    """
    match status:
        case Status.RUNNING | Status.PAUSE_REQUESTED:
            return _beside_running(status, queue, new)
        case Status.RUN_REQUESTED:
            return _behind_waiting(queue, new)
        case Status.IDLE | Status.PAUSED | Status.FAILED:
            return _before_paused(queue, new)


def resume(status: Status, queue: Queue, new: RunRequest, options: RunOptions | None) -> Placed | None:
    """The same for `resume`: whatever waits or is paused continues, with new options only if they are given."""
    first = queue.current or queue.rerun
    if status is Status.RUNNING or first is None or (status is Status.RUN_REQUESTED and options is not None):
        return place(status, queue, new)
    if status in (Status.PAUSED, Status.FAILED) and options is not None:
        # not the others: they say what a backfill reads
        first = replace(first, options=replace(first.options, allow_shrink=options.allow_shrink))
    return Placed(Queue(first, queue.rerun, queue.held) if queue.current else Queue(first), first)


def _beside_running(status: Status, queue: Queue, new: RunRequest) -> Placed | None:
    """The run may have read already, so a request for new data follows it; a rollback under way is the one asked for.

    A rollback does not withdraw a requested pause: the run would publish what the rollback is to remove. Nor does a
    request that leaves the checkpoint alone: it does not ask for the run to continue.
    """
    if _is_rollback(new) and queue.current is not None and queue.current.equals(new):
        return Placed(queue, queue.current)
    if status is Status.PAUSE_REQUESTED and keeps_pause(new):
        return None
    return _follow(queue, new)


def keeps_pause(request: RunRequest) -> bool:
    """Whether the request must wait for a requested pause instead of withdrawing it."""
    return _is_rollback(request) or request.kind in RETURNING


def _behind_waiting(queue: Queue, new: RunRequest) -> Placed | None:
    current = queue.current
    if current is not None and current.equals(new) and not _is_rollback(queue.rerun):
        return Placed(queue, current)
    return _follow(queue, new)


def _follow(queue: Queue, new: RunRequest) -> Placed | None:
    """Behind the current one. A paused request that is asked for again is not held any more."""
    if queue.rerun is None:
        return Placed(Queue(queue.current, new), new)
    return Placed(Queue(queue.current, queue.rerun), queue.rerun) if queue.rerun.equals(new) else None


def _before_paused(queue: Queue, new: RunRequest) -> Placed | None:
    """Nothing moves until the new request arrives, so it goes first, and what is paused follows it.

    Nothing goes before a rollback that waits: the rollback would then undo what was asked for after it. What is paused
    stays paused if the new request only returns the pipeline to its status.
    """
    first, second = (queue.current, queue.rerun) if queue.current else (queue.rerun, None)
    if first is None:
        return Placed(Queue(new), new)
    if first.equals(new) and not _is_rollback(second):
        return Placed(Queue(first, second, queue.held and second is not None), first)
    if _is_rollback(first):
        return None
    if second is None:
        return Placed(Queue(new, first, held=True), new)
    return Placed(Queue(second, first, held=True), second) if second.equals(new) else None


def _is_rollback(request: RunRequest | None) -> bool:
    return request is not None and request.kind == RequestKind.ROLLBACK
