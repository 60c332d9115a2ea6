"""A workload done by hand and by the platform, taking turns, and checked after every turn."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.database import Database
from bench.measuring import Result, Samples, judge, ratio_of, seconds_of, turns
from bench.stage import Stage


@dataclass(frozen=True)
class Duel:
    """What is measured is `by_hand` and `ours`; `before` prepares a round for both, `equal` looks at both targets."""

    row: str
    workload: str
    at_most: float
    before: Callable[[int], object]
    by_hand: Callable[[], object]
    ours: Callable[[], object]
    equal: Callable[[], bool]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


def fight(stage: Stage, duel: Duel) -> Result:
    by_hand: list[float] = []
    ours: list[float] = []
    right = True
    for number, hand_first in turns(stage.rounds):
        duel.before(number)
        contestants = [(by_hand, duel.by_hand), (ours, duel.ours)]
        for seconds, work in contestants if hand_first else reversed(contestants):
            stage.calm()
            seconds.append(seconds_of(work))
        right = duel.equal() and right
    theirs, mine = Samples(tuple(by_hand)), Samples(tuple(ours))
    ratio = ratio_of(mine, theirs)
    return Result(
        row=duel.row,
        workload=duel.workload,
        bar=f"≤ {duel.at_most:g}",
        verdict=judge(ratio, duel.at_most, right=right),
        by_hand=theirs,
        ours=mine,
        ratio=ratio,
        facts=duel.facts,
    )


def digest(database: Database, query: str) -> tuple[int, int]:
    """How many rows, and a sum of their hashes: equal sets have equal digests, whatever their order."""
    row = database.connection.execute(
        f"SELECT count(*) AS rows, coalesce(sum(hash_record_extended(q, 0)), 0) AS hash FROM ({query}) AS q".encode()
    ).fetchone()
    return (int(row["rows"]), int(row["hash"])) if row else (0, 0)
