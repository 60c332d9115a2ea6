"""Where a new request stands beside those that a pipeline has: every status with every queue and every kind."""

import itertools
from uuid import UUID

import pytest

from vitrine.core.status import Placed, Queue, RequestId, RequestKind, RunOptions, RunRequest, Status, place, resume

SHRINK = RunOptions(allow_shrink=True)
KINDS = {
    "run": (RequestKind.RUN, RunOptions()),
    "shrinking run": (RequestKind.RUN, SHRINK),
    "full run": (RequestKind.FULL, RunOptions()),
    "rollback": (RequestKind.ROLLBACK, RunOptions()),
    "backfill": (RequestKind.BACKFILL, RunOptions(backfill_from="1", backfill_to="2")),
    "longer backfill": (RequestKind.BACKFILL, RunOptions(backfill_from="1", backfill_to="3")),
    "reconcile": (RequestKind.RECONCILE, RunOptions()),
}
NO_CURRENT = (Status.IDLE, Status.FAILED)
"""A request ends with the run; only one that follows may be left."""


def request(name: str, number: int) -> RunRequest:
    kind, options = KINDS[name]
    return RunRequest(RequestId(UUID(int=number)), kind, options)


def queues(status: Status) -> list[Queue]:
    currents = [None] if status in NO_CURRENT else [*KINDS, *([None] if status is Status.PAUSED else [])]
    reruns = [None] if status is Status.IDLE else [*KINDS, None]
    return [
        Queue(request(current, 1) if current else None, request(rerun, 2) if rerun else None, held)
        for current, rerun in itertools.product(currents, reruns)
        for held in ((False, True) if rerun else (False,))
    ]


WALK = [(status, name) for status in Status for name in KINDS]


def ids(queue: Queue) -> list[int]:
    return [one.id.int for one in (queue.current, queue.rerun) if one]


@pytest.mark.promise("D9")
@pytest.mark.parametrize(("status", "name"), WALK)
def test_no_request_is_lost_or_merged_with_an_unequal_one(status: Status, name: str) -> None:
    for queue in queues(status):
        new = request(name, 3)
        placed = place(status, queue, new)
        if placed is None:
            # refused: there is no free place, or a rollback must not be overtaken, or a pause must not be withdrawn
            rollbacks = [one for one in (queue.current, queue.rerun) if one and one.kind == RequestKind.ROLLBACK]
            assert len(ids(queue)) == 2 or rollbacks or status is Status.PAUSE_REQUESTED
            continue
        assert (placed.answer.kind, placed.answer.options) == (new.kind, new.options)
        assert placed.queue.current is not None
        assert set(ids(placed.queue)) == {*ids(queue), placed.answer.id.int}
        kept = {one.id: one for one in (queue.current, queue.rerun) if one}
        for one in (placed.queue.current, placed.queue.rerun):
            assert one is None or kept.get(one.id, one) == one, "a request that waits has changed"


@pytest.mark.parametrize(("status", "name"), WALK)
def test_a_run_under_way_is_never_changed(status: Status, name: str) -> None:
    for queue in queues(status):
        placed = place(status, queue, request(name, 3))
        if placed is not None and status in (Status.RUNNING, Status.PAUSE_REQUESTED):
            assert placed.queue.current is queue.current
            if name != "rollback":
                assert placed.answer is placed.queue.rerun


@pytest.mark.parametrize(("status", "name"), WALK)
def test_a_run_never_overtakes_a_rollback_that_waits(status: Status, name: str) -> None:
    """The rollback would undo what was asked for after it."""
    for queue in queues(status):
        placed = place(status, queue, request(name, 3))
        if placed is None or name == "rollback" or status in (Status.RUNNING, Status.PAUSE_REQUESTED):
            continue
        order = [one for one in (placed.queue.current, placed.queue.rerun) if one]
        behind = order[order.index(placed.answer) + 1 :]
        assert not [one for one in behind if one.kind == RequestKind.ROLLBACK]


