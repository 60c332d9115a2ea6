"""When a pipeline is due: at a fixed interval, or by a cron line in a time zone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import islice

from cronsim import CronSim, CronSimError

from vitrine.settings import parse_duration

SHORTEST = timedelta(seconds=1)
LONGEST_LINE = 100
FORMS = "give an interval of at least a second such as 30s, 5m or 1h, or a cron line such as */15 6-22 * * MON-FRI"
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Interval:
    """A fixed interval, counted from the first due time: a run that starts late does not shift later due times."""

    every: timedelta

    def next_after(self, now: datetime, *, last: datetime | None = None, zone: tzinfo = UTC) -> datetime:
        """The first due time after now; due times missed since `last` are skipped."""
        if last is None:
            return now + self.every
        return last + (max(now - last, timedelta(0)) // self.every + 1) * self.every

    def stale_at(self, fresh: datetime, *, zone: tzinfo = UTC) -> datetime:
        """When a mart as fresh as this is older than the schedule allows: after two intervals."""
        return fresh + 2 * self.every


@dataclass(frozen=True)
class Cron:
    """Due times by local time. Debian's rules apply when clocks change: a fixed time in a skipped hour is due when that
    hour is over, and one in a repeated hour is due once, the first time; a line with * as minute or hour follows
    elapsed time."""

    line: str

    def next_after(self, now: datetime, *, last: datetime | None = None, zone: tzinfo = UTC) -> datetime:
        """The first due time after now; due times missed since `last` are skipped."""
        return next(_due_times(self.line, max(now, last) if last else now, zone))

    def stale_at(self, fresh: datetime, *, zone: tzinfo = UTC) -> datetime:
        """When a mart as fresh as this is older than the schedule allows: at the second due time after."""
        return _second_due(self.line, fresh, zone)


@lru_cache(maxsize=16_384)  # counters and lists ask for every pipeline again and again; 6 MB if all have cron lines
def _second_due(line: str, after: datetime, zone: tzinfo) -> datetime:
    return next(islice(_due_times(line, after, zone), 1, None))


def _due_times(line: str, after: datetime, zone: tzinfo) -> Iterator[datetime]:
    for due in CronSim(line, after.astimezone(zone)):
        # compared in UTC: in a repeated hour, the first 02:30 may be in the past
        if (moment := due.astimezone(UTC)) > after:
            yield moment
            after = moment
    raise ValueError("the cron line names a day that does not exist")


Schedule = Interval | Cron


@lru_cache(maxsize=4096)
def parse(text: str) -> Schedule:
    """ValueError explains in a sentence what is wrong, without repeating the text."""
    if re.fullmatch(r"[0-9]+[smhd]", text):
        every = parse_duration(text)
        if every < SHORTEST:
            raise ValueError(FORMS)
        return Interval(every)
    if len(text) > LONGEST_LINE or len(text.split()) != 5:
        raise ValueError(FORMS)
    cron = Cron(" ".join(text.split()))
    try:
        cron.next_after(_SOME_DAY)
    except CronSimError as exc:
        field = str(exc).removeprefix("Bad ")
        raise ValueError(
            f"the {field} of the cron line is not valid; its fields are minute, hour, day-of-month, month and"
            " day-of-week, such as */15 6-22 * * MON-FRI"
        ) from exc
    return cron
