"""The arithmetic of a throttle: how large a batch may be, and when the next one may start."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from vitrine.core.protocols import Limits, Throttle
from vitrine.definition.model import Definition, Options, with_throttle_of

SECOND = timedelta(seconds=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def delay_after(throttle: Throttle, clock: Clock, rows: int, seconds: float) -> float:
    """The delay after a batch that took this long."""
    throttle.batch_started()
    clock.now += seconds
    throttle.batch_ended(rows)
    return throttle.delay()


def test_without_limits_there_is_no_wait() -> None:
    clock = Clock()
    throttle = Throttle(Limits(5000), clock)
    assert throttle.delay() == 0
    assert delay_after(throttle, clock, 5000, 0.01) == 0


@pytest.mark.parametrize(("rate", "size"), [(None, 5000), (10_000, 5000), (5000, 5000), (100, 100), (1, 1)])
def test_a_batch_is_no_larger_than_a_second_allows(rate: int | None, size: int) -> None:
    assert Throttle(Limits(5000, max_rows_per_second=rate)).rows == size


def test_a_rate_counts_from_the_start_of_the_batch() -> None:
    clock = Clock()
    throttle = Throttle(Limits(5000, max_rows_per_second=1000), clock)
    assert delay_after(throttle, clock, 500, 0.2) == pytest.approx(0.3)
    clock.now += 0.3
    assert throttle.delay() == pytest.approx(0)
    assert delay_after(throttle, clock, 500, 2.0) == 0  # slower than the limit


def test_lost_time_is_not_made_up_for_by_a_burst() -> None:
    clock = Clock()
    throttle = Throttle(Limits(5000, max_rows_per_second=1000), clock)
    delay_after(throttle, clock, 1000, 60.0)
    assert delay_after(throttle, clock, 1000, 0.1) == pytest.approx(0.9)


def test_a_pause_counts_from_the_end_of_the_batch_and_the_longer_wait_applies() -> None:
    clock = Clock()
    throttle = Throttle(Limits(5000, max_rows_per_second=1000, pause_between_batches=2 * SECOND), clock)
    assert delay_after(throttle, clock, 1000, 0.5) == pytest.approx(2)
    assert delay_after(throttle, clock, 5000, 0.5) == pytest.approx(4.5)


def test_new_limits_apply_at_once_even_to_a_wait_under_way() -> None:
    clock = Clock()
    throttle = Throttle(Limits(5000, pause_between_batches=3600 * SECOND), clock)
    assert delay_after(throttle, clock, 10, 0.1) == pytest.approx(3600)
    throttle.limits = Limits(10, batch_bytes=2048)
    assert throttle.delay() == 0
    assert (throttle.rows, throttle.bytes) == (10, 2048)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        (Limits(5000), 0),
        (Limits(5000, max_rows_per_second=100), 3),
        (Limits(5000, pause_between_batches=2 * SECOND), 2),
        (Limits(5000, max_rows_per_second=100, pause_between_batches=2 * SECOND), 3),
        (Limits(5000, max_rows_per_second=1000, pause_between_batches=2 * SECOND), 2),
    ],
)
def test_the_longest_wait_after_a_batch_is_known_in_advance(limits: Limits, seconds: float) -> None:
    clock = Clock()
    throttle = Throttle(limits, clock)
    assert throttle.seconds_after(300) == pytest.approx(seconds)
    assert delay_after(throttle, clock, 300, 0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_rows_per_second", 0),
        ("max_rows_per_second", -5),
        ("max_rows_per_second", 1.5),
        ("max_rows_per_second", "fast"),
        ("max_rows_per_second", 10**12),
        ("pause_between_batches", "-1s"),
        ("pause_between_batches", "61m"),
        ("pause_between_batches", "a while"),
    ],
)
def test_a_throttle_out_of_bounds_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=option):
        Options.model_validate({option: value})


def test_only_the_throttle_is_taken_from_another_definition() -> None:
    fields = {"name": "p", "source_query": "SELECT 1", "target_table": "analytics.p"}
    old = Definition.model_validate(fields)
    options = {"max_rows_per_second": 7, "pause_between_batches": "2s", "max_rejects": 3}
    new = Definition.model_validate({**fields, "description": "new", "batch_size": 9, "options": options})
    merged = with_throttle_of(new, old)
    assert (merged.batch_size, merged.options.max_rows_per_second) == (9, 7)
    assert merged.options.pause_between_batches == 2 * SECOND
    assert (merged.description, merged.options.max_rejects) == (old.description, old.options.max_rejects)
