"""A calendar: one row a day, for marts that are joined by date."""

from collections.abc import Iterator
from datetime import date, timedelta
from typing import Self

from pydantic import BaseModel, model_validator

from vitrine.core.rows import Cursor, Row
from vitrine.definition.registry import readers


class CalendarOptions(BaseModel):
    first: date = date(2024, 1, 1)
    last: date = date(2026, 12, 31)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.last < self.first:
            raise ValueError("last must not be before first")
        return self


@readers.register(
    "calendar_days",
    columns={
        "day": "date",
        "year": "smallint",
        "quarter": "smallint",
        "month": "smallint",
        "iso_week": "smallint",
        "weekday": "text",
        "is_weekend": "boolean",
    },
    options=CalendarOptions,
)
def calendar_days(after: Cursor | None, options: CalendarOptions) -> Iterator[Row]:
    """Yields every day from `first` to `last`, with year, quarter, month, week and weekday."""
    day = max(options.first, date.fromisoformat(after[0]) + timedelta(days=1)) if after else options.first
    while day <= options.last:
        yield {
            "day": day,
            "year": day.year,
            "quarter": (day.month + 2) // 3,
            "month": day.month,
            "iso_week": day.isocalendar().week,
            "weekday": f"{day:%A}",
            "is_weekend": day.isoweekday() > 5,
        }
        day += timedelta(days=1)
