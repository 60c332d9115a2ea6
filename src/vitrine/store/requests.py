"""Where a new request stands beside the requests that a pipeline has already."""

from dataclasses import replace
from typing import NamedTuple

from vitrine.requests import RETURNING, RequestKind, RunOptions, RunRequest
from vitrine.status import Status


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
