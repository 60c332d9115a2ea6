"""What the end of a run means: decided by pure functions, told here as a table."""

from datetime import timedelta

import pytest

from vitrine.core.protocols import Outcome
from vitrine.core.rows import Counts
from vitrine.core.status import RETURNING, Event, RequestKind, RunStatus, Status, next_status
from vitrine.errors import (
    CheckpointMoved,
    ConfigError,
    DataError,
    LeaseLost,
    NotFound,
    RelationMissing,
    RequestRefused,
    TransientError,
    TransitionRefused,
    VitrineError,
    group_of,
)
from vitrine.runner.run import DELAYS, WAITS, Executed, Verdict, delay_before, judge, wait_before
from vitrine.store.queue import MAX_ATTEMPTS

FIRST, SECOND = DELAYS


def ended(outcome: Outcome | None = None, error: VitrineError | None = None, *, moved: bool = False) -> Executed:
    return Executed(outcome, error, Counts(), 7, 0.0, moved)


@pytest.mark.parametrize(
    ("error", "waits", "delays"),
    [
        (TransientError("away"), (1, 2, 4, None, None), (FIRST, SECOND, None, None)),
        (VitrineError("unexpected"), (1, 2, 4, None, None), (FIRST, SECOND, None, None)),
        (CheckpointMoved("elsewhere"), (0, 0, 0, None, None), (FIRST, SECOND, None, None)),
        (ConfigError("no"), (None,) * 5, (None,) * 4),
        (RelationMissing("renamed"), (1, 2, 4, None, None), (None,) * 4),
        (DataError("no"), (None,) * 5, (None,) * 4),
        (LeaseLost("gone"), (None,) * 5, (None,) * 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_wait_before_another_try_and_before_another_attempt(
    error: VitrineError, waits: tuple[float | None, ...], delays: tuple[timedelta | None, ...]
) -> None:
    assert tuple(wait_before(failures, error) for failures in (1, 2, 3, 4, 5)) == waits
    assert tuple(delay_before(attempt, error) for attempt in (1, 2, 3, 4)) == delays


def test_the_waits_grow() -> None:
    assert WAITS == (1, 2, 4)
    assert timedelta(seconds=WAITS[-1]) < FIRST < SECOND


def test_as_many_attempts_are_made_as_takeovers_are_allowed() -> None:
    waits = [delay_before(attempt, TransientError("away")) for attempt in range(1, MAX_ATTEMPTS + 1)]
    assert [wait is None for wait in waits] == [False] * (MAX_ATTEMPTS - 1) + [True]


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome.FINISHED, Verdict(Event.FINISH, RunStatus.SUCCESS)),
        (Outcome.PAUSED, Verdict(Event.PAUSED, RunStatus.PAUSED)),
        (Outcome.RELEASED, Verdict(Event.RELEASE, RunStatus.ABANDONED)),
    ],
)
@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_an_outcome_is_its_own_event_whatever_the_attempt(outcome: Outcome, verdict: Verdict, attempt: int) -> None:
    assert judge(ended(outcome), attempt) == verdict
    assert judge(ended(outcome), attempt, retry=False) == verdict


FAIL = Verdict(Event.FAIL, RunStatus.FAILED)


def again(attempt: int, delay: timedelta) -> Verdict:
    return Verdict(Event.RETRY, RunStatus.FAILED, attempt=attempt, delay=delay)


@pytest.mark.parametrize(
    ("error", "attempt", "moved", "verdict"),
    [
        (TransientError("away"), 1, False, again(1, FIRST)),
        (TransientError("away"), 2, False, again(2, SECOND)),
        (TransientError("away"), 3, False, FAIL),
        # a failure after progress does not use up the attempts of a failure without
        (TransientError("away"), 3, True, again(1, FIRST)),
        (VitrineError("unexpected"), 3, True, again(1, FIRST)),
        (VitrineError("unexpected"), 3, False, FAIL),
        (CheckpointMoved("elsewhere"), 1, False, again(1, FIRST)),
        (CheckpointMoved("elsewhere"), 3, False, FAIL),
        (ConfigError("no"), 1, False, FAIL),
        (ConfigError("no"), 1, True, FAIL),
        (DataError("no"), 1, True, FAIL),
        (LeaseLost("gone"), 1, False, None),
        (LeaseLost("gone"), 1, True, None),
    ],
)
def test_an_error_ends_in_another_attempt_or_a_failure_or_silence(
    error: VitrineError, attempt: int, moved: bool, verdict: Verdict | None
) -> None:
    assert judge(ended(error=error, moved=moved), attempt) == verdict


