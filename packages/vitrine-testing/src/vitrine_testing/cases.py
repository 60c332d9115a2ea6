"""What the author of a connector writes for the conformance suite: one case per sink and per source."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any, Protocol

from vitrine.core.rows import Column, Key

Texts = dict[str, str | None]
"""A row in canonical text: what PostgreSQL prints under UTC and ISO; None is NULL."""

REFUSED = "a value that the target refuses"
"""In column `note`: rows with it do not fit the target while `Fault.ONE_ROW_REFUSED` lasts."""


class Fault(StrEnum):
    """A fault of the outside system that a case can produce."""

    DOWN = "down"  # every request fails until the fault ends
    REPLY_LOST = "reply lost"  # the next write is applied, and the client gets an error
    APPLIED_LATE = "applied late"  # the next write gets an error, and is applied when the fault ends
    ONE_ROW_REFUSED = "one row refused"  # the target refuses rows whose note is REFUSED
    TARGET_GONE = "target gone"  # the target is removed at once; the end of the fault restores nothing
    BLOCKED = "blocked"  # a request waits until the fault ends


class NotSimulated(Exception):
    """Raised by a case for a fault that its system cannot have, or that cannot be produced; the text is the reason."""


class SinkCase(Protocol):
    """A sink under test."""

    @property
    def connector(self) -> str:
        """Name of the connector."""
        ...

    @property
    def types(self) -> Collection[str]:
        """PostgreSQL types that the sink stores exactly, out of `vitrine_testing.SAMPLES`; any other is a finding."""
        ...

    @property
    def refused(self) -> Mapping[str, Collection[str]]:
        """Samples of these types that the target cannot hold: rows with them are rejects."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Environment variables, by their full names."""
        ...

    def target(self) -> str:
        """A target_table that does not exist yet; a new one with each call."""
        ...

    def rows(self, target: str) -> dict[Key, Texts]:
        """What a user of the target sees, not read through the sink; no rows where the target does not exist."""
        ...

    def change(self, target: str, key: Key, row: Texts | None) -> None:
        """Change a stored row by hand, or delete it."""
        ...

    def fault(self, target: str, fault: Fault) -> AbstractContextManager[None]:
        """The fault lasts until the block ends; NotSimulated where there is no such fault."""
        ...


class SourceCase(Protocol):
    """A source under test."""

    @property
    def connector(self) -> str:
        """Name of the connector."""
        ...

    @property
    def types(self) -> Collection[str]:
        """PostgreSQL types that the source delivers exactly, out of `vitrine_testing.SAMPLES`."""
        ...

    def settings(self) -> Mapping[str, str]:
        """Environment variables, by their full names."""
        ...

    def create(self, columns: Sequence[Column], rows: Sequence[Texts]) -> Mapping[str, Any]:
        """A new place with these rows; the fields of a definition that reads all of them, with these columns only."""
        ...

    def put(self, source: Mapping[str, Any], row: Texts) -> None:
        """Insert the row, or replace the one with the same `id`; `source` is what `create` has returned."""
        ...

    def add_column(self, source: Mapping[str, Any]) -> None:
        """From now on the definition reads one more column. NotSimulated: that cannot happen."""
        ...

    def late_commit(self, source: Mapping[str, Any]) -> AbstractContextManager[Texts]:
        """A row with the current time in `modified` is written at the start, and committed at the end of the block.

        NotSimulated where rows cannot appear later than their time.
        """
        ...

    def fault(self, source: Mapping[str, Any], fault: Fault) -> AbstractContextManager[None]:
        """The fault (DOWN or BLOCKED) lasts until the block ends; NotSimulated where there is no such fault."""
        ...
