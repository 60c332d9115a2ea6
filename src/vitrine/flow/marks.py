"""Whether a column marks its row as deleted."""

from vitrine.flow.rows import NUMBERS, Column, Kind


def is_marked(text: str | None, column: Column) -> bool:
    """True, a number other than 0, or any other value that is not NULL."""
    if text is None:
        return False
    if column.kind is Kind.BOOLEAN:
        return text == "t"
    return text.strip("-0.") != "" if column.kind in NUMBERS else True
