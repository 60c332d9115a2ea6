"""Transforms and a reader for the sample cinema."""

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, model_validator

from vitrine.core.rows import Cursor, Row
from vitrine.definition.registry import readers, transforms

if TYPE_CHECKING:
    import polars as pl

NEWCOMER_EVENTS = 10
CRITIC_RATINGS, CRITIC_SCORE = 20, 5
BINGE_VIEWS = 100
FAN_LIKES, FAN_SCORE = 10, 7


@transforms.register("audience_segment")
def audience_segment(rows: Sequence[Row]) -> Sequence[Row]:
    """Adds `segment` and `reason`; needs rating_count, avg_score, like_count and view_count."""
    return [row | dict(zip(("segment", "reason"), _segment(row), strict=True)) for row in rows]


def _segment(row: Row) -> tuple[str, str]:
    """The first rule that applies; newcomers come first, because their few events prove nothing."""
    ratings, likes, views = row["rating_count"], row["like_count"], row["view_count"]
    score = row["avg_score"]  # None: never rated anything
    if (events := ratings + likes + views) < NEWCOMER_EVENTS:
        return "newcomer", f"{events} events so far, fewer than {NEWCOMER_EVENTS}"
    if score is not None and ratings >= CRITIC_RATINGS and score < CRITIC_SCORE:
        return "critic", f"{ratings} ratings with an average of {score}, below {CRITIC_SCORE}"
    if views >= BINGE_VIEWS:
        return "binge_watcher", f"{views} views, at least {BINGE_VIEWS}"
    if score is not None and likes >= FAN_LIKES and score >= FAN_SCORE:
        return "fan", f"{likes} likes and an average rating of {score}, at least {FAN_SCORE}"
    return "regular", f"{ratings} ratings, {likes} likes and {views} views, nothing out of the ordinary"


class TrendOptions(BaseModel):
    threshold: float = Field(default=0.5, gt=0, description="A smaller change of the average is steady.")
    min_ratings: int = Field(default=5, ge=1, description="With fewer recent ratings the trend is unknown.")


@transforms.register_frame("rating_trend", options=TrendOptions)
def rating_trend(frame: "pl.DataFrame", options: TrendOptions) -> "pl.DataFrame":
    """Adds `change` and `trend`; needs recent_count, recent_score and earlier_score."""
    import polars as pl

    change = pl.col("change")
    return frame.with_columns((pl.col("recent_score") - pl.col("earlier_score")).round(2).alias("change")).with_columns(
        pl.when(change.is_null() | (pl.col("recent_count") < options.min_ratings))
        .then(pl.lit("unknown"))
        .when(change >= options.threshold)
        .then(pl.lit("rising"))
        .when(change <= -options.threshold)
        .then(pl.lit("falling"))
        .otherwise(pl.lit("steady"))
        .alias("trend")
    )


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
