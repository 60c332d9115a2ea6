"""The calls of the API that tasks make, each with the answer it has."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from vitrine_airflow.answers import Body, Caller, Request, Requested, Status

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One call. Each of them may be repeated when its answer is lost: reading changes nothing, an equal request that
    still waits is the same request, and a pipeline that is paused stays paused."""

    method: str
    path: str
    read: Callable[[Body], Answer]
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    wait: float = 0.0  # seconds that the API itself waits before it answers


def whoami() -> Call[Caller]:
    return Call("GET", "/whoami", Caller.of)


def status(pipeline: str) -> Call[Status]:
    return Call("GET", _of_pipeline(pipeline, "status"), Status.of)


def run(pipeline: str, options: Mapping[str, Any]) -> Call[Requested]:
    return Call("POST", _of_pipeline(pipeline, "run"), Requested.of, body=options)


def reconcile(pipeline: str) -> Call[Requested]:
    return Call("POST", _of_pipeline(pipeline, "reconcile"), Requested.of)


def pause(pipeline: str) -> Call[str]:
    """The answer is the status: PAUSED, or PAUSE_REQUESTED until the current batch is written."""
    return Call("POST", _of_pipeline(pipeline, "pause"), _status_of)


def request(request_id: str, *, wait: int = 0) -> Call[Request]:
    """With `wait`, the answer arrives when the request has ended, at the latest after that many seconds."""
    query = {"wait": f"{wait}s"} if wait else {}
    return Call("GET", f"/requests/{quote(request_id, safe='')}", Request.of, query=query, wait=wait)


def _of_pipeline(pipeline: str, route: str) -> str:
    return f"/pipelines/{quote(pipeline, safe='')}/{route}"


def _status_of(body: Body) -> str:
    return str(body["status"])
