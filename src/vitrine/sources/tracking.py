"""What to remember after a batch: where reading has come to, held back by what may still commit below it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from vitrine.flow import Position
from vitrine.model import Cursor
from vitrine.sources import binary
from vitrine.sources.horizon import Horizon


class Tracker(Protocol):
    """Positions of one run."""

    start: Position

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        """The position to remember once everything up to `end` is written; `raw` is the same in binary."""
        ...

    def finished(self) -> Position | None:
        """The position to remember once the query is exhausted, if that changes anything."""
        ...


class EndTracker:
    """A full load, or a cursor that grows in commit order: the position is the end."""

    def __init__(self, start: Position) -> None:
        self.start = start

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        return Position(end)

    def finished(self) -> Position | None:
        return None


class TimeTracker:
    """A time cursor: the position follows the rows up to the bound, and waits there.

    Rows at the bound and above are read again next time and, being equal, not written.
    """

    def __init__(self, start: Position, type_oid: int, bound: int | None, waiting: Position) -> None:
        self.start = start
        self._type_oid = type_oid
        self._bound = bound  # None: stand still
        self._waiting = waiting

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        if self._bound is None:
            return self.start
        return Position(end) if binary.number(self._type_oid, raw[0]) < self._bound else self._waiting

    def finished(self) -> Position | None:
        return None


class PendingTracker:
    """An integer cursor has no time in it: what was read becomes the checkpoint one run later.

    A lower number may commit after a higher one was read. So the end of a run is only pending, with the time of its
    snapshot; when every transaction of that time has ended, a run that reads from the old checkpoint sees all of them,
    and the pending cursor becomes the checkpoint.
    """

    def __init__(
        self, start: Position, seen: Horizon, margin: timedelta, type_oid: int, clock: Callable[[], datetime]
    ) -> None:
        self.start = start
        self._clock = clock
        self._type_oid = type_oid
        self._end: Cursor | None = None
        self._settled = (
            start.pending_since is not None and seen.at is not None and seen.at - margin >= start.pending_since
        )

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        self._end = end
        if not self._settled or not self.start.pending_cursor:
            return self.start
        if binary.number(self._type_oid, raw[0]) < int(self.start.pending_cursor[0]):
            return Position(end, self.start.pending_cursor, self.start.pending_since)
        return Position(self.start.pending_cursor, self.start.pending_cursor, self.start.pending_since)

    def finished(self) -> Position | None:
        if self._settled:
            end = self._end or self.start.pending_cursor
            still = end if end != self.start.pending_cursor else None
            return Position(self.start.pending_cursor, still, self._clock() if still else None)
        if self.start.pending_cursor is None and self._end is not None:
            # the clock is asked after the snapshot was taken: whoever held a lower number then had begun before
            return Position(self.start.cursor, self._end, self._clock())
        return None
