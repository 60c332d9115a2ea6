"""Places in a text: file, line and column, as editors count them."""

from collections.abc import Sequence

from vitrine.errors import ConfigError


class FileRefused(ConfigError):
    """A file that cannot be read; each reason begins with its place."""

    def __init__(self, reasons: Sequence[str], *, code: str = "YAML") -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(reasons), code=code)


def place(name: str, line: int, column: int) -> str:
    """Both count from 1."""
    return f"{name}, line {line}, column {column}"


def place_at(name: str, text: str, index: int) -> str:
    return place(name, text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))
