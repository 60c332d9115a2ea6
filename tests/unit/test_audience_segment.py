from decimal import Decimal
from typing import Any

import pytest

from vitrine.definition.registry import transforms
from vitrine.plan.builtin.cinema import audience_segment


def viewer(*, ratings: int = 0, score: str | None = None, likes: int = 0, views: int = 0) -> dict[str, Any]:
    return {
        "user_id": "8f14e45f-ceea-467f-a8d9-1d2c3b4a5e6f",
        "rating_count": ratings,
        "avg_score": None if score is None else Decimal(score),
        "like_count": likes,
        "view_count": views,
    }


def test_it_is_installed_under_its_name() -> None:
    assert transforms.get("audience_segment").function is audience_segment


@pytest.mark.parametrize(
    ("row", "segment"),
    [
        (viewer(), "newcomer"),
        (viewer(ratings=5, score="1.00", likes=2, views=2), "newcomer"),
        (viewer(ratings=6, score="7.00", likes=2, views=2), "regular"),
        (viewer(ratings=20, score="4.99"), "critic"),
        (viewer(ratings=20, score="5.00"), "regular"),
        (viewer(ratings=19, score="1.00"), "regular"),
        (viewer(ratings=20, score="4.99", views=500), "critic"),
        (viewer(views=99), "regular"),
        (viewer(views=100), "binge_watcher"),
        (viewer(ratings=30, score="7.00", likes=10), "fan"),
        (viewer(ratings=30, score="6.99", likes=10), "regular"),
        (viewer(ratings=30, score="9.00", likes=9), "regular"),
        (viewer(likes=50), "regular"),
    ],
)
def test_a_viewer_falls_into_the_first_segment_that_fits(row: dict[str, Any], segment: str) -> None:
    assert [result["segment"] for result in audience_segment([row])] == [segment]


def test_the_reason_names_the_figures_that_decided() -> None:
    (result,) = audience_segment([viewer(ratings=45, score="4.32", likes=3)])
    assert result["reason"] == "45 ratings with an average of 4.32, below 5"


def test_rows_keep_their_order_and_their_columns() -> None:
    rows = [viewer(views=200), viewer(), viewer(likes=20)]
    results = audience_segment(rows)
    assert [{name: result[name] for name in row} for row, result in zip(rows, results, strict=True)] == rows
    assert [result["segment"] for result in results] == ["binge_watcher", "newcomer", "regular"]


def test_the_rows_that_came_in_stay_as_they_were() -> None:
    row = viewer(views=200)
    audience_segment([row])
    assert "segment" not in row


def test_no_rows_give_no_rows() -> None:
    assert list(audience_segment([])) == []
