"""What the end of a run means: decided by pure functions, told here as a table."""

from datetime import timedelta

import pytest

from vitrine.errors import (
    CheckpointMoved,
    ConfigError,
    DataError,
    LeaseLost,
    NotFound,
    TransientError,
    TransitionRefused,
    VitrineError,
    group_of,
)
from vitrine.flow import Counts, Outcome
from vitrine.runner.dispatcher import Verdict, delay_before, judge
from vitrine.runner.executor import Executed
from vitrine.status import Event, RunStatus
from vitrine.store.pipelines import MAX_ATTEMPTS

SECOND = timedelta(seconds=1)
AT_ONCE = timedelta(0)


def ended(outcome: Outcome | None = None, error: VitrineError | None = None, batches: int = 0) -> Executed:
    return Executed(outcome, error, Counts(), batches, 0.0)


@pytest.mark.parametrize(
    ("error", "delays"),
    [
        (TransientError("away"), (SECOND, 4 * SECOND, None, None)),
        (VitrineError("unexpected"), (SECOND, 4 * SECOND, None, None)),
        (CheckpointMoved("elsewhere"), (AT_ONCE, AT_ONCE, AT_ONCE, AT_ONCE)),
        (ConfigError("no"), (None, None, None, None)),
        (DataError("no"), (None, None, None, None)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_wait_before_another_attempt(error: VitrineError, delays: tuple[timedelta | None, ...]) -> None:
    assert tuple(delay_before(attempt, error) for attempt in (1, 2, 3, 4)) == delays


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


@pytest.mark.parametrize(
    ("error", "attempt", "batches", "verdict"),
    [
        (TransientError("away"), 1, 0, Verdict(Event.RETRY, RunStatus.FAILED, attempt=1, delay=SECOND)),
        (TransientError("away"), 2, 0, Verdict(Event.RETRY, RunStatus.FAILED, attempt=2, delay=4 * SECOND)),
        (TransientError("away"), 3, 0, FAIL),
        # a failure after progress does not use up the attempts of a failure without
        (TransientError("away"), 3, 1, Verdict(Event.RETRY, RunStatus.FAILED, attempt=1, delay=SECOND)),
        (VitrineError("unexpected"), 3, 7, Verdict(Event.RETRY, RunStatus.FAILED, attempt=1, delay=SECOND)),
        (VitrineError("unexpected"), 3, 0, FAIL),
        (CheckpointMoved("elsewhere"), 3, 0, Verdict(Event.RETRY, RunStatus.FAILED, attempt=3, delay=AT_ONCE)),
        (ConfigError("no"), 1, 0, FAIL),
        (ConfigError("no"), 1, 9, FAIL),
        (DataError("no"), 1, 9, FAIL),
        (LeaseLost("gone"), 1, 0, None),
        (LeaseLost("gone"), 1, 9, None),
    ],
)
def test_an_error_ends_in_another_attempt_or_a_failure_or_silence(
    error: VitrineError, attempt: int, batches: int, verdict: Verdict | None
) -> None:
    assert judge(ended(error=error, batches=batches), attempt) == verdict


@pytest.mark.parametrize("error", [TransientError("away"), VitrineError("unexpected"), CheckpointMoved("elsewhere")])
def test_a_run_in_the_foreground_fails_instead_of_waiting(error: VitrineError) -> None:
    assert judge(ended(error=error), 1, retry=False) == FAIL
    assert judge(ended(error=error, batches=3), 1, retry=False) == FAIL


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
        ("42P01", ConfigError),
        ("42501", ConfigError),
        ("28P01", ConfigError),
        ("3D000", ConfigError),
        ("57014", ConfigError),
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
