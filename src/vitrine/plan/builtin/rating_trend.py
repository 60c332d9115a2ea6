"""Adds the rating trend of every film; an example of a frame transform."""

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from vitrine.definition.registry import transforms

if TYPE_CHECKING:
    import polars as pl


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
