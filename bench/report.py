"""The results as a table and as JSON."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from bench.measuring import Result, Samples, Verdict

_COLOURS = {Verdict.MET: "green", Verdict.MISSED: "yellow", Verdict.WRONG: "red", Verdict.BROKEN: "red"}


def table(results: Sequence[Result]) -> Table:
    """Medians in seconds, with the fastest and the slowest round in parentheses."""
    shown = Table(header_style="cyan")
    for column in ("row", "workload", "by hand s", "ours s", "ratio", "bar", "verdict", "note"):
        shown.add_column(column, justify="right" if column in ("by hand s", "ours s", "ratio") else "left")
    for result in results:
        shown.add_row(
            result.row,
            result.workload,
            str(result.by_hand or ""),
            str(result.ours or ""),
            f"{result.ratio:.2f}" if result.ratio is not None else "",
            result.bar,
            f"[{_COLOURS.get(result.verdict, 'dim')}]{result.verdict}[/]",
            escape(result.note),
        )
    return shown


def document(results: Sequence[Result], facts: Mapping[str, object]) -> dict[str, object]:
    return {"machine": dict(facts), "results": [_entry(result) for result in results]}


def write(folder: Path, document: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def _entry(result: Result) -> dict[str, object]:
    entry = asdict(result)
    for name in ("by_hand", "ours"):
        samples: Samples | None = getattr(result, name)
        entry[name] = {"median": samples.median, "seconds": samples.seconds} if samples else None
    return entry
