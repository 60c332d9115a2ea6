"""Transforms for the chaos runners, which import this module through VITRINE_TRANSFORM_MODULES."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vitrine.core.rows import Row
from vitrine.definition.registry import transforms

if TYPE_CHECKING:
    import polars as pl


@transforms.register("chaos_rows")
def chaos_rows(rows: Sequence[Row]) -> Sequence[Row]:
    """The note in upper case, row by row."""
    return [row | {"note": row["note"].upper()} for row in rows]


@transforms.register_frame("chaos_frames")
def chaos_frames(frame: "pl.DataFrame") -> "pl.DataFrame":
    """The note in upper case, for the whole frame."""
    import polars as pl

    return frame.with_columns(pl.col("note").str.to_uppercase())
