"""One row a day."""

from datetime import date

import pytest
from pydantic import ValidationError

from vitrine.definition.registry import readers
from vitrine.plan.builtin.cinema import CalendarOptions, calendar_days

WEEK = CalendarOptions(first=date(2026, 1, 1), last=date(2026, 1, 7))


def test_it_is_installed_with_the_columns_it_yields() -> None:
    task = readers.get("calendar_days")
    assert task.function is calendar_days
    assert [name for name, _ in task.columns] == list(next(iter(calendar_days(None, WEEK))))


def test_every_day_comes_once_and_in_order() -> None:
    assert [row["day"] for row in calendar_days(None, WEEK)] == [date(2026, 1, day) for day in range(1, 8)]


def test_a_day_tells_its_place_in_the_calendar() -> None:
    (row,) = calendar_days(None, CalendarOptions(first=date(2023, 1, 1), last=date(2023, 1, 1)))
    assert row == {
        "day": date(2023, 1, 1),
        "year": 2023,
        "quarter": 1,
        "month": 1,
        "iso_week": 52,
        "weekday": "Sunday",
        "is_weekend": True,
    }


def test_it_goes_on_after_the_cursor() -> None:
    assert [row["day"].day for row in calendar_days(("2026-01-05",), WEEK)] == [6, 7]
    assert list(calendar_days(("2026-01-07",), WEEK)) == []
    assert len(list(calendar_days(("2025-06-01",), WEEK))) == 7


def test_the_last_day_does_not_lie_before_the_first() -> None:
    with pytest.raises(ValidationError, match="last must not be before first"):
        CalendarOptions(first=date(2026, 1, 2), last=date(2026, 1, 1))
