"""Assigns every viewer to one audience segment, with the reason."""

from collections.abc import Sequence

from vitrine.core.rows import Row
from vitrine.definition.registry import transforms

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
