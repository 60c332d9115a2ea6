"""A workload done by hand and by Vitrine, in turns, and checked after every round."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.measuring import Result, Samples, judge, ratio_of, seconds_of, turns
from bench.setup import Setup


@dataclass(frozen=True)
class Workload:
    """`by_hand` and `ours` are measured; `before` prepares a round for both; `equal` checks both targets."""

    row: str
    title: str
    at_most: float
    before: Callable[[int], object]
    by_hand: Callable[[], object]
    ours: Callable[[], float]  # returns its seconds
    equal: Callable[[], bool]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


def measure(setup: Setup, workload: Workload) -> Result:
    by_hand: list[float] = []
    ours: list[float] = []
    right = True

    def measure_by_hand() -> None:
        setup.checkpoint()
        by_hand.append(seconds_of(workload.by_hand))

    for number, hand_first in turns(setup.rounds):
        workload.before(number)
        if hand_first:
            measure_by_hand()
        ours.append(workload.ours())
        if not hand_first:
            measure_by_hand()
        right = workload.equal() and right
    theirs, mine = Samples(tuple(by_hand)), Samples(tuple(ours))
    ratio = ratio_of(mine, theirs)
    return Result(
        row=workload.row,
        workload=workload.title,
        bar=f"≤ {workload.at_most:g}",
        verdict=judge(ratio <= workload.at_most, right=right),
        by_hand=theirs,
        ours=mine,
        ratio=ratio,
        facts=workload.facts,
    )
