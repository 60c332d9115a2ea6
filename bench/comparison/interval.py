"""The median of paired ratios, its 95 % interval, and the verdict."""

import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

SLOWER_THAN = 1.10
"""A row fails when its whole interval lies above this ratio."""

CONFIDENCE = 0.95
RESAMPLES = 10_000
ENOUGH_ROUNDS = 9


class Outcome(StrEnum):
    PASSED = "passes"
    FAILED = "FAILS"
    WRONG = "is WRONG"  # a mart did not equal its source
    BROKEN = "is BROKEN"  # a command of a tree failed


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2f}–{self.high:.2f}"


def paired_ratios(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """new : old of each round."""
    return [mine / theirs for theirs, mine in zip(old, new, strict=True)]


def interval_of_median(ratios: Sequence[float]) -> Interval:
    """The 95 % interval of the median, by the percentile bootstrap.

    The ratios are those of the rounds, not the ratio of two medians: both trees run within seconds of each other in a
    round, so a load of the machine that lasts for a whole round cancels out. The median resists single rounds in which
    only one tree was disturbed. The bootstrap assumes no distribution of the times: it draws as many ratios as there
    are, with replacement, takes their median, and repeats that; the interval holds the middle 95 % of these medians.

    With nine rounds it reaches from the second smallest to the second largest ratio, and by the binomial distribution
    it covers the true median with a probability of 96 %. With fewer than six rounds no interval reaches 95 %: with
    three it is the range of the ratios, which covers the median with a probability of 75 %.
    The seed is fixed, so equal measurements give equal intervals.
    """
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    outside = math.floor(RESAMPLES * (1 - CONFIDENCE) / 2)
    return Interval(medians[outside], medians[-1 - outside])


def judge(interval: Interval, *, right: bool) -> Outcome:
    if not right:
        return Outcome.WRONG
    return Outcome.FAILED if interval.low > SLOWER_THAN else Outcome.PASSED
