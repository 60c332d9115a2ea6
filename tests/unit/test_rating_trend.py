"""Whether the ratings of a film rise or fall."""

from typing import Any

import polars as pl
import pytest

from vitrine.definition.registry import transforms
from vitrine.plan.builtin.cinema import TrendOptions, rating_trend

SCHEMA = {"film_id": pl.String, "recent_count": pl.Int64, "recent_score": pl.Float64, "earlier_score": pl.Float64}


def films(*rows: tuple[Any, ...]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def test_it_is_installed_under_its_name() -> None:
    assert transforms.get("rating_trend").function is rating_trend


@pytest.mark.parametrize(
    ("count", "recent", "earlier", "change", "trend"),
    [
        (5, 7.5, 7.0, 0.5, "rising"),
        (5, 7.4, 7.0, 0.4, "steady"),
        (5, 6.5, 7.0, -0.5, "falling"),
        (4, 9.0, 7.0, 2.0, "unknown"),
        (5, None, 7.0, None, "unknown"),
        (5, 7.0, None, None, "unknown"),
    ],
)
def test_a_film_rises_or_falls_by_the_threshold(
    count: int, recent: float | None, earlier: float | None, change: float | None, trend: str
) -> None:
    result = rating_trend(films(("a", count, recent, earlier)), TrendOptions())
    assert result.row(0) == ("a", count, recent, earlier, change, trend)


def test_options_move_the_threshold_and_the_least_number() -> None:
    frame = films(("a", 1, 7.2, 7.0))
    assert rating_trend(frame, TrendOptions(threshold=0.1, min_ratings=1))["trend"].to_list() == ["rising"]
    assert rating_trend(frame, TrendOptions(min_ratings=1))["trend"].to_list() == ["steady"]


def test_no_films_give_no_films() -> None:
    assert rating_trend(films(), TrendOptions()).columns == [*SCHEMA, "change", "trend"]
