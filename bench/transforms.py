"""The transforms that the benchmark runs: each does next to nothing, so that what surrounds it is measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrine.model import Row
from vitrine.registry import transforms

if TYPE_CHECKING:
    import polars as pl


@transforms.register("bench_raise_score")
def raise_score(rows: Sequence[Row]) -> Sequence[Row]:
    return [{**row, "rating": row["rating"] + 1} for row in rows]


@transforms.register_frame("bench_raise_score_frame")
def raise_score_frame(frame: "pl.DataFrame") -> "pl.DataFrame":
    import polars as pl

    return frame.with_columns(pl.col("rating") + 1)  # pyright: ignore[reportUnknownMemberType]  polars' own stubs
