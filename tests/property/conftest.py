"""How much the property tests did, said at the end of the session."""

from collections import Counter

import pytest

STEPS: Counter[str] = Counter()
"""Steps of the state machines, by machine."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if STEPS:
        told = ", ".join(f"{name} {count}" for name, count in sorted(STEPS.items()))
        terminalreporter.write_line(f"state machine steps: {STEPS.total()} ({told})")
