"""The rounds of a row: the trees start in turns, and the first round is a warm-up."""

from collections.abc import Callable

from bench.measuring import turns
from bench.tree import Measurement

OLD, NEW = "old", "new"


def measure_in_rounds(rounds: int, measure: Callable[[str], Measurement]) -> dict[str, list[Measurement]]:
    """The measurements of each tree; those of the additional warm-up round are not among them."""
    measurements: dict[str, list[Measurement]] = {OLD: [], NEW: []}
    for number, old_first in turns(rounds + 1):
        for tree in (OLD, NEW) if old_first else (NEW, OLD):
            measured = measure(tree)
            if number > 0:
                measurements[tree].append(measured)
    return measurements
