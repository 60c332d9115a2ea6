"""The transforms that the benchmark runs: each does next to nothing, so that what surrounds it is measured."""

from collections.abc import Sequence

from vitrine.model import Row
from vitrine.registry import transforms


@transforms.register("bench_raise_score")
def raise_score(rows: Sequence[Row]) -> Sequence[Row]:
    return [{**row, "score": row["score"] + 1} for row in rows]
