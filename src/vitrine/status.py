"""Statuses of a pipeline, the events that change them, and the one table of transitions."""

import json
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


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
