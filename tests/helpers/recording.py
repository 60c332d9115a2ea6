"""Notes the statements of a connection."""

from dataclasses import dataclass, field
from typing import Any

from vitrine.postgres import Connection


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
