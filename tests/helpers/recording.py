"""Notes the statements of a connection, or the names of those of the store."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from vitrine.postgres import Connection
from vitrine.store import database


@dataclass
class Recorder:
    """A connection that notes the statements which are executed on it."""

    connection: Connection
    executed: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])

    def execute(self, statement: Any, arguments: Any = None) -> Any:
        self.executed.append((statement, arguments))
        return self.connection.execute(statement, arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.connection, name)


def record_statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the store's statements that are executed from now on."""
    executed: list[str] = []
    original = database.statement

    def recorded(name: str) -> Any:
        executed.append(name)
        return original(name)

    monkeypatch.setattr(database, "statement", recorded)
    return executed
