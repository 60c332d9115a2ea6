"""A connection to a database, for everything that is prepared and checked outside the measurements."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import DictRow, dict_row

Connection = psycopg.Connection[DictRow]


def connect(url: str) -> Connection:
    return psycopg.Connection[DictRow].connect(url, application_name="bench", autocommit=True, row_factory=dict_row)


@dataclass(frozen=True)
class Database:
    """A database with one open connection."""

    url: str
    connection: Connection

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def fetch(self, statement: str, parameters: Sequence[Any] = ()) -> list[DictRow]:
        return self.connection.execute(statement.encode(), parameters).fetchall()

    def number(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """The only value of the only row."""
        (row,) = self.fetch(statement, parameters)
        return int(next(iter(row.values())))

    def digest(self, query: str) -> tuple[int, int]:
        """The number of rows and the sum of their hashes: equal sets of rows have equal digests in any order."""
        (row,) = self.fetch(
            f"SELECT count(*) AS rows, coalesce(sum(hash_record_extended(q, 0)), 0) AS hash FROM ({query}) AS q"
        )
        return int(row["rows"]), int(row["hash"])


@contextmanager
def opened(url: str) -> Generator[Database]:
    with connect(url) as connection:
        yield Database(url, connection)
