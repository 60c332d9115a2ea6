"""Counts the rows that a run would add, change and remove in a mart, in bounded time and memory."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from vitrine.compare import differences
from vitrine.compare.comparison import Sides, both, in_forms
from vitrine.compare.differences import Compared, Differences, Pair
from vitrine.compare.digests import LastRows, rows_of
from vitrine.core.keys import chunks, row_hash
from vitrine.core.rows import Batch, Compare, Digest, Key, Read
from vitrine.errors import VitrineError

EXAMPLES = 5
"""Keys that are named of each kind of change."""

ROWS_PER_SECOND = 50_000
"""Rows that both sides surely digest in a second. If the time does not suffice for all rows, only some ranges are read.
"""

ROWS_AT_ONCE = 5_000
"""Rows of differing ranges that are compared key by key at a time: few, so that a part ends soon."""

PARTS = 1024
MOST_RANGES = 200
"""Of a sample: an index serves so many ranges."""

MOST_KEYS = 1_000_000
"""Keys that are kept in memory where any of them may be repeated; then the count ends."""

Method = Literal["exact", "sample", "partial"]
"""`sample`: estimates from a random part of the rows; `partial`: the time has ended, and there may be more."""


NO_DIFFERENCES = Differences()


class Budget:
    """The time that counting may take."""

    def __init__(self, seconds: float) -> None:
        self._started = time.monotonic()
        self.seconds = seconds

    @property
    def is_spent(self) -> bool:
        """Whether no further part should be started; a part that was started has the remaining third."""
        return self._elapsed > self.seconds * 2 / 3

    @property
    def is_over(self) -> bool:
        return self._elapsed >= self.seconds

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._started

    @contextmanager
    def cancelling(self, cancel: Callable[[], None]) -> Generator[None]:
        """Once the time is over, calls that are under way are cancelled: they raise an error."""
        ended = threading.Event()

        def watch() -> None:
            remaining = self.seconds - self._elapsed
            while not ended.wait(max(0.0, remaining)):
                cancel()
                remaining = 0.5  # a call that begins after the first cancellation

        watcher = threading.Thread(target=watch, name="plan-budget", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


@dataclass(frozen=True)
class RowChanges:
    """What rows of the source change in the mart."""

    added: int = 0
    changed: int = 0
    removed: int = 0  # rows of the mart that the source lacks, or that it marks as deleted
    repeated: int = 0  # keys that the source returns more than once
    rows: int = 0  # of the source, after the transforms
    skipped: int = 0  # of these, rows that a run does not write: marked as deleted, or not the last of their key
    written: int | None = None  # rows that a run writes, if it is not those that are added and changed
    target_rows: int | None = None  # None: the mart was not counted
    method: Method = "exact"
    rows_compared: int = 0
    columns: dict[str, int] = field(default_factory=dict[str, int])  # changed rows by column
    examples: Differences = NO_DIFFERENCES


class _Tally:
    """A sum over parts of the rows."""

    def __init__(self) -> None:
        self.added = self.changed = self.removed = self.repeated = 0
        self.columns: Counter[str] = Counter()
        self._missing: list[Key] = []
        self._extra: list[Key] = []
        self._different: dict[Key, tuple[str, ...]] = {}

    def add(self, found: Differences, repeated: int = 0) -> None:
        self.added += len(found.missing)
        self.changed += len(found.different)
        self.removed += len(found.extra)
        self.repeated += repeated
        self.columns.update(name for names in found.different.values() for name in names)
        self._missing += found.missing[: EXAMPLES - len(self._missing)]
        self._extra += found.extra[: EXAMPLES - len(self._extra)]
        for key, names in found.different.items():
            if len(self._different) == EXAMPLES:
                break
            self._different[key] = names

    @property
    def examples(self) -> Differences:
        return Differences(tuple(self._missing), tuple(self._extra), dict(self._different))


# -- all rows ---------------------------------------------------------------------------------------------------------


def compare_all(
    sides: Sides, budget: Budget, rows_expected: int | None = None, newest_by: Sequence[str] | None = None
) -> RowChanges:
    """All rows of the source beside the whole mart.

    With `newest_by`, a run keeps the last row of a key that the source returns more than once: the last by these
    columns, then as read.
    Ranges of keys whose digests are equal have no change. The others are compared key by key, in a random order; when
    the time is spent, the changes of those that remain are estimated from those that were compared.
    """
    share, target, source = _digests(sides, rows_expected, round(budget.seconds * ROWS_PER_SECOND))
    one_sided, waiting = _split(differences.differing(source, target), repeats=newest_by is not None)
    random.Random(0).shuffle(waiting)  # noqa: S311  no secret
    tally, compared, dropped = _Tally(), 0, 0
    for part in _found(sides, waiting, budget):
        found = differences.paired(sides, part.differences)
        if newest_by is not None:
            found = _of_last(sides, found, list(part.repeated), newest_by)
            dropped += sum(rows - 1 for rows in part.repeated.values())
        tally.add(found, len(part.repeated))
        compared += part.rows
    remaining = _rows(waiting)
    factor = (compared + remaining) / compared if compared else 1.0
    source_rows, target_rows = _total(source), _total(target)
    return RowChanges(
        added=_scaled(sum(ours.rows for ours, _ in one_sided) + tally.added * factor, share),
        changed=_scaled(tally.changed * factor, share),
        removed=_scaled(sum(theirs.rows for _, theirs in one_sided) + tally.removed * factor, share),
        repeated=tally.repeated,
        rows=_scaled(source_rows, share),
        skipped=_scaled(dropped * factor, share),
        target_rows=_scaled(target_rows, share),
        method="exact" if share == 1 and not waiting else "sample",
        rows_compared=max(source_rows, target_rows) - remaining,
        columns={name: _scaled(count * factor, share) for name, count in tally.columns.items()},
        examples=_with_examples(tally, sides, one_sided, budget),
    )


def _found(sides: Sides, waiting: list[Pair], budget: Budget) -> Iterator[Compared]:
    """Compares the ranges until the time is spent; those that were not compared remain in the list."""
    parts = differences.by_keys(sides, waiting, rows_at_once=ROWS_AT_ONCE)
    compared = 0
    while not (compared and budget.is_spent):
        before = list(waiting)
        try:
            part = next(parts, None)
        except VitrineError:
            if not (compared and budget.is_over):
                raise
            waiting[:] = before  # the call was cancelled
            return
        if part is None:
            return
        compared += part.rows
        yield part


def _digests(sides: Sides, rows_expected: int | None, most: int) -> tuple[float, Sequence[Digest], Sequence[Digest]]:
    """Digests of target and source by the same ranges, and the part of all ranges that they are."""
    if not sides.selects_ranges or rows_expected is None or rows_expected <= most:
        return 1.0, *both(sides, lambda wanted: differences.cut(sides, wanted))
    whole = replace(sides.wanted, control=None, parts=PARTS, bounds_only=True)
    ranges = [one.range for one in sides.target(whole)]
    number = min(MOST_RANGES, len(ranges), max(1, len(ranges) * most // rows_expected))
    chosen = tuple(random.Random(0).sample(ranges, number))  # noqa: S311  no secret

    def ask(wanted: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
        source, target = sides.pair(replace(wanted, control=None, ranges=chosen))
        return target, source

    return len(chosen) / len(ranges), *both(sides, ask)


def _of_last(sides: Sides, found: Differences, repeated: Sequence[Key], newest_by: Sequence[str]) -> Differences:
    """The same, but a repeated key differs only if the last of its rows does."""
    wanted = replace(sides.wanted, control=None, by_key=True)
    differing = [key for key in repeated if key in found.different]
    for some in chunks(differing, differences.KEYS_AT_ONCE):
        last, only = LastRows(wanted, newest_by), frozenset(some)
        for batch in sides.rows(some):
            last.add(batch, only)
        source = sides.of_rows(last.batches(), wanted)
        target = sides.target(replace(wanted, only=tuple(some)))
        found = found.without(some) + differences.compare_digests(source, target, wanted)
    return found


def _split(found: Sequence[Pair], *, repeats: bool) -> tuple[list[Pair], list[Pair]]:
    """Ranges that only one of the sides has, whose rows need no comparison, and the others.

    If keys may repeat, the rows of the source have to be compared in order to count them.
    """
    one_sided: list[Pair] = []
    others: list[Pair] = []
    for ours, theirs in found:
        needs_none = not ours.rows or not (theirs.rows or repeats)
        (one_sided if needs_none else others).append((ours, theirs))
    return one_sided, others


def _with_examples(tally: _Tally, sides: Sides, one_sided: Sequence[Pair], budget: Budget) -> Differences:
    """The examples, with keys of ranges that only one of the sides has if there are no others."""
    found = tally.examples
    new = [pair for pair in one_sided if pair[0].rows]
    gone = [pair for pair in one_sided if pair[1].rows]
    for pairs in ([] if found.missing else new[:1], [] if found.extra else gone[:1]):
        if pairs and not budget.is_spent:
            some = next(differences.by_keys(sides, list(pairs))).differences
            found = replace(
                found,
                missing=found.missing or some.missing[:EXAMPLES],
                extra=found.extra or some.extra[:EXAMPLES],
            )
    return found


def _total(digests: Sequence[Digest]) -> int:
    return sum(one.rows for one in digests)


def _rows(pairs: Sequence[Pair]) -> int:
    return sum(max(ours.rows, theirs.rows) for ours, theirs in pairs)


def _scaled(count: float, share: float) -> int:
    return round(count / share)


# -- the rows of one read ---------------------------------------------------------------------------------------------


def compare_read(sides: Sides, read: Read, budget: Budget, newest_by: Sequence[str] | None = None) -> RowChanges:
    """The rows of a read beside the rows of the mart that have their keys; `newest_by` as in `compare_all`."""
    tally, compared, written = _Tally(), 0, 0
    repeats = None if newest_by is None else _Repeats(newest_by)
    for batch in sides.batches(read):
        kept = batch if repeats is None else repeats.kept(sides, batch)
        if kept.count:
            source, target = both(sides, lambda wanted, batch=kept: _of_batch(sides, batch, wanted))
            if repeats is None:
                found = differences.paired(sides, differences.compare_digests(source, target, sides.wanted))
                tally.add(found, sum(one.rows > 1 for one in source))
            else:
                repeats.add(source, target)
        tally.add(Differences(extra=marked_in_mart(sides, batch)))
        compared += batch.count + len(batch.deleted)
        written += kept.count
        if budget.is_spent or (repeats is not None and repeats.is_full):
            break
    else:
        return _read(sides, tally, repeats, RowChanges(rows=compared, skipped=compared - written))
    return _read(sides, tally, repeats, RowChanges(rows=compared, skipped=compared - written, method="partial"))


class _Repeats:
    """A read whose batches may have a key again: each writes over the rows of those before it."""

    def __init__(self, newest_by: Sequence[str]) -> None:
        self.written = 0
        self._newest_by = newest_by
        self._stored: dict[Key, Digest] = {}  # in the mart
        self._read: dict[Key, Digest] = {}

    @property
    def is_full(self) -> bool:
        return len(self._read) >= MOST_KEYS

    def kept(self, sides: Sides, batch: Batch) -> Batch:
        """The batch without rows whose keys it has again."""
        last = LastRows(sides.wanted, self._newest_by)
        last.add(batch)
        return next(last.batches(), batch)

    def add(self, source: Sequence[Digest], target: Sequence[Digest]) -> None:
        self._stored.update({one.range.low or (): one for one in target})
        for one in source:
            key = one.range.low or ()
            before = self._read.get(key) or self._stored.get(key)
            self.written += before is None or before.columns != one.columns
            self._read[key] = one

    def differences(self, sides: Sides) -> Differences:
        found = differences.compare_digests(self._read.values(), self._stored.values(), sides.wanted)
        return differences.paired(sides, found)


def _read(sides: Sides, tally: _Tally, repeats: _Repeats | None, found: RowChanges) -> RowChanges:
    if repeats is not None:
        tally.add(repeats.differences(sides))
    return replace(
        found,
        added=tally.added,
        changed=tally.changed,
        removed=tally.removed,
        repeated=tally.repeated,
        rows_compared=found.rows,
        written=None if repeats is None else repeats.written,
        columns=dict(tally.columns),
        examples=tally.examples,
    )


def _of_batch(sides: Sides, batch: Batch, wanted: Compare) -> tuple[Sequence[Digest], Sequence[Digest]]:
    """The digests of the keys of a batch, and of the rows of the mart that have them."""
    wanted = replace(wanted, control=None, by_key=True)
    source = sides.of_rows(iter([batch]), wanted)
    return source, list(_stored(sides, [one.range.low or () for one in source], wanted))


def marked_in_mart(sides: Sides, batch: Batch) -> tuple[Key, ...]:
    """Keys of rows that are marked as deleted, and that the mart has."""
    if not batch.deleted:
        return ()
    wanted = replace(sides.wanted, control=None, by_key=True, columns=sides.wanted.key)
    forms = [wanted.form_of(column) for column in wanted.key]
    keys = list(dict.fromkeys(in_forms(key, forms) for key in batch.deleted))
    return tuple(one.range.low or () for one in _stored(sides, keys, wanted))


def _stored(sides: Sides, keys: Sequence[Key], wanted: Compare) -> Iterator[Digest]:
    for some in chunks(keys, differences.KEYS_AT_ONCE):
        yield from sides.target(replace(wanted, only=tuple(some)))


def count_marked(sides: Sides, read: Read, budget: Budget) -> int | None:
    """Rows of the mart that the source marks as deleted; None if the time does not suffice."""
    found = 0
    for batch in sides.batches(read):
        found += len(marked_in_mart(sides, batch))
        if budget.is_spent:
            return None
    return found


def count_rows(batches: Iterator[Batch], budget: Budget, key: Sequence[str] | None = None) -> RowChanges:
    """Rows for a mart that does not exist yet: all of them are added, or with a `key` one of each key."""
    rows, found = 0, set[int]()
    for batch in batches:
        rows += batch.count
        if key is not None:
            columns = tuple(column for column in batch.columns if column.name in key)
            found.update(row_hash(one) for one, _ in rows_of([batch], Compare(columns, columns)))
        if budget.is_spent or len(found) >= MOST_KEYS:
            return _first(rows if key is None else len(found), rows, "partial")
    return _first(rows if key is None else len(found), rows, "exact")


def _first(added: int, rows: int, method: Method) -> RowChanges:
    return RowChanges(added=added, rows=rows, skipped=rows - added, target_rows=0, method=method, rows_compared=rows)