@pytest.mark.parametrize(("status", "name"), WALK)
def test_resume_continues_what_waits_whatever_its_kind(status: Status, name: str) -> None:
    for queue in queues(status):
        first = queue.current or queue.rerun
        resumed = resume(status, queue, request("run", 3), None)
        if status is Status.RUNNING or first is None:
            assert resumed == place(status, queue, request("run", 3))
        else:
            kept = Queue(first, queue.rerun, queue.held) if queue.current else Queue(first)
            assert resumed == Placed(kept, first)


@pytest.mark.parametrize("status", [Status.PAUSED, Status.FAILED])
def test_resume_gives_a_waiting_request_other_options_only_if_they_are_given(status: Status) -> None:
    queue = Queue(rerun=request("run", 2))
    resumed = resume(status, queue, request("run", 3), SHRINK)
    assert resumed is not None
    assert (resumed.answer.id.int, resumed.answer.options) == (2, SHRINK)


@pytest.mark.parametrize("queue", queues(Status.PAUSED))
def test_a_rollback_of_a_paused_pipeline_goes_first(queue: Queue) -> None:
    placed = place(Status.PAUSED, queue, request("rollback", 3))
    runs = [one for one in (queue.current, queue.rerun) if one and one.kind != RequestKind.ROLLBACK]
    if len(runs) == 2:
        assert placed is None  # neither can be dropped for it
    elif queue.current is None or queue.rerun is None or runs == [queue.current]:
        assert placed is not None
        assert placed.answer is placed.queue.current


def test_a_rollback_does_not_withdraw_a_requested_pause() -> None:
    queue = Queue(request("run", 1))
    assert place(Status.PAUSE_REQUESTED, queue, request("rollback", 3)) is None
    assert place(Status.RUNNING, queue, request("rollback", 3)) is not None


@pytest.mark.promise("D24")
def test_resume_with_options_keeps_the_range_of_a_backfill() -> None:
    resumed = resume(Status.PAUSED, Queue(request("backfill", 1)), request("run", 3), SHRINK)
    assert resumed is not None
    assert resumed.answer.options == RunOptions(allow_shrink=True, backfill_from="1", backfill_to="2")


def test_a_rollback_under_way_is_not_followed_by_another() -> None:
    """The second would go back one generation further."""
    queue = Queue(request("rollback", 1))
    placed = place(Status.RUNNING, queue, request("rollback", 3))
    assert placed == Placed(queue, request("rollback", 1))


@pytest.mark.promise("D23")
@pytest.mark.parametrize(("status", "name"), WALK)
def test_what_is_paused_is_held_behind_a_new_request_until_it_is_asked_for(status: Status, name: str) -> None:
    for queue in queues(status):
        placed = place(status, queue, request(name, 3))
        if placed is None or placed.queue.rerun is None:
            continue
        if placed.answer is placed.queue.rerun:
            assert not placed.queue.held, "it was just asked for"
        elif placed.answer.id not in {one.id for one in (queue.current, queue.rerun) if one}:
            assert placed.queue.held, "a person has not asked for it to continue"


@pytest.mark.promise("D23")
@pytest.mark.parametrize("name", ["backfill", "reconcile"])
def test_a_request_that_leaves_the_checkpoint_alone_does_not_withdraw_a_requested_pause(name: str) -> None:
    queue = Queue(request("run", 1))
    assert place(Status.PAUSE_REQUESTED, queue, request(name, 3)) is None
    assert place(Status.RUNNING, queue, request(name, 3)) is not None


def test_only_options_that_are_given_are_stored() -> None:
    """A runner of an earlier release refuses a request with an option that it does not know."""
    assert RunOptions().stored() == {}
    assert RunOptions(allow_shrink=True).stored() == {"allow_shrink": True}
    assert RunOptions(deep=True).stored() == {"deep": True}
    assert set(KINDS["backfill"][1].stored()) == {"backfill_from", "backfill_to"}
