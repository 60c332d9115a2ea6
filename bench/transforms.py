"""The transforms of the benchmark: each does almost nothing, so that the work around it is measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrine.definition.registry import transforms

if TYPE_CHECKING:
    import polars as pl


@transforms.register("bench_raise_score")
def raise_score(rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Adds one to `score`."""
    return [{**row, "score": row["score"] + 1} for row in rows]


@transforms.register_frame("bench_raise_score_frame")
def raise_score_frame(frame: "pl.DataFrame") -> "pl.DataFrame":
    """Adds one to `score`."""
    import polars as pl

    return frame.with_columns(pl.col("score") + 1)  # pyright: ignore[reportUnknownMemberType]  stubs of polars
