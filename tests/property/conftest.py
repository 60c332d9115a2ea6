"""Reports at the end of the session how many steps the state machines took, from which seeds, and how runs ended."""

from collections import Counter
from collections.abc import Mapping

import pytest

STEPS: Counter[str] = Counter()
"""Steps of the state machines, by machine."""

OUTCOMES: Counter[str] = Counter()
"""Ends of runs: exact, or the code of the refusal."""

SEEDS: list[str] = []
"""Machine and seed of each round of a long run."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if STEPS:
        terminalreporter.write_line(f"state machine steps: {STEPS.total()} ({_listed(STEPS)})")
    if OUTCOMES:
        terminalreporter.write_line(f"runs: {OUTCOMES.total()} ({_listed(OUTCOMES)})")
    if SEEDS:
        terminalreporter.write_line(f"seeds: {', '.join(SEEDS)}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
