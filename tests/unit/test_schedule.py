"""Due times: an interval keeps its phase, a cron line goes by the clock on the wall, changes of that clock included."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as some
from pydantic import ValidationError

from vitrine.core import schedule
from vitrine.core.schedule import Cron, Interval
from vitrine.definition.model import Definition

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def coming(line: str, after: str, count: int = 3, zone: ZoneInfo = BERLIN) -> list[str]:
    """The next due times, on the clock of the zone."""
    seen: list[str] = []
    last, now = None, at(after)
    for _ in range(count):
        last = now = schedule.parse(line).next_after(now, last=last, zone=zone)
        seen.append(now.astimezone(zone).isoformat())
    return seen


def test_a_new_interval_is_due_one_interval_from_now() -> None:
    assert schedule.parse("90s").next_after(NOON) == NOON + timedelta(seconds=90)


@pytest.mark.promise("S2")
@pytest.mark.parametrize(
    ("late", "following"),
    [
        (timedelta(0), 1),
        (timedelta(milliseconds=1), 1),
        (timedelta(seconds=9.999), 1),
        (timedelta(seconds=10), 2),  # that one is due now as well, and one run does for both
        (timedelta(days=1, seconds=3), 8641),
        (timedelta(hours=-1), 1),  # a clock that was set back brings no due time a second time
    ],
)
def test_an_interval_keeps_its_phase_however_late_a_run_starts(late: timedelta, following: int) -> None:
    every = timedelta(seconds=10)
    assert Interval(every).next_after(NOON + late, last=NOON) == NOON + following * every


@given(
    some.integers(1, 10**6).map(lambda seconds: timedelta(seconds=seconds)),
    some.timedeltas(timedelta(0), timedelta(days=400)),
)
def test_the_next_due_time_is_the_first_of_its_rhythm_after_now(every: timedelta, late: timedelta) -> None:
    following = Interval(every).next_after(NOON + late, last=NOON)
    assert (following - NOON) % every == timedelta(0)
    assert NOON + late < following <= NOON + late + every


def test_a_cron_line_goes_by_the_clock_of_its_zone() -> None:
    assert coming("30 6 * * *", "2026-05-04T12:00+00:00", 1) == ["2026-05-05T06:30:00+02:00"]
    assert coming("30 6 * * *", "2026-05-04T12:00+00:00", 1, ZoneInfo("Asia/Almaty")) == ["2026-05-05T06:30:00+05:00"]
    assert coming("*/15 22 * * MON", "2026-05-04T22:40+02:00", 2) == [
        "2026-05-04T22:45:00+02:00",
        "2026-05-11T22:00:00+02:00",
    ]


def test_what_a_cron_line_missed_is_left_out() -> None:
    cron, last = Cron("0 * * * *"), at("2026-05-04T03:00+00:00")
    assert cron.next_after(at("2026-05-04T12:10+00:00"), last=last) == at("2026-05-04T13:00+00:00")
    assert cron.next_after(last - timedelta(minutes=5), last=last) == at("2026-05-04T04:00+00:00")


@pytest.mark.promise("S3")
def test_a_fixed_time_in_the_hour_that_is_left_out_comes_when_the_hour_is_over() -> None:
    # in Berlin, 29 March 2026 has no 02:00 to 02:59
    assert coming("30 2 * * *", "2026-03-28T12:00+01:00") == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


@pytest.mark.promise("S3")
def test_a_fixed_time_in_the_hour_that_comes_twice_runs_once() -> None:
    # in Berlin, 25 October 2026 has 02:00 to 02:59 twice
    assert coming("30 2 * * *", "2026-10-24T12:00+02:00") == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
        "2026-10-27T02:30:00+01:00",
    ]


@pytest.mark.promise("S3")
def test_inside_the_second_of_two_hours_nothing_is_due_in_the_past() -> None:
    assert coming("30 2 * * *", "2026-10-25T02:10+01:00", 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_half_hour_means_every_half_hour_that_passes() -> None:
    assert coming("*/30 * * * *", "2026-03-29T01:20+01:00") == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T03:30:00+02:00",
    ]
    assert coming("*/30 * * * *", "2026-10-25T02:20+02:00", 4) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "give an interval"),
        ("0s", "at least a second"),
        ("500ms", "give an interval"),
        ("1.5h", "give an interval"),
        ("99999d", "at most 3650 days"),
        ("soon", "give an interval"),
        ("@daily", "give an interval"),
        ("* * * * * *", "give an interval"),
        ("0 0 * *", "give an interval"),
        ("0 " * 4 + "0" * 200, "give an interval"),
        ("61 * * * *", "the minute of the cron line is not valid"),
        ("0 24 * * *", "the hour of the cron line is not valid"),
        ("0 0 0 * *", "the day-of-month of the cron line is not valid"),
        ("0 0 30 2 *", "the day-of-month of the cron line is not valid"),
        ("0 0 * 13 *", "the month of the cron line is not valid"),
        ("0 0 * * FUNDAY", "the day-of-week of the cron line is not valid"),
        ("*/0 * * * *", "the minute of the cron line is not valid"),
        ("٣ * * * *", "the minute of the cron line is not valid"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_told_in_a_sentence(text: str, reason: str) -> None:
    fields = {"name": "p", "source_query": "SELECT 1", "target_table": "analytics.p"}
    with pytest.raises(ValidationError, match=reason):
        Definition.model_validate({**fields, "schedule_interval": text})


FIELDS = some.lists(some.text("012359*/-,LW#MONJA", min_size=1, max_size=7), min_size=5, max_size=5)


@given(FIELDS.map(" ".join))
def test_any_five_fields_are_a_schedule_or_refused(text: str) -> None:
    try:
        cron = schedule.parse(text)
    except ValueError:
        return
    assert cron.next_after(NOON, zone=BERLIN) > NOON