@pytest.mark.parametrize("error", [TransientError("away"), VitrineError("unexpected"), CheckpointMoved("elsewhere")])
def test_a_run_in_the_foreground_fails_instead_of_waiting_for_another_attempt(error: VitrineError) -> None:
    assert judge(ended(error=error), 1, retry=False) == FAIL
    assert judge(ended(error=error, moved=True), 1, retry=False) == FAIL


@pytest.mark.parametrize(
    ("sqlstate", "group"),
    [
        (None, TransientError),
        ("08006", TransientError),
        ("40001", TransientError),
        ("40P01", TransientError),
        ("53100", TransientError),
        ("53300", TransientError),
        ("55P03", TransientError),
        ("57P01", TransientError),
        ("57P03", TransientError),
        ("22003", DataError),
        ("23505", DataError),
        ("42P01", RelationMissing),
        ("3F000", RelationMissing),
        ("42501", ConfigError),
        ("28P01", ConfigError),
        ("3D000", ConfigError),
        ("57014", TransientError),
    ],
)
def test_a_sqlstate_tells_what_to_do(sqlstate: str | None, group: type[VitrineError]) -> None:
    assert group_of(sqlstate) is group


@pytest.mark.parametrize(
    "error", [ConfigError, NotFound, TransitionRefused, TransientError, DataError, LeaseLost, CheckpointMoved]
)
def test_every_error_has_a_stable_code_that_may_be_narrowed(error: type[VitrineError]) -> None:
    assert error("text").code == error.default_code != VitrineError.default_code
    assert error("text", code="NARROW").code == "NARROW"


@pytest.mark.promise("D21")
def test_a_rollback_that_is_done_leaves_the_pipeline_paused() -> None:
    verdict = judge(ended(Outcome.FINISHED), 1, kind=RequestKind.ROLLBACK)
    assert verdict == Verdict(Event.FINISH_PAUSED, RunStatus.SUCCESS)
    assert next_status(Status.RUNNING, Event.FINISH_PAUSED, rerun=True) is Status.PAUSED


@pytest.mark.parametrize("kind", RequestKind)
def test_a_request_that_can_do_nothing_returns_the_pipeline_to_its_status(kind: RequestKind) -> None:
    verdict = judge(ended(error=RequestRefused("nothing is kept")), 1, kind=kind)
    assert verdict is not None
    assert (verdict.run_status, verdict.returns) == (RunStatus.FAILED, True)


@pytest.mark.promise("D23")
@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize(
    "executed",
    [
        ended(Outcome.FINISHED),
        ended(error=ConfigError("no")),
        ended(error=DataError("no")),
        ended(error=RequestRefused("no")),
    ],
)
def test_a_kind_that_leaves_the_checkpoint_alone_never_changes_the_status(
    executed: Executed, kind: RequestKind
) -> None:
    verdict = judge(executed, 1, kind=kind)
    assert verdict is not None
    if kind in RETURNING:
        assert verdict.returns
    elif executed.outcome is Outcome.FINISHED:
        assert not verdict.returns


@pytest.mark.promise("D23")
@pytest.mark.parametrize("kind", sorted(RETURNING))
def test_the_attempts_of_such_a_kind_are_those_of_a_run(kind: RequestKind) -> None:
    lost = ended(error=TransientError("the source is away"))
    first, last = judge(lost, 1, kind=kind), judge(lost, 3, kind=kind)
    assert first is not None
    assert last is not None
    assert (first.event, last.returns) == (Event.RETRY, True)
