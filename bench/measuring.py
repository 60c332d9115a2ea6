"""Seconds of several rounds, their ratio, and the verdict beside a bar."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    MET = "met"
    MISSED = "missed"
    BROKEN = "BROKEN"  # it ended with an error; the note gives the reason
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


LONGEST_REASON = 300


def reason_of(error: Exception) -> str:
    """An error in one line: its first line and, where that announces the output of a command, the last one."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {text}"[:LONGEST_REASON]


def results_of(row: str, measure: Callable[[], list[Result]]) -> list[Result]:
    """The lines of a row; one that says BROKEN if measuring fails, so that the other rows keep theirs."""
    try:
        return measure()
    except Exception as exc:  # noqa: BLE001  whatever it is, it concerns this row only
        return [broken(row, "", exc)]


def broken(row: str, workload: str, error: Exception) -> Result:
    return Result(row, workload, "", Verdict.BROKEN, note=reason_of(error))


def succeeded(results: Iterable[Result]) -> bool:
    """Whether every row was measured; a missed bar is a figure, not a failure."""
    return not any(one.verdict in (Verdict.BROKEN, Verdict.WRONG) for one in results)


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
