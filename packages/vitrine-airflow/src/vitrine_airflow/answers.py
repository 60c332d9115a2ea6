"""What the API answers, as far as tasks use it. Fields that are not known here are ignored."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

Body = Mapping[str, Any]

COUNTS = ("rows_read", "rows_written", "rows_deleted", "rows_rejected", "rows_repeated", "batches")


@dataclass(frozen=True)
class Caller:
    """Who the API thinks we are."""

    name: str
    role: str

    @classmethod
    def of(cls, body: Body) -> Self:
        return cls(name=body["name"], role=body["role"])


@dataclass(frozen=True)
class Requested:
    """A request that was made, or an equal one that was waiting already."""

    request_id: str
    status: str

    @classmethod
    def of(cls, body: Body) -> Self:
        return cls(request_id=body["request_id"], status=body["status"])


@dataclass(frozen=True)
class Comparison:
    """The number of rows on both sides; no values, because they end in logs."""

    equal: bool
    source_rows: int
    target_rows: int

    @classmethod
    def of(cls, body: Body) -> Self:
        return cls(equal=body["equal"], source_rows=body["source"]["rows"], target_rows=body["target"]["rows"])


@dataclass(frozen=True)
class Run:
    """One attempt of a request."""

    id: int
    kind: str
    attempt: int
    counts: Mapping[str, int]
    seconds: float | None
    error_code: str | None
    error_message: str | None
    comparison: Comparison | None  # of a reconcile that has ended

    @classmethod
    def of(cls, body: Body) -> Self:
        return cls(
            id=body["id"],
            kind=body["kind"],
            attempt=body["attempt"],
            counts={name: body[name] for name in COUNTS},
            seconds=body["seconds"],
            error_code=body["error_code"],
            error_message=body["error_message"],
            comparison=Comparison.of(body["result"]) if body.get("result") else None,
        )


@dataclass(frozen=True)
class Request:
    """A request with its newest run."""

    id: str
    pipeline: str
    state: str  # pending, running, paused, succeeded or failed
    run: Run | None

    @classmethod
    def of(cls, body: Body) -> Self:
        run = body["run"]
        return cls(
            id=body["request_id"], pipeline=body["pipeline"], state=body["state"], run=Run.of(run) if run else None
        )

    @property
    def has_ended(self) -> bool:
        return self.state in ("succeeded", "failed")


@dataclass(frozen=True)
class Status:
    """The status of a pipeline."""

    pipeline: str
    status: str
    request_id: str | None  # that is pending, running or paused
    fresh_as_of: datetime | None  # None before the first success
    freshness_covers: str
    waiting: str | None  # why nothing happens; None during a run, and when nothing is expected

    @classmethod
    def of(cls, body: Body) -> Self:
        fresh = body["fresh_as_of"]
        return cls(
            pipeline=body["pipeline"],
            status=body["status"],
            request_id=body["request_id"],
            fresh_as_of=datetime.fromisoformat(fresh) if fresh else None,
            freshness_covers=body["freshness_covers"],
            waiting=body["waiting"],
        )
