"""The position after each batch: the last row read, held back by transactions that may still commit below it."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from vitrine.connectors.postgres.source import cursor_codec as codec
from vitrine.flow.rows import Position, Watermark
from vitrine.ids import Cursor


class Tracker(Protocol):
    """Positions of one read."""

    start: Position

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        """The position once everything up to `end` is written; `raw` is `end` in binary format."""
        ...

    def finished(self) -> Position | None:
        """The position once the query is exhausted, if that changes it."""
        ...


class EndTracker:
    """Nothing is held back: the position is the last row read."""

    def __init__(self, start: Position) -> None:
        self.start = start

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        return Position(end)

    def finished(self) -> Position | None:
        return None


class TimeTracker:
    """A time cursor: the position follows the rows up to the bound of the watermark, and stays there.

    The next run reads rows at or above the bound again; unchanged rows are not written.
    """

    def __init__(self, start: Position, watermark: Watermark, type_oid: int) -> None:
        self.start = start
        self._type_oid = type_oid
        self._held = start
        self._bound: int | None = None  # None: the position does not move
        if watermark.bound is not None:
            self._bound = codec.text_number(type_oid, watermark.bound)
            beyond = start.cursor is not None and codec.text_number(type_oid, start.cursor[0]) >= self._bound
            self._held = start if beyond else Position((watermark.bound,))

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        if self._bound is None:
            return self.start
        # guarantee: C1
        # guarantee: C11
        return Position(end) if codec.number(self._type_oid, raw[0]) < self._bound else self._held

    def finished(self) -> Position | None:
        return None


class PendingTracker:
    """An integer cursor is not a time: the end of a run becomes the checkpoint one run later.

    A lower number may commit after a higher one was read. So the end of a run is only pending, with the time of its
    snapshot. When every transaction of that time has ended, a run that reads from the old checkpoint sees all of their
    rows, and the pending cursor becomes the checkpoint.

    `disorder`: a later transaction may still insert a number this much below the highest one, because it was assigned
    long before. The pending cursor stays that much behind the end.
    """

    def __init__(
        self,
        start: Position,
        watermark: Watermark,
        margin: timedelta,
        type_oid: int,
        clock: Callable[[], datetime],
        disorder: int = 0,
    ) -> None:
        self.start = start
        self._disorder = disorder
        self._clock = clock
        self._type_oid = type_oid
        self._end: Cursor | None = None
        self._settled = (
            start.pending_since is not None
            and watermark.at is not None
            # guarantee: C22
            and watermark.at - margin >= start.pending_since
        )

    def after(self, raw: Sequence[bytes], end: Cursor | None) -> Position:
        self._end = self._held_back(raw, end)
        if not self._settled or not self.start.pending_cursor:
            return self.start
        if codec.number(self._type_oid, raw[0]) < int(self.start.pending_cursor[0]):
            return Position(end, self.start.pending_cursor, self.start.pending_since)
        return Position(self.start.pending_cursor, self.start.pending_cursor, self.start.pending_since)

    def finished(self) -> Position | None:
        if self._settled:
            end = self._end or self.start.pending_cursor
            still = end if end != self.start.pending_cursor else None
            return Position(self.start.pending_cursor, still, self._clock() if still else None)
        if self.start.pending_cursor is None and self._end not in (None, self.start.cursor):
            # the clock is read after the snapshot: a transaction with a lower number had started before it
            return Position(self.start.cursor, self._end, self._clock())
        return None

    def _held_back(self, raw: Sequence[bytes], end: Cursor | None) -> Cursor | None:
        """The end, or the number that is `disorder` below it, but not below what is stored."""
        # guarantee: J19
        if self._disorder == 0:
            return end
        lowest = -(1 << 8 * len(raw[0]) - 1)
        lowered = max(codec.number(self._type_oid, raw[0]) - self._disorder, lowest)
        stored = self.start.pending_cursor or self.start.cursor
        return stored if stored is not None and lowered <= int(stored[0]) else (str(lowered),)
