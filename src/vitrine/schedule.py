"""When a pipeline is due: at an interval that keeps its phase, or by a cron line in a time zone."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim, CronSimError

from vitrine.settings import parse_duration

SHORTEST = timedelta(seconds=1)
LONGEST_LINE = 100
FORMS = "give an interval of at least a second such as 30s, 5m or 1h, or a cron line such as */15 6-22 * * MON-FRI"
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Interval:
    """Every so often, counted from the first due time: a run that starts late does not shift those after it."""

    every: timedelta

    def next_after(self, now: datetime, *, last: datetime | None = None, zone: tzinfo = UTC) -> datetime:
        """The first due time after now; those that have passed since the `last` one are left out."""
        if last is None:
            return now + self.every
        return last + (max(now - last, timedelta(0)) // self.every + 1) * self.every


@dataclass(frozen=True)
class Cron:
    """As the clock on the wall says. Debian's rules hold when that clock is changed: a line with a fixed time whose
    hour is left out comes when the hour is over, and one whose hour comes twice runs in the first; a line with * as
    minute or hour goes by the hours as they come."""

    line: str

    def next_after(self, now: datetime, *, last: datetime | None = None, zone: tzinfo = UTC) -> datetime:
        """The first due time after now; those that have passed since the `last` one are left out."""
        after = max(now, last) if last else now
        for due in CronSim(self.line, after.astimezone(zone)):
            # compared in UTC: inside the hour that comes twice, the first 02:30 may lie behind us
            if (moment := due.astimezone(UTC)) > after:
                return moment
        raise ValueError("the cron line names a day that never comes")


Schedule = Interval | Cron


def parse(text: str) -> Schedule:
    """ValueError tells in a sentence what is wrong, without repeating the text."""
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
