"""The arithmetic of a pace: how large a batch may be, and when the next one may begin."""

from datetime import timedelta

import pytest
from pydantic import ValidationError

from vitrine.model import Definition, Options, with_pace_of
from vitrine.pace import Limits, Pace

SECOND = timedelta(seconds=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def ran(pace: Pace, clock: Clock, rows: int, seconds: float) -> float:
    """A batch that took so long; the delay after it."""
    pace.begin()
    clock.now += seconds
    pace.end(rows)
    return pace.delay()


def test_without_limits_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(Limits(5000), clock)
    assert pace.delay() == 0
    assert ran(pace, clock, 5000, 0.01) == 0


@pytest.mark.parametrize(("rate", "size"), [(None, 5000), (10_000, 5000), (5000, 5000), (100, 100), (1, 1)])
def test_a_batch_is_no_larger_than_a_second_allows(rate: int | None, size: int) -> None:
    assert Limits(5000, rate).rows_at_once == size


def test_a_rate_counts_from_the_beginning_of_the_batch() -> None:
    clock = Clock()
    pace = Pace(Limits(5000, 1000), clock)
    assert ran(pace, clock, 500, 0.2) == pytest.approx(0.3)
    clock.now += 0.3
    assert pace.delay() == pytest.approx(0)
    assert ran(pace, clock, 500, 2.0) == 0  # slower than it may be


def test_time_that_was_lost_is_not_made_up_for_by_a_burst() -> None:
    clock = Clock()
    pace = Pace(Limits(5000, 1000), clock)
    ran(pace, clock, 1000, 60.0)
    assert ran(pace, clock, 1000, 0.1) == pytest.approx(0.9)


def test_a_pause_counts_from_the_end_of_the_batch_and_the_longer_of_both_holds() -> None:
    clock = Clock()
    pace = Pace(Limits(5000, 1000, 2 * SECOND), clock)
    assert ran(pace, clock, 1000, 0.5) == pytest.approx(2)
    assert ran(pace, clock, 5000, 0.5) == pytest.approx(4.5)


def test_other_limits_hold_at_once_even_for_a_rest_under_way() -> None:
    clock = Clock()
    pace = Pace(Limits(5000, None, 3600 * SECOND), clock)
    assert ran(pace, clock, 10, 0.1) == pytest.approx(3600)
    pace.limits = Limits(10)
    assert pace.delay() == 0


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
def test_a_pace_out_of_bounds_is_refused(option: str, value: object) -> None:
    with pytest.raises(ValidationError, match=option):
        Options.model_validate({option: value})


def test_only_the_pace_is_taken_from_another_definition() -> None:
    fields = {"name": "p", "source_query": "SELECT 1", "target_table": "analytics.p"}
    old = Definition.model_validate(fields)
    options = {"max_rows_per_second": 7, "pause_between_batches": "2s", "max_rejects": 3}
    new = Definition.model_validate({**fields, "description": "new", "batch_size": 9, "options": options})
    taken = with_pace_of(new, old)
    assert (taken.batch_size, taken.options.max_rows_per_second) == (9, 7)
    assert taken.options.pause_between_batches == 2 * SECOND
    assert (taken.description, taken.options.max_rejects) == (old.description, old.options.max_rejects)
