"""Seconds of several rounds, their ratio, and the verdict beside a bar."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    WRONG = "WRONG"  # the target does not equal the source, so the measurement means nothing
    OPEN = "needs --peers"
    ABSENT = "not installed"
    INFORMATION = "–"  # for comparison only; the bar is for another line


@dataclass(frozen=True)
class Samples:
    """Seconds of all rounds of one side."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        if len(self.seconds) == 1:
            return _short(self.median)
        return f"{_short(self.median)} ({_short(min(self.seconds))}–{_short(max(self.seconds))})"


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    row: str
    workload: str
    bar: str
    verdict: Verdict
    by_hand: Samples | None = None
    ours: Samples | None = None
    ratio: float | None = None
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])  # for the JSON only


def ratio_of(ours: Samples, by_hand: Samples) -> float:
    """The ratio of the medians, so that one disturbed round does not decide."""
    return ours.median / by_hand.median


def judge(met: bool, *, right: bool) -> Verdict:
    if not right:
        return Verdict.WRONG
    return Verdict.MET if met else Verdict.MISSED


def turns(rounds: int) -> Iterator[tuple[int, bool]]:
    """The number of each round, and whether the first side starts it: the sides start in turns."""
    for number in range(rounds):
        yield number, number % 2 == 0


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _short(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds < 1 else f"{seconds:.2f}"
