"""Reports at the end of the session how many steps the state machines took."""

from collections import Counter

import pytest

STEPS: Counter[str] = Counter()
"""Steps of the state machines, by machine."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if STEPS:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(STEPS.items()))
        terminalreporter.write_line(f"state machine steps: {STEPS.total()} ({counts})")
