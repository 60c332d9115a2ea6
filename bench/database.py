"""A database beside the measurements: what prepares and what checks goes through it."""

from dataclasses import dataclass

from vitrine.postgres import Connection


@dataclass(frozen=True)
class Database:
    """A database with a connection to it, for whatever is not measured."""

    url: str
    connection: Connection

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def number(self, statement: str) -> int:
        row = self.connection.execute(statement.encode()).fetchone()
        return int(next(iter(row.values()))) if row else 0
