"""Errors, grouped by what the caller should do about them; and the place in a query that one is about."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

_WIDEST = 72
"""Characters of a line that are shown; a longer line is shown around the place."""


@dataclass(frozen=True)
class Place:
    """A character of a text, with the line that contains it; line and column count from 1."""

    line: int
    column: int
    text: str

    @classmethod
    def at(cls, text: str, offset: int) -> Self:
        """The place of a character; one behind the last is the end of the text."""
        before = text[: max(offset, 0)]
        lines = text.split("\n")
        line = min(before.count("\n"), len(lines) - 1)
        return cls(line + 1, len(before) - before.rfind("\n"), lines[line].rstrip("\r"))

    @classmethod
    def at_byte(cls, text: str, offset: int) -> Self:
        """The same for an offset in the UTF-8 form of the text, as the parser counts."""
        return cls.at(text, len(text.encode()[:offset].decode(errors="ignore")))

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"

    def excerpt(self) -> str:
        """The line, with a caret below the place."""
        start = max(0, self.column - 1 - _WIDEST // 2) if len(self.text) > _WIDEST else 0
        # every character that is no letter or sign of its own width would move the caret
        shown = "".join(c if c.isprintable() else " " for c in self.text[start : start + _WIDEST])
        margin = f"{self.line} | "
        blank = " " * (len(margin) - 2) + "| "
        return f"{margin}{shown}\n{blank}{' ' * _cells(shown[: self.column - 1 - start])}^"


def _cells(text: str) -> int:
    """The width of a text in a terminal."""
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


CONNECTION_LIMIT = "CONNECTION_LIMIT"
"""The code of an error that means: another run may have the connection; wait without holding any."""

ACCESS_REFUSED = "ACCESS_REFUSED"
"""The code of an error that means: the server answers, but refuses the account or the database."""


class VitrineError(Exception):
    """Every error a user may see. `code` is stable, for machines; the text is one sentence, for people.

    An error about the query has its `place`, which the text names as well.
    """

    default_code: ClassVar[str] = "ERROR"

    def __init__(self, message: str, *, code: str | None = None, place: Place | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.code = code or self.default_code


class ConfigError(VitrineError):
    """Refuse and never retry: the user must change the configuration first."""

    default_code = "CONFIG"


class DefinitionRefused(ConfigError):
    """Every reason against a definition, with the field that it concerns."""

    def __init__(self, reasons: Sequence[tuple[str, VitrineError]]) -> None:
        fields: dict[str, str] = {}
        for field, reason in reasons:
            fields.setdefault(str(reason), field)
        self.reasons = tuple((field, text) for text, field in fields.items())
        place = next((reason.place for _, reason in reasons if reason.place), None)
        super().__init__("; ".join(text for _, text in self.reasons), code=reasons[0][1].code, place=place)


class StoredDefinitionInvalid(ConfigError):
    """The stored definition of one pipeline is not valid; the others are not affected."""

    default_code = "DEFINITION_INVALID"


class WorkRefused(ConfigError):
    """Source or target refuse a definition; it can be stored all the same, without asking them."""


class RelationMissing(ConfigError):
    """A table or schema is missing, perhaps only while a deployment renames it: a run makes a few quick attempts."""


class RequestRefused(ConfigError):
    """A claimed request can do nothing: nothing has changed, and the pipeline returns to the status it had."""


class NotFound(VitrineError):
    """No object has that name."""

    default_code = "NOT_FOUND"


class Forbidden(VitrineError):
    """The role of the caller does not allow the operation."""

    default_code = "FORBIDDEN"


class TransitionRefused(VitrineError):
    """The current status does not allow the request."""

    default_code = "WRONG_STATUS"


class TransientError(VitrineError):
    """Worth another attempt: a connection, a lock, a full disk."""

    default_code = "TRANSIENT"


class DataError(VitrineError):
    """The data does not fit: the user must correct the data or the pipeline."""

    default_code = "DATA_ERROR"


class LeaseLost(VitrineError):
    """Another runner owns the pipeline: stop without an error and write nothing more."""

    default_code = "ETL01"


class CheckpointMoved(VitrineError):
    """The checkpoint is not the one this run saved: read it again before continuing."""

    default_code = "ETL02"


# guarantee: B5
_TRANSIENT_CLASSES = ("08", "40", "53")
_TRANSIENT_STATES = frozenset({"55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "55006"})
_DATA_CLASSES = ("22", "23")
_MISSING_STATES = frozenset({"42P01", "3F000"})


def is_final(error: VitrineError) -> bool:
    """Whether another attempt is useless: the user must act first, or another runner owns the pipeline."""
    return isinstance(error, ConfigError | DataError | LeaseLost)


_HEALED_BY_A_PERSON = frozenset({"QUERY_CANCELED", "FIRST_ROW_TIMEOUT", ACCESS_REFUSED})


def heals(error: VitrineError) -> bool:
    """Whether the reason may pass without a person: the closed list by which a scheduled run is postponed.

    Transient errors, except those whose remedy is another limit or another account.
    """
    return isinstance(error, TransientError) and error.code not in _HEALED_BY_A_PERSON


def group_of(sqlstate: str | None) -> type[VitrineError]:
    """The error group of a SQLSTATE; an error without one is a lost connection."""
    if sqlstate is None or sqlstate[:2] in _TRANSIENT_CLASSES or sqlstate in _TRANSIENT_STATES:
        return TransientError
    if sqlstate in _MISSING_STATES:
        return RelationMissing
    return DataError if sqlstate[:2] in _DATA_CLASSES else ConfigError


def is_failure(exc: BaseException) -> bool:
    """Whether user code or a library failed; polars raises panics that are not an Exception."""
    return isinstance(exc, Exception) or type(exc).__name__ == "PanicException"
