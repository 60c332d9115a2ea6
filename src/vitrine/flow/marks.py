"""Whether a column marks its row as deleted."""

from decimal import Decimal

from vitrine.flow.rows import NUMBERS, Column, Kind


def is_marked(text: str | None, column: Column) -> bool:
    """True, a number other than 0, or any other value that is not NULL."""
    if text is None:
        return False
    if column.kind is Kind.BOOLEAN:
        return text == "t"
    return text.strip("-0.") != "" if column.kind in NUMBERS else True


def is_mark(value: object) -> bool:
    """The same for a Python value, whatever type its column has."""
    if isinstance(value, bool | int | float | Decimal):
        return value != 0
    return value is not None
