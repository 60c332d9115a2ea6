"""The rows that the suites move: a key, a text, and a time of change."""

from vitrine.flow.rows import Column
from vitrine.testing.cases import Texts

COLUMNS = (
    Column("id", "integer"),
    Column("note", "text"),
    Column("modified", "timestamp with time zone"),
)


def moment(second: int) -> str:
    """A time of change, in canonical text."""
    return f"2024-01-01 {second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}+00"


def row(number: int, note: str | None = None, second: int | None = None) -> Texts:
    return {"id": str(number), "note": note or f"note {number}", "modified": moment(second or number)}


def rows(first: int, last: int) -> list[Texts]:
    """Rows with these ids, each changed one second after the one before."""
    return [row(number) for number in range(first, last + 1)]
