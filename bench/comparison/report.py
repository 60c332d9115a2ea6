"""The comparison as a table, as verdicts and as a JSON document."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from bench.comparison.compare import Comparison, Side
from bench.comparison.interval import ENOUGH_ROUNDS, SLOWER_THAN, Outcome, paired_ratios


def table(comparisons: Sequence[Comparison]) -> Table:
    """Medians in seconds, with the fastest and the slowest round in parentheses; peak memory is information only."""
    shown = Table(header_style="cyan")
    for column in ("row", "workload"):
        shown.add_column(column)
    for column in ("old s", "new s", "new : old", "95 % interval", "peak MB old", "new"):
        shown.add_column(column, justify="right")
    shown.add_column("note")
    for one in comparisons:
        shown.add_row(
            one.row,
            one.workload,
            str(one.old.seconds) if one.old else "",
            str(one.new.seconds) if one.new else "",
            f"{one.ratio:.2f}" if one.ratio is not None else "",
            str(one.interval or ""),
            _peak(one.old),
            _peak(one.new),
            f"{one.old.note} → {one.new.note}" if one.old and one.new and one.old.note else "",
        )
    return shown


def verdicts(comparisons: Sequence[Comparison], rounds: int) -> list[str]:
    """One line per row, and a warning when the rounds are too few."""
    lines = [_verdict(one) for one in comparisons]
    if rounds < ENOUGH_ROUNDS:
        lines.append(
            f"Rounds: {rounds}. These intervals are too uncertain for a verdict; give at least {ENOUGH_ROUNDS} rounds."
        )
    return lines


def succeeded(comparisons: Sequence[Comparison]) -> bool:
    return all(one.outcome is Outcome.PASSED for one in comparisons)


def document(comparisons: Sequence[Comparison], facts: Mapping[str, object]) -> dict[str, object]:
    return {"machine": dict(facts), "comparisons": [_entry(one) for one in comparisons]}


def _verdict(one: Comparison) -> str:
    if one.outcome is Outcome.BROKEN:
        return f"{one.row} {one.outcome}: {one.reason}"
    if one.outcome is Outcome.WRONG:
        return f"{one.row} {one.outcome}: a mart did not equal its source, so its times mean nothing"
    relation = (
        f"wholly above {SLOWER_THAN:.2f}" if one.outcome is Outcome.FAILED else f"not wholly above {SLOWER_THAN:.2f}"
    )
    return f"{one.row} {one.outcome}: new : old = {one.ratio:.2f}, interval {one.interval} {relation}"


def _peak(side: Side | None) -> str:
    return f"{side.peak_mb:.0f}" if side and side.peak_mb is not None else ""


def _entry(one: Comparison) -> dict[str, object]:
    entry: dict[str, object] = {"row": one.row, "workload": one.workload, "outcome": one.outcome, "reason": one.reason}
    if one.old and one.new and one.interval:
        entry |= {
            "old": _side(one.old),
            "new": _side(one.new),
            "ratios": paired_ratios(one.old.seconds.seconds, one.new.seconds.seconds),
            "ratio": one.ratio,
            "interval": [one.interval.low, one.interval.high],
        }
    return entry


def _side(side: Side) -> dict[str, object]:
    return {
        "median": side.seconds.median,
        "seconds": side.seconds.seconds,
        "peak_mb": [one.peak_mb for one in side.measurements],
        "note": side.note,
    }
