"""Transforms that change nothing, one for each lane."""

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from vitrine.core.rows import Row
from vitrine.definition import registry

if TYPE_CHECKING:
    import polars as pl

Lane = Literal["copy", "rows untouched", "rows seen", "rows copied", "frames"]
TASKS: dict[Lane, str | None] = {
    "copy": None,
    "rows untouched": "types_untouched",
    "rows seen": "types_seen",
    "rows copied": "types_copied",
    "frames": "types_framed",
}


@registry.transforms.register("types_untouched")
def types_untouched(rows: Sequence[Row]) -> Sequence[Row]:
    return rows


@registry.transforms.register("types_seen")
def types_seen(rows: Sequence[Row]) -> Sequence[Row]:
    """Decodes every value and changes none."""
    return [{**row} for row in rows]


@registry.transforms.register("types_copied")
def types_copied(rows: Sequence[Row]) -> Sequence[Row]:
    """Replaces every value by an equal copy."""
    return [copy.deepcopy(dict(row)) for row in rows]


@registry.transforms.register_frame("types_framed")
def types_framed(frame: "pl.DataFrame") -> "pl.DataFrame":
    return frame.clone()
